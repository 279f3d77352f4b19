"""Memory that grows and does not come back, and when it will end.

A leak is judged by what is held between steps. Where nobody tells steps (an imported trace, the host's memory), by
samples; they show other tenants and an allocator's cache as well, so that more is asked of them, and they halt nothing.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, ClassVar, Final, Generic, TypeVar

from trainwatch.events import Action, Event, FindingRaised, PhaseEntered, RunStarted, Sampled, Severity, StepEnded
from trainwatch.forecast.growth import Forecast, Growth, Trend
from trainwatch.forecast.limits import Limits, MappedFiles
from trainwatch.rules.base import SEVERITIES, Count, Options, Rule, Seconds, Share

MEMORY_GROWTH: Final = "memory_growth"
OOM_FORECAST: Final = "oom_forecast"

_LEAST_STEPS: Final = 20
# The agent reads four times a second; what limits memory moves slowly.
_SAMPLE_SECONDS: Final = 5.0
_SAMPLES_A_BLOCK: Final = 4
_SMOOTHING: Final = 0.1

O = TypeVar("O", bound=Options)  # noqa: E741 (as in base.py)
_Place = tuple["int | None", str]


class _Followed:
    """One device as one rank uses it, and what was last said of it."""

    __slots__ = ("files", "growth", "matched", "said", "seconds", "severity", "since", "stepped", "time", "trend")

    def __init__(self, stepped: bool) -> None:
        self.stepped = stepped
        self.growth = Growth() if stepped else Growth(_SAMPLES_A_BLOCK)
        self.trend: Trend | None = None
        self.files = MappedFiles()
        self.time = -math.inf
        self.seconds = math.nan
        self.said: float | None = None
        self.severity: Severity = "info"
        self.since = 0.0
        self.matched = 0.0

    def note_time(self, time: float) -> None:
        passed = time - self.time
        self.time = time
        if 0 < passed < math.inf:
            # A pause (an evaluation, a save) is no step's time.
            seconds = self.seconds
            self.seconds = passed if seconds != seconds else seconds + _SMOOTHING * (min(passed, 4 * seconds) - seconds)

    def is_over(self) -> bool:
        """Tells whether what was said holds no longer."""
        if self.said is None or self.trend is not None:
            return False
        return self.growth.newest < self.matched or self.growth.newest - self.matched > self.patience

    @property
    def patience(self) -> float:
        """How long nothing need be seen of a growth before it counts as over."""
        return (self.matched - self.since) / 2


class _Growing(Rule[O], Generic[O]):
    """What the two rules share: each device of each rank, and what limits it."""

    listens: ClassVar[tuple[type[Event], ...]] = (StepEnded, Sampled, RunStarted)

    def __init__(self, options: O) -> None:
        super().__init__(options)
        self._limits = Limits()
        self._followed: dict[_Place, _Followed] = {}
        self._last: dict[int | None, int] = {}
        self._first: dict[int | None, int] = {}

    def observe(self, event: Any, rank: int | None) -> Iterator[FindingRaised]:
        """See :class:`~trainwatch.rules.base.Rule`."""
        kind = type(event)
        self._limits.observe(event, rank)
        if kind is StepEnded:
            for device, values in event.devices.items():
                trough = values.get("memory/allocated")
                if trough is None:
                    trough = values.get("memory/resident")
                if trough is None:
                    continue
                followed = self._followed.get((rank, device))
                if followed is None or not followed.stepped:
                    followed = self._followed[rank, device] = _Followed(stepped=True)
                followed.note_time(event.time)
                files = followed.files.grown(values.get("memory/mapped"))
                followed.growth.observe(event.step, trough - files, values.get("memory/peak", trough) - files)
                followed.trend = followed.growth.trend()
                if followed.trend is not None or followed.said is not None:
                    yield from self._judge(event, rank, device, followed)
        elif kind is Sampled:
            for device, values in event.devices.items():
                used = values.get("memory/device_used")
                if used is None:
                    continue
                followed = self._followed.get((rank, device))
                if followed is None:
                    followed = self._followed[rank, device] = _Followed(stepped=False)
                elif followed.stepped or 0 <= event.time - followed.time < _SAMPLE_SECONDS:
                    continue
                followed.note_time(event.time)
                followed.growth.observe(event.time, used, used)
                followed.trend = followed.growth.trend()
                if followed.trend is not None or followed.said is not None:
                    yield from self._judge(event, rank, device, followed)
        elif kind is RunStarted:
            self._last[rank], self._first[rank] = event.max_steps, event.first_step
            for place in [place for place in self._followed if place[0] == rank]:
                if self._followed.pop(place).said is not None:
                    yield self.cleared(event, rank=rank, key=place[1])

    def _judge(self, event: Any, rank: int | None, device: str, followed: _Followed) -> Iterator[FindingRaised]:
        raise NotImplementedError

    def _limit(self, rank: int | None, device: str, followed: _Followed) -> float | None:
        """Returns what the rank's use may reach by itself."""
        if not followed.stepped:
            return self._capacity(rank, device)
        limit = self._limits.limit(rank, device)
        trend = followed.trend
        if limit is None or trend is None or device != "cpu":
            return limit
        # Ranks of one node grow into the same memory.
        rates = [
            other.trend.rate
            for (_, name), other in self._followed.items()
            if name == device and other.trend is not None and other.stepped
        ]
        if len(rates) < 2:
            return limit
        height = trend.height(followed.growth.newest)
        return height + (limit - height) * trend.rate / sum(rates)

    def _capacity(self, rank: int | None, device: str) -> float | None:
        return self._limits.capacity(rank, device)

    def _clear(self, event: Any, rank: int | None, device: str, followed: _Followed) -> Iterator[FindingRaised]:
        if followed.is_over():
            followed.said = None
            followed.severity = "info"
            yield self.cleared(event, rank=rank, key=device)

    def _ends_in_time(self, rank: int | None, end: float) -> bool:
        """Tells whether the training is over before a step."""
        last = self._last.get(rank, 0)
        return 0 < last < end


