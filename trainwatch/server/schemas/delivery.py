"""What the API says of channels, silences and deliveries. Addresses and keys go in and never come out."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AfterValidator, Field, SecretStr, model_validator

from trainwatch.events import Severity
from trainwatch.server.delivery.quiet import clock, zone
from trainwatch.server.http.spelling import Model, Number

Kind = Literal["slack", "webhook", "apprise"]
Change = Literal["fired", "raised", "resolved", "digest", "test"]
DeliveryState = Literal["waiting", "sent", "failed", "suppressed", "gathered"]
_Pattern = Annotated[str, Field(pattern=r"^[A-Za-z0-9_.*?\[\]!-]{1,100}$")]


def _zone(name: str) -> str:
    zone(name)
    return name


def _clock(text: str) -> str:
    clock(text)
    return text


def _printable(text: str) -> str:
    if not text.isprintable():
        raise ValueError("must be printable")
    return text


Name = Annotated[str, Field(min_length=1, max_length=100), AfterValidator(_printable)]
Text = Annotated[str, Field(max_length=200), AfterValidator(_printable)]


class QuietHours(Model):
    """When only what is critical passes, and the rest waits for the end."""

    zone: Annotated[str, Field(max_length=60, description="Like Europe/Berlin."), AfterValidator(_zone)]
    start: Annotated[str, Field(max_length=5, description="Like 22:00."), AfterValidator(_clock)]
    end: Annotated[
        str, Field(max_length=5, description="An end before the start is on the next day."), AfterValidator(_clock)
    ]

    @model_validator(mode="after")
    def _lasts(self) -> QuietHours:
        if clock(self.start) == clock(self.end):
            raise ValueError("quiet hours end when they begin; a channel that is never to be heard is one to disable")
        return self


class Digest(Model):
    """How many messages a channel takes; the rest is gathered into one."""

    most: int = Field(default=10, ge=1, le=1000)
    seconds: float = Field(default=300, ge=1, le=24 * 3600)


class ChannelRequest(Model):
    """How a channel is to be."""

    name: Name
    kind: Kind
    url: SecretStr | None = Field(
        default=None, max_length=2000, description="Write-only. null keeps the one there is; a new channel needs one."
    )
    key: SecretStr | None = Field(
        default=None,
        max_length=200,
        description="Write-only; what a webhook is signed with. null keeps the one there is.",
    )
    least: Severity = Field(default="warning", description="The lowest severity that it is told of.")
    rules: list[_Pattern] = Field(default=[], max_length=100, description="Patterns of rule ids; none: all rules.")
    send_resolved: bool = True
    language: Literal["en", "zh"] = "en"
    quiet: QuietHours | None = None
    digest: Digest = Digest()
    enabled: bool = True


class Channel(Model):
    """A channel."""

    id: int
    project: str = Field(description="Empty: told of all projects.")
    name: str
    kind: Kind
    target: str = Field(description="As much of the address as may be shown.")
    has_key: bool
    least: Severity
    rules: list[str]
    send_resolved: bool
    language: Literal["en", "zh"]
    quiet: QuietHours | None
    digest: Digest
    enabled: bool
    disabled_reason: str = Field(description="Why the server disabled it; empty: it did not.")
    waiting: int = Field(description="Deliveries still to be made.")
    created_at: float
    changed_at: float


class ChannelList(Model):
    """The channels of a project, or those for all projects."""

    channels: list[Channel]


class ChannelTest(Model):
    """What became of a test message."""

    delivery: str
    sent: bool
    status: int | None = Field(description="HTTP's; null where none came.")
    error: str
    seconds: float


class Attempt(Model):
    """One attempt to deliver."""

    at: float
    seconds: float
    status: int | None
    error: str = Field(description="Empty: it was taken.")


class Delivery(Model):
    """What is, or was, to be told to a channel."""

    id: str = Field(description="As the receiver sees it.")
    channel: int
    channel_name: str
    kind: Kind
    change: Change
    severity: Severity
    rule: str = Field(description="Empty for a digest or a test.")
    run: str | None
    alert: int | None
    state: DeliveryState
    reason: str = Field(description="Why it waits, failed or was suppressed.")
    digest: str | None = Field(description="The delivery that carried it with others.")
    created_at: float
    due_at: float
    done_at: float | None
    attempts: list[Attempt]


class DeliveryList(Model):
    """Deliveries, the newest first."""

    deliveries: list[Delivery]


class ProjectSilenceRequest(Model):
    """What nobody wants to hear of."""

    rule: Annotated[str, Field(pattern=r"^[A-Za-z0-9_.*?\[\]!-]{0,100}$", description="Pattern; empty: all rules.")] = (
        ""
    )
    run: Text = Field(default="", description="Pattern of ids or names; empty: all runs.")
    reason: Text = ""
    hours: float | None = Field(default=None, gt=0, le=24 * 365, description="null: for ever.")


class ProjectSilence(Model):
    """What nobody wants to hear of, and until when."""

    id: int
    rule: str
    run: str
    reason: str
    until: Number = Field(description="By the server's clock; Infinity: for ever.")
    created_at: float


class ProjectSilences(Model):
    """A project's silences that are not over."""

    silences: list[ProjectSilence]
