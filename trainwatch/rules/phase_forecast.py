"""Phases beside training: an evaluation, a save or the first update will need more memory than is left."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar, Final

from trainwatch.events import Event, FindingRaised, Phase, PhaseEntered, RunStarted, Sampled, StepEnded
from trainwatch.forecast.limits import Limits
from trainwatch.forecast.phases import EvalRise, Need, PhaseMemory, Sizes, next_at, sizes_of
from trainwatch.rules.base import Count, Options, Rule, Share

PHASE_FORECAST: Final = "phase_forecast"
EVAL_ACCUMULATION: Final = "eval_accumulation"

_EVERY: Final = 16
_PHASES: Final[tuple[Phase, ...]] = ("eval", "save")
_CHANGED: Final = 0.05


class PhaseForecastOptions(Options, frozen=True, kw_only=True):
    """Options of :class:`PhaseForecast`.

    Attributes:
        margin: Share of the limit by which it must be exceeded: readings of other processes move a little.
    """

    margin: Share = 0.0


class PhaseForecast(Rule[PhaseForecastOptions]):
    """The next evaluation, the next save or the first update will need more memory than there is."""

    id = PHASE_FORECAST
    listens: ClassVar[tuple[type[Event], ...]] = (RunStarted, StepEnded, Sampled, PhaseEntered)
    options_type = PhaseForecastOptions

    def __init__(self, options: PhaseForecastOptions) -> None:
        super().__init__(options)
        self._limits = Limits()
        self._started: dict[int | None, tuple[RunStarted, Sizes]] = {}
        self._memories: dict[tuple[int | None, str], PhaseMemory] = {}
        self._saved: set[int | None] = set()
        self._count: dict[int | None, int] = {}
        self._said: dict[tuple[int | None, str], tuple[float, int | None]] = {}

    def observe(self, event: Any, rank: int | None) -> Iterator[FindingRaised]:
        """See :class:`~trainwatch.rules.base.Rule`."""
        kind = type(event)
        self._limits.observe(event, rank)
        if kind is StepEnded:
            count = self._count[rank] = self._count.get(rank, -1) + 1
            if not count:
                yield from self._updated(event, rank)
            for device, values in event.devices.items():
                held = values.get("memory/allocated") or values.get("memory/resident")
                if held is not None:
                    self._memory(rank, device).rests(held)
            # Memory between steps hardly moves; what came of it is looked at now and then.
            if count % _EVERY == 0:
                yield from self._look(event, rank)
        elif kind is Sampled:
            if rank is not None or event.rank is not None:
                self._sampled(event, event.rank if event.rank is not None else rank)
        elif kind is PhaseEntered:
            yield from self._entered(event, rank)
        elif kind is RunStarted:
            self._forget(rank)
            self._started[rank] = (event, sizes_of(event))

    def _sampled(self, event: Sampled, rank: int | None) -> None:
        # Beside an accelerator no step tells of the process's own memory.
        values = event.devices.get("cpu")
        if values is not None and event.phase in (None, "train"):
            held = values.get("memory/resident")
            if held is not None and self._steps_tell_nothing(rank):
                self._memory(rank, "cpu").rests(held)

    def _steps_tell_nothing(self, rank: int | None) -> bool:
        started = self._started.get(rank)
        devices = None if started is None else started[0].model.get("devices")
        return isinstance(devices, list) and "cpu" not in devices

    def _memory(self, rank: int | None, device: str) -> PhaseMemory:
        memory = self._memories.get((rank, device))
        if memory is None:
            memory = self._memories[rank, device] = PhaseMemory()
        return memory

    def _entered(self, event: PhaseEntered, rank: int | None) -> Iterator[FindingRaised]:
        if event.left in _PHASES:
            for device, values in event.peak.items():
                peak = values.get("memory/peak")
                if peak is not None:
                    self._memory(rank, device).left(event.left, peak)
            if event.left == "save":
                self._saved.add(rank)
            yield from self._look(event, rank)
        elif event.left == "load" and not self._count.get(rank):
            yield from self._first_update(event, rank)

    def _first_update(self, event: PhaseEntered, rank: int | None) -> Iterator[FindingRaised]:
        """Before the first step: the weights are there, gradients and the optimizer's states are not."""
        started = self._started.get(rank)
        if started is None or not started[1].state or started[0].first_step:
            return
        run, sizes = started
        for device, values in event.peak.items():
            limit = self._limits.limit(rank, device)
            loaded = values.get("memory/peak", 0.0)
            if limit is None or device not in run.model.get("devices", ()) or not loaded >= sizes.weights:
                continue
            least = loaded + sizes.gradients + sizes.state
            if least > limit * (1 + self.options.margin):
                self._said[rank, f"update {device}"] = (least, 1)
                yield self._found(event, rank, device, "update", Need(least, least, least, 0), limit, 1)

    def _updated(self, event: StepEnded, rank: int | None) -> Iterator[FindingRaised]:
        """The first update was made: there was room for it after all."""
        for place in [place for place in self._said if place[0] == rank and place[1].startswith("update ")]:
            del self._said[place]
            yield self.cleared(event, rank=rank, key=place[1])

    def _look(self, event: StepEnded | PhaseEntered, rank: int | None) -> Iterator[FindingRaised]:
        started = self._started.get(rank)
        for (whose, device), memory in self._memories.items():
            if whose != rank:
                continue
            limit = self._limits.limit(rank, device)
            if limit is None:
                continue
            for phase in _PHASES:
                need = memory.need(phase)
                at = None if started is None else next_at(started[0], phase, event.step)
                if need is None and phase == "save" and at is not None and started is not None:
                    need = self._first_save(memory, started[1], device, rank)
                place = (rank, f"{phase} {device}")
                if need is not None and need.low > limit * (1 + self.options.margin):
                    said = self._said.get(place)
                    if said is None or said[1] != at or abs(need.peak - said[0]) > _CHANGED * said[0]:
                        self._said[place] = (need.peak, at)
                        yield self._found(event, rank, device, phase, need, limit, at)
                elif place in self._said:
                    del self._said[place]
                    yield self.cleared(event, rank=rank, key=place[1])

    def _first_save(self, memory: PhaseMemory, sizes: Sizes, device: str, rank: int | None) -> Need | None:
        """A save copies weights that lie on an accelerator to the host, all of them, before it writes them.

        Measured: those that lie on the host already are written from where they are (safetensors 0.8).
        """
        if device != "cpu" or rank not in (0, None) or rank in self._saved or not self._steps_tell_nothing(rank):
            return None
        if not (memory.resting > 0 and sizes.weights > 0):
            return None
        need = memory.resting + sizes.weights
        return Need(need, need, need, 0)

    def _found(
        self,
        event: StepEnded | PhaseEntered,
        rank: int | None,
        device: str,
        phase: str,
        need: Need,
        limit: float,
        at: int | None,
    ) -> FindingRaised:
        evidence = {
            "device": device,
            "phase": phase,
            "at": at,
            "need": need.peak,
            "low": need.low,
            "high": need.high,
            "limit": limit,
            "more": need.peak - limit,
            "seen": need.seen,
        }
        return self.finding(event, "warning", rank=rank, key=f"{phase} {device}", evidence=evidence)

    def _forget(self, rank: int | None) -> None:
        for place in [place for place in self._memories if place[0] == rank]:
            del self._memories[place]
        for name in [name for name in self._said if name[0] == rank]:
            del self._said[name]
        self._saved.discard(rank)
        self._count.pop(rank, None)