class GrowthOptions(Options, frozen=True, kw_only=True):
    """Options of :class:`MemoryGrowth`.

    Attributes:
        least: How much must have grown, as a share of what there is (of what is held, where the limit is not known).
        least_sampled: The same where only samples are there.
        confidence: How sure the growth must be, from 0 to 1.
    """

    least: Share = 0.02
    least_sampled: Share = 0.1
    confidence: Share = 0.5


class MemoryGrowth(_Growing[GrowthOptions]):
    """What is held between steps rises and does not come back."""

    id = MEMORY_GROWTH
    options_type = GrowthOptions

    def _judge(self, event: Any, rank: int | None, device: str, followed: _Followed) -> Iterator[FindingRaised]:
        trend = followed.trend
        if trend is None:
            yield from self._clear(event, rank, device, followed)
            return
        if trend.confidence < self.options.confidence:
            return
        limit = self._limit(rank, device, followed)
        least = self.options.least if followed.stepped else self.options.least_sampled
        whole = limit if limit is not None else trend.height(trend.since)
        if trend.risen < least * whole or trend.until - trend.since < (_LEAST_STEPS if followed.stepped else 0):
            return
        if followed.said is None:
            followed.since = trend.since
        followed.matched = followed.growth.newest
        followed.since = min(followed.since, trend.since)
        severity: Severity = "info"
        if limit is None:
            # Nobody knows where it ends; twice of what it began with is a lot.
            severity = "warning" if trend.risen > trend.height(trend.since) else "info"
        else:
            forecast = followed.growth.forecast(limit, trend)
            if forecast is not None and not (followed.stepped and self._ends_in_time(rank, forecast.step)):
                severity = "warning"
        worse = SEVERITIES[severity] > SEVERITIES[followed.severity]
        if followed.said is not None and not worse and trend.risen < 2 * followed.said:
            return
        followed.said = trend.risen
        followed.severity = severity if worse else followed.severity
        yield self.finding(
            event,
            followed.severity,
            rank=rank,
            key=device,
            evidence={
                "device": device,
                ("bytes_per_step" if followed.stepped else "bytes_per_second"): trend.rate,
                "since": round(followed.since) if followed.stepped else None,
                "seconds": None if followed.stepped else trend.until - trend.since,
                "risen": trend.height(followed.growth.newest) - trend.height(followed.since),
                "held": followed.growth.trough,
                "limit": limit,
                "confidence": round(trend.confidence, 2),
            },
        )


class OomOptions(Options, frozen=True, kw_only=True):
    """Options of :class:`OomForecast`.

    Attributes:
        confidence: How sure the growth must be, from 0 to 1.
        steps: It is critical when no more steps than this are left at the early end of the interval …
        latency: … and those that are made in this many seconds, until a halt has come through …
        share: … or this share of all steps until then, if that is more.
    """

    action: Action = "halt"
    act_at: Severity = "critical"
    confidence: Share = 0.6
    steps: Count = 20
    latency: Seconds = 1.5
    share: Share = 0.05


