"""What a rule is.

A rule sees the events of a run one by one and says what is wrong *now*. It is pure: values in, findings out; no clock,
no file, no network. One object watches one run, all ranks of it that are in reach, and lives as long as somebody
watches. It keeps a bounded state, and takes each event in constant time.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Any, ClassVar, Final, Generic, TypeVar

import msgspec

from trainwatch.events import Action, AnyEvent, Event, FindingRaised, Severity

SEVERITIES: Final[dict[Severity, int]] = {"info": 0, "warning": 1, "critical": 2}
"""Severities in rising order."""

Seconds = Annotated[float, msgspec.Meta(ge=0)]
Share = Annotated[float, msgspec.Meta(ge=0, le=1)]
Positive = Annotated[float, msgspec.Meta(gt=0)]
Count = Annotated[int, msgspec.Meta(ge=1)]


class Options(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What can be set of every rule. A rule with thresholds of its own adds fields, each with a default.

    Attributes:
        enabled: Whether the rule looks at all.
        hold: How long it must match before it fires, in seconds. In settings its name is ``for``.
        repeat: Shortest time between two reports of the same finding that became no worse, in seconds.
        at_most: The highest severity that it gives.
        action: What is done when it fires, from severity `act_at` on.
        act_at: The lowest severity at which `action` is taken; below it the finding only notifies.
    """

    enabled: bool = True
    hold: Seconds = msgspec.field(default=0.0, name="for")
    repeat: Seconds = 0.0
    at_most: Severity = "critical"
    action: Action = "notify"
    act_at: Severity = "warning"


O = TypeVar("O", bound=Options)  # noqa: E741 (the field's name for a type of options)


class Rule(Generic[O]):
    """One rule.

    Attributes:
        id: Its name in findings, settings and documentation; snake case.
        listens: The types of events that it is shown; with :class:`~trainwatch.events.FindingRaised` also what the
            other rules report, once their reports to this event are complete.
        options_type: Its options; every field has a default that needs no tuning.
        actions: What it may be told to do.
        options: The options in force; they may change while it works.
    """

    id: ClassVar[str]
    listens: ClassVar[tuple[type[Event], ...]]
    options_type: ClassVar[type[Options]] = Options
    actions: ClassVar[tuple[Action, ...]] = ("notify", "checkpoint", "halt")

    def __init__(self, options: O) -> None:
        self.options = options

    def configure(self, options: O) -> None:
        """Takes other options while it works; a rule that made something of them when it began makes it anew.

        Args:
            options: The options in force from here on.
        """
        self.options = options

    def renewed(self) -> Rule[O]:
        """Returns the rule that watches on when the run's processes have been replaced by new ones: one that knows
        nothing, so that it says again what is still wrong.
        """
        return type(self)(self.options)

    def observe(self, event: Any, rank: int | None) -> Iterable[FindingRaised]:
        """Takes the next event.

        Args:
            event: What happened; one of the types in `listens`.
            rank: The rank whose journal holds the event, or that a sample is about; None for the node or the run.

        Returns:
            What is found, at the event's time. The same rule, rank and key found again updates the alert: a rule
            reports when it begins to match, whenever the evidence becomes worse, and (with :meth:`cleared`) when it
            matches no longer; not at every event.
        """
        raise NotImplementedError

    def finding(
        self,
        event: AnyEvent,
        severity: Severity,
        *,
        rank: int | None = None,
        step: int | None = None,
        key: str = "",
        evidence: dict[str, Any],
    ) -> FindingRaised:
        """Makes a finding of this rule at the event's time.

        Args:
            event: The event that shows it.
            severity: How bad it is.
            rank: The rank concerned; None for the run as a whole.
            step: The step concerned; the event's when it has one.
            key: What else tells it from this rule's other findings.
            evidence: Plain values under the names that the wording uses.
        """
        where = getattr(event, "step", None) if step is None else step
        return FindingRaised(
            time=event.time, rule=self.id, severity=severity, step=where, rank=rank, key=key, parameters=evidence
        )

    def cleared(
        self, event: AnyEvent, *, rank: int | None = None, step: int | None = None, key: str = ""
    ) -> FindingRaised:
        """Says that what was found before is over; it is no news where nothing was."""
        where = getattr(event, "step", None) if step is None else step
        return FindingRaised(
            time=event.time,
            rule=self.id,
            severity="info",
            step=where,
            rank=rank,
            key=key,
            state="resolved",
        )


def is_first(rank: int | None) -> bool:
    """Tells whether a rank speaks for the run in what is the same on all ranks: the first, or an imported run."""
    return rank is None or rank == 0