class EvalAccumulationOptions(Options, frozen=True, kw_only=True):
    """Options of :class:`EvalAccumulation`.

    Attributes:
        least: Share of the limit that an evaluation must have added before anything is said.
        readings: How many readings a rise must go on for.
    """

    least: Share = 0.05
    readings: Count = 20


class EvalAccumulation(Rule[EvalAccumulationOptions]):
    """Memory rises from the begin of an evaluation to its end: predictions are kept where the model computes."""

    id = EVAL_ACCUMULATION
    listens: ClassVar[tuple[type[Event], ...]] = (RunStarted, StepEnded, Sampled, PhaseEntered)
    options_type = EvalAccumulationOptions

    def __init__(self, options: EvalAccumulationOptions) -> None:
        super().__init__(options)
        self._limits = Limits()
        self._rises: dict[tuple[int | None, str], EvalRise] = {}
        self._began: dict[int | None, float] = {}
        self._lasts: dict[int | None, float] = {}
        self._said: dict[tuple[int | None, str], float] = {}

    def observe(self, event: Any, rank: int | None) -> Iterator[FindingRaised]:
        """See :class:`~trainwatch.rules.base.Rule`."""
        kind = type(event)
        self._limits.observe(event, rank)
        if kind is Sampled:
            if event.phase == "eval" and rank in self._began:
                yield from self._sampled(event, rank)
        elif kind is PhaseEntered:
            if event.phase == "eval":
                self._began[rank] = event.time
                self._forget(rank)
            elif event.left == "eval":
                self._began.pop(rank, None)
                if event.seconds > 0:
                    self._lasts[rank] = event.seconds
                for place in [place for place in self._said if place[0] == rank]:
                    del self._said[place]
                    yield self.cleared(event, rank=rank, key=place[1])
        elif kind is RunStarted:
            self._began.pop(rank, None)
            self._lasts.pop(rank, None)
            self._forget(rank)

    def _forget(self, rank: int | None) -> None:
        for place in [place for place in self._rises if place[0] == rank]:
            del self._rises[place]

    def _sampled(self, event: Sampled, rank: int | None) -> Iterator[FindingRaised]:
        for device, values in event.devices.items():
            used = values.get("memory/process_used") or values.get("memory/device_used")
            if device == "cpu":
                used = values.get("memory/resident")
            if used is None:
                continue
            place = (rank, device)
            rise = self._rises.get(place)
            if rise is None:
                rise = self._rises[place] = EvalRise()
            rise.add(event.time, used)
            rate = rise.rate() if rise.count >= self.options.readings and rise.count % 4 == 0 else None
            limit = self._limits.capacity(rank, device)
            if rate is None or limit is None or rate * rise.seconds < self.options.least * limit:
                continue
            left = (limit - used) / rate
            lasts = self._lasts.get(rank)
            ends = None if lasts is None else max(self._began[rank] + lasts - event.time, 0.0)
            runs_out = left <= ends if ends is not None else left < 2 * rise.seconds
            said = self._said.get(place)
            if said is not None and not (runs_out and said < 1):
                continue
            self._said[place] = 1.0 if runs_out else 0.5
            yield self.finding(
                event,
                "warning" if runs_out else "info",
                rank=rank,
                key=device,
                evidence={
                    "device": device,
                    "rate": rate,
                    "risen": rate * rise.seconds,
                    "seconds": rise.seconds,
                    "left": left,
                    "runs_out": runs_out,
                },
            )
