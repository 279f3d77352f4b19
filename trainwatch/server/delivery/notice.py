"""What a message says: the alerts, their runs, and where to read on; the same for every kind of channel."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import quote

from sqlalchemy import Row

from trainwatch.rules.wording import sentence
from trainwatch.rules.wording.telling import phrase
from trainwatch.server.store.sparkline import Sparkline

_BLOCKS: Final = "▁▂▃▄▅▆▇█"
_NONFINITE: Final = "✕"
_SPARK_CHARACTERS: Final = 30
EMOJI: Final = {"info": "ℹ️", "warning": "⚠️", "critical": "🔴"}
_RESOLVED: Final = "✅"


@dataclass(frozen=True, slots=True)
class RunFacts:
    """What a message says of a run.

    Attributes:
        id: The run's id.
        name: Its name for people.
        project: Its project.
        state: What it does now.
        step: The last finished step.
        max_steps: How many there are to be; 0: not known.
        world_size: How many ranks it has.
        loss: The last train/loss; None: there was none.
        line: The train/loss so far: steps and values.
        url: Its page; empty where the server does not know its own address.
    """

    id: str
    name: str
    project: str
    state: str
    step: int
    max_steps: int
    world_size: int
    loss: float | None
    line: tuple[list[int], list[float]]
    url: str


@dataclass(frozen=True, slots=True)
class Notice:
    """One change of one alert, in the words of the channel's language."""

    delivery: str
    alert: int
    change: str
    severity: str
    rule: str
    key: str
    rank: int | None
    step: int | None
    first_step: int | None
    time: float
    parameters: Mapping[str, Any]
    sentence: str
    run: RunFacts

    @property
    def emoji(self) -> str:
        """A sign for how bad it is."""
        return _RESOLVED if self.change == "resolved" else EMOJI.get(self.severity, "")

    def headline(self, language: str) -> str:
        """Returns what became of the alert, and of which run, in few words."""
        severity = phrase(self.severity, language)
        what = phrase("resolved", language) if self.change == "resolved" else severity
        if self.change == "raised":
            what = phrase("raised", language, severity=severity.lower())
        return f"{what}{phrase('colon', language)}{self.run.name}"

    def value(self) -> float | str | None:
        """Returns the value that the alert is about, where its evidence names one."""
        found = self.parameters.get("value")
        return found if isinstance(found, int | float | str) and not isinstance(found, bool) else None


@dataclass(frozen=True, slots=True)
class Message:
    """What is sent at once.

    Attributes:
        id: The delivery id.
        kind: ``alert``, ``digest`` or ``test``.
        created_at: When the first of its alerts changed, by the server's clock.
        language: In which its sentences are.
        channel: The channel's name.
        settings_url: Where the channel is set; empty where the server does not know its own address.
        notices: What it tells; none in a test.
    """

    id: str
    kind: str
    created_at: float
    language: str
    channel: str
    settings_url: str = ""
    notices: Sequence[Notice] = field(default_factory=tuple)

    @property
    def title(self) -> str:
        """One line that says what it is about."""
        if self.kind == "test":
            return f"TrainWatch: {phrase('test_title', self.language)}"
        if self.kind == "digest":
            return f"TrainWatch: {phrase('digest', self.language, count=len(self.notices))}"
        return self.notices[0].headline(self.language)

    @property
    def line(self) -> str:
        """The whole of it in one line, as far as that goes: what a phone shows."""
        if self.kind == "alert":
            return f"{self.title}{phrase('colon', self.language)}{self.notices[0].sentence}"
        return self.title

    def text(self, most: int = 20) -> str:
        """Returns it as plain text.

        Args:
            most: How many alerts of a digest are spelled out.
        """
        if self.kind == "test":
            return phrase("test", self.language, name=self.channel)
        single = len(self.notices) == 1
        parts = [self._one(notice, single) for notice in self.notices[:most]]
        if len(self.notices) > most:
            parts.append(phrase("more", self.language, count=len(self.notices) - most))
        return ("\n\n" if single else "\n").join(parts)

    def _one(self, notice: Notice, whole: bool) -> str:
        if not whole:
            link = f" {notice.run.url}" if notice.run.url else ""
            colon = phrase("colon", self.language)
            return f"{notice.emoji} {notice.headline(self.language)}{colon}{notice.sentence}{link}"
        lines = [notice.sentence]
        lines += [f"{name}: {value}" for name, value in facts(notice, self.language)]
        line = spark(notice.run.line[1])
        if line:
            lines.append(f"{phrase('loss', self.language)}: {line}")
        if notice.run.url:
            lines.append(notice.run.url)
        return "\n".join(lines)


