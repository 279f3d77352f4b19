"""A batch is still to come that will not fit: said long before it arrives, with an interval."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar, Final

from trainwatch.events import Action, Event, FindingRaised, RunStarted, Sampled, Severity, StepEnded
from trainwatch.forecast.length import LengthFit, Prediction
from trainwatch.forecast.limits import Limits
from trainwatch.forecast.remedies import longest_that_fits
from trainwatch.forecast.upcoming import Coming, Upcoming, largest_micro_batch
from trainwatch.rules.base import Count, Options, Positive, Rule, Share

PEAK_FORECAST: Final = "peak_forecast"

CPU: Final = "cpu"

_FIRST_STEPS: Final = 2
_PACE: Final = 10
_CHANGED: Final = 0.05


class PeakForecastOptions(Options, frozen=True, kw_only=True):
    """Options of :class:`PeakForecast`.

    Attributes:
        near: A batch that comes within so many steps is near.
        sure: Half the interval's width, as a share of the peak, up to which a forecast is sure.
        farthest: How many times as large as the largest batch seen a batch may be for anything to be said of it.
    """

    action: Action = "halt"
    act_at: Severity = "critical"
    near: Count = 50
    sure: Share = 0.05
    farthest: Positive = 10.0


class PeakForecast(Rule[PeakForecastOptions]):
    """The longest sample has not been seen yet, and its batch will need more memory than there is."""

    id = PEAK_FORECAST
    listens: ClassVar[tuple[type[Event], ...]] = (RunStarted, StepEnded, Sampled)
    options_type = PeakForecastOptions

    def __init__(self, options: PeakForecastOptions) -> None:
        super().__init__(options)
        self._limits = Limits()
        self._upcoming: dict[int | None, Upcoming] = {}
        self._fits: dict[tuple[int | None, str], LengthFit] = {}
        self._held: dict[tuple[int | None, str], float] = {}
        self._due: dict[int | None, int] = {}
        self._steps: dict[int | None, int] = {}
        self._said: dict[tuple[int | None, str], tuple[Severity, float, int | None]] = {}

    def observe(self, event: Any, rank: int | None) -> Iterator[FindingRaised]:
        """See :class:`~trainwatch.rules.base.Rule`."""
        self._limits.observe(event, rank)
        kind = type(event)
        if kind is StepEnded:
            upcoming = self._upcoming.get(rank)
            if upcoming is not None:
                yield from self._step(event, rank, upcoming)
        elif kind is RunStarted:
            self._start(event, rank)

    def _start(self, event: RunStarted, rank: int | None) -> None:
        upcoming = Upcoming(event.dataset, event.first_step)
        of: dict[Any, Any]
        for of in (self._fits, self._held, self._said):
            for place in [place for place in of if place[0] == rank]:
                of.pop(place)
        self._steps[rank] = self._due[rank] = 0
        self._upcoming.pop(rank, None)
        if upcoming.known:
            self._upcoming[rank] = upcoming

    def _step(self, event: StepEnded, rank: int | None, upcoming: Upcoming) -> Iterator[FindingRaised]:
        seen = self._steps[rank] = self._steps[rank] + 1
        upcoming.saw(event.step, event.values)
        batch = largest_micro_batch(event.values)
        held = {device: self._held.get((rank, device), 0.0) for device in event.devices}
        for device, values in event.devices.items():
            self._held[rank, device] = values.get("memory/resident", 0.0)
        # Within the first step there are no optimizer's states yet, and libraries load.
        if seen <= _FIRST_STEPS or batch is None:
            return
        for device, values in event.devices.items():
            peak = values.get("memory/peak")
            if peak is not None:
                fit = self._fits.get((rank, device))
                if fit is None:
                    fit = self._fits[rank, device] = LengthFit(floored=device != CPU)
                fit.add(batch, peak, held[device])
        if seen < self._due[rank] and not self._is_over(event.step, rank):
            return
        self._due[rank] = seen + 1 + seen // _PACE
        coming = upcoming.coming(event.step)
        for device in event.devices:
            yield from self._judge(event, rank, device, coming)

    def _is_over(self, step: int, rank: int | None) -> bool:
        return any(
            said_rank == rank and said[2] is not None and (step >= said[2] or said[2] - step == self.options.near)
            for (said_rank, _), said in self._said.items()
        )

    def _judge(self, event: StepEnded, rank: int | None, device: str, coming: Coming | None) -> Iterator[FindingRaised]:
        place = (rank, device)
        fit = self._fits.get(place)
        limit = self._limits.limit(rank, device)
        prediction = None if fit is None or coming is None else fit.predict(coming.batch)
        if (
            fit is None
            or coming is None
            or limit is None
            or prediction is None
            or prediction.reach > self.options.farthest
            # Said when the whole interval is above the limit, and held up as long as its middle is.
            or not (prediction.peak if place in self._said else prediction.low) > limit
        ):
            if self._said.pop(place, None) is not None:
                yield self.cleared(event, rank=rank, key=device)
            return
        left = None if coming.step is None else coming.step - event.step
        sure = prediction.error <= self.options.sure and coming.complete
        severity: Severity = "critical" if sure and left is not None and left <= self.options.near else "warning"
        said = self._said.get(place)
        if (
            said is not None
            and said[0] == severity
            and said[2] == coming.step
            and abs(prediction.peak - said[1]) < _CHANGED * said[1]
        ):
            return
        self._said[place] = (severity, prediction.peak, coming.step)
        evidence = self._evidence(fit, coming, prediction, limit)
        cap = evidence["cap"]
        evidence["longer"] = None if cap is None else self._upcoming[rank].share_longer(cap)
        yield self.finding(event, severity, rank=rank, key=device, evidence={"device": device, **evidence})

    @staticmethod
    def _evidence(fit: LengthFit, coming: Coming, prediction: Prediction, limit: float) -> dict[str, Any]:
        return {
            "length": coming.length,
            "samples": coming.samples,
            "at": coming.step,
            "need": prediction.peak,
            "low": prediction.low,
            "high": prediction.high,
            "limit": limit,
            "steps": prediction.steps,
            "reach": round(prediction.reach, 2),
            "complete": coming.complete,
            "longest_seen": int(fit.longest),
            "cap": longest_that_fits(fit, coming.samples, coming.batch.length, limit),
        }