class OomForecast(_Growing[OomOptions]):
    """Memory ends before the training does."""

    id = OOM_FORECAST
    options_type = OomOptions
    listens = (StepEnded, Sampled, RunStarted, PhaseEntered)

    def __init__(self, options: OomOptions) -> None:
        super().__init__(options)
        self._saving: dict[_Place, float] = {}

    def observe(self, event: Any, rank: int | None) -> Iterator[FindingRaised]:
        """See :class:`~trainwatch.rules.base.Rule`."""
        if type(event) is PhaseEntered:
            if event.left == "save":
                for device, values in event.peak.items():
                    followed = self._followed.get((rank, device))
                    extra = values.get("memory/peak", math.nan) - (followed.growth.trough if followed else math.nan)
                    if extra > self._saving.get((rank, device), 0.0) and extra < math.inf:
                        self._saving[rank, device] = extra
            return
        yield from super().observe(event, rank)

    def _judge(self, event: Any, rank: int | None, device: str, followed: _Followed) -> Iterator[FindingRaised]:
        trend, growth = followed.trend, followed.growth
        limit = None if trend is None else self._limit(rank, device, followed)
        forecast = None if limit is None else growth.forecast(limit, trend)
        if (
            trend is None
            or limit is None
            or forecast is None
            or forecast.confidence < self.options.confidence
            or (followed.stepped and trend.until - trend.since < _LEAST_STEPS)
            or (followed.stepped and self._ends_in_time(rank, forecast.low))
        ):
            yield from self._clear(event, rank, device, followed)
            return
        if followed.said is None:
            followed.since = trend.since
        followed.since = min(followed.since, trend.since)
        followed.matched = growth.newest
        severity: Severity = "warning"
        # Where the training may just come to its end, it is told and not halted.
        sure = followed.stepped and not self._ends_in_time(rank, forecast.step)
        if sure and self._is_near(rank, device, followed, forecast, limit):
            severity = "critical"
        worse = followed.said is None or SEVERITIES[severity] > SEVERITIES[followed.severity]
        ahead = forecast.step - growth.newest
        # Said again when half of what was left is gone, while there is something left to halve.
        if not worse and (followed.said is None or ahead >= followed.said / 2 or severity == "critical"):
            return
        followed.said = ahead
        if worse:
            followed.severity = severity
        yield self.finding(
            event,
            followed.severity,
            rank=rank,
            key=device,
            evidence=_evidence(device, followed, forecast, limit),
        )

    def _is_near(self, rank: int | None, device: str, followed: _Followed, forecast: Forecast, limit: float) -> bool:
        options, growth = self.options, followed.growth
        least = options.steps + (options.latency / followed.seconds if followed.seconds > 0 else 0.0)
        near = max(least, options.share * (forecast.step - self._first.get(rank, 0)))
        if forecast.low - growth.newest <= near:
            return True
        # The halt saves a checkpoint, and that takes memory, too.
        extra = self._saving.get((rank, device), 0.0)
        saving = growth.forecast(limit - extra, followed.trend) if extra else None
        return saving is not None and saving.low - growth.newest <= least


def _evidence(device: str, followed: _Followed, forecast: Forecast, limit: float) -> dict[str, Any]:
    now, seconds = followed.growth.newest, followed.seconds
    left = [forecast.step - now, forecast.low - now, forecast.high - now]
    first, last, risen = forecast.based_on
    evidence: dict[str, Any] = {"device": device, "limit": limit, "held": followed.growth.trough, "risen": risen}
    evidence["confidence"] = round(forecast.confidence, 2)
    if not followed.stepped:
        return evidence | {
            "bytes_per_second": forecast.bytes_per_step,
            "seconds_left": left[0],
            "seconds_low": left[1],
            "seconds_high": left[2],
            "seconds": last - first,
        }
    return evidence | {
        "bytes_per_step": forecast.bytes_per_step,
        "oom_step": round(forecast.step),
        "steps_left": round(left[0]),
        "steps_low": math.floor(left[1]),
        "steps_high": math.ceil(left[2]),
        "since": round(followed.since),
        "window": round(last - first),
        "seconds_left": left[0] * seconds if seconds > 0 else None,
    }