def facts(notice: Notice, language: str) -> list[tuple[str, str]]:
    """Returns what stands beside the sentence, as names and values."""
    run = notice.run
    found = [(phrase("run", language), run.name), (phrase("project", language), run.project)]
    if notice.step is not None:
        of = f" / {run.max_steps}" if run.max_steps else ""
        found.append((phrase("step", language), f"{notice.step}{of}"))
    if notice.rank is not None and run.world_size > 1:
        found.append((phrase("rank", language), str(notice.rank)))
    value = notice.value()
    if value is not None:
        found.append((phrase("value", language), spell(value)))
    if run.loss is not None:
        found.append((phrase("loss", language), spell(run.loss)))
    return found


def spell(value: float | str) -> str:
    """Writes a value for people; NaN and Inf are words."""
    if isinstance(value, str):
        return value[:100]
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "Infinity" if value > 0 else "-Infinity"
    return f"{value:.5g}"


def spark(values: Sequence[float], most: int = _SPARK_CHARACTERS) -> str:
    """Draws a curve as one line of text; what is not finite is a cross.

    Args:
        values: The curve.
        most: How many characters; neighbours share one where there are more values.
    """
    if len(values) < 2:
        return ""
    count = min(most, len(values))
    buckets = [values[len(values) * n // count : len(values) * (n + 1) // count] for n in range(count)]
    finite = [value for value in values if math.isfinite(value)]
    low, high = (min(finite), max(finite)) if finite else (0.0, 0.0)
    return "".join(_block(bucket, low, high) for bucket in buckets)


def _block(bucket: Sequence[float], low: float, high: float) -> str:
    if any(not math.isfinite(value) for value in bucket):
        return _NONFINITE
    span = high - low
    if not span > 0 or not math.isfinite(span):
        return _BLOCKS[3]
    height = (sum(bucket) / len(bucket) - low) / span
    return _BLOCKS[min(len(_BLOCKS) - 1, max(0, int(height * len(_BLOCKS))))]


def notices(rows: Iterable[Row[Any]], runs: Mapping[str, Row[Any]], *, language: str, public_url: str) -> list[Notice]:
    """Makes what is told of deliveries.

    Args:
        rows: The deliveries' rows.
        runs: The rows of their runs.
        language: In which to speak.
        public_url: Where people reach the server; empty: it is not known.
    """
    return [_notice(row, _run(runs[row.run], public_url), language) for row in rows if row.run in runs]


def _notice(row: Row[Any], run: RunFacts, language: str) -> Notice:
    content = row.content
    rank = content.get("rank")
    parameters = content.get("parameters") or {}
    return Notice(
        delivery=row.uuid,
        alert=row.alert,
        change=row.change,
        severity=row.severity,
        rule=content.get("rule", ""),
        key=content.get("key", ""),
        rank=rank,
        step=content.get("step"),
        first_step=content.get("first_step"),
        time=content.get("time", row.created_at),
        parameters=parameters,
        sentence=sentence(
            content.get("rule", ""),
            parameters,
            language=language,
            step=content.get("step"),
            rank=rank if run.world_size > 1 else None,
        ),
        run=run,
    )


def _run(row: Row[Any], public_url: str) -> RunFacts:
    line = Sparkline(row.sparkline)
    return RunFacts(
        id=row.id,
        name=row.name or row.id,
        project=row.project,
        state=row.state,
        step=row.step,
        max_steps=row.max_steps,
        world_size=row.world_size,
        loss=None if row.loss_rank is None else row.last_loss,
        line=(line.step.tolist(), line.value.tolist()),
        url=f"{public_url}/runs/{quote(row.id, safe='')}" if public_url else "",
    )
