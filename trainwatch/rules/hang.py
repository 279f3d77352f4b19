"""A run that lives and does not go on.

The agent's samples are the clock: they come while the process lives, also when its journal stands still. Only the time
that samples cover counts, so that neither an agent that was started late and reads an old journal, nor a machine that
slept, nor a clock that was set looks like a hang.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any, Final

from trainwatch.events import (
    CheckpointSaved,
    Evaluated,
    FindingRaised,
    Logged,
    Phase,
    PhaseEntered,
    ProcessGone,
    RunEnded,
    RunStarted,
    Sampled,
    Severity,
    StepEnded,
)
from trainwatch.rules.base import Options, Positive, Rule, Seconds
from trainwatch.rules.window import RunningMedian

# A longer pause between samples counts as this much.
_FARTHEST: Final = 30.0
_REMEMBERED: Final = 64
# The first steps of a process compile, tune and fill caches.
_WARM_UP_STEPS: Final = 3
_BESIDE: Final = ("eval", "save", "load")


class HangOptions(Options, frozen=True, kw_only=True):
    """Options of :class:`Hang`.

    Attributes:
        factor: How many times the usual step it is a warning after.
        longest: How many times the longest of the newest steps, evaluations or saves at least.
        least: How many seconds at least.
        least_beside: How many seconds at least in an evaluation or a save.
        unknown: After how many seconds when nothing of the kind was seen yet.
        critical: How many times that, and `critical_seconds` at least, it is critical after.
        critical_seconds: How many seconds at least it is critical after.
    """

    factor: Positive = 10.0
    longest: Positive = 3.0
    least: Seconds = 120.0
    least_beside: Seconds = 300.0
    unknown: Seconds = 1200.0
    critical: Positive = 2.0
    critical_seconds: Seconds = 600.0


class _Rank:
    """What is known of one rank."""

    __slots__ = ("beside", "intervals", "last", "phase", "sampled_at", "step", "step_at", "steps", "stood", "taken")

    def __init__(self, last: int = 0) -> None:
        self.last = last
        self.step: int | None = None
        self.phase: Phase | None = None
        self.stood = 0.0
        self.sampled_at: float | None = None
        self.step_at: float | None = None
        self.steps = 0
        self.taken = False
        self.intervals = RunningMedian(_REMEMBERED)
        self.beside: dict[str, float] = {}


class Hang(Rule[HangOptions]):
    """No step has ended for many times the usual while the process lives."""

    id = "hang"
    listens = (Sampled, StepEnded, PhaseEntered, Logged, Evaluated, CheckpointSaved, RunStarted, RunEnded, ProcessGone)
    options_type = HangOptions

    def __init__(self, options: HangOptions) -> None:
        super().__init__(options)
        self._ranks: dict[int | None, _Rank] = {}
        self._said: Severity | None = None
        self._of: int | None = None

    def observe(self, event: Any, rank: int | None) -> Iterable[FindingRaised]:
        """See :class:`~trainwatch.rules.base.Rule`."""
        kind = type(event)
        if kind is Sampled:
            state = self._ranks.get(rank)
            if state is None:
                return ()
            last, state.sampled_at = state.sampled_at, event.time
            # What was imported has readings and no phases: nobody can tell whether it stood still.
            if last is None or not state.taken:
                return ()
            passed = event.time - last
            if passed > 0.0:
                state.stood += passed if passed < _FARTHEST else _FARTHEST
                stood, options = state.stood, self.options
                if stood >= options.least or stood >= options.unknown or stood >= options.least_beside:
                    return self._judge(event, rank, state)
            return ()
        if kind is RunEnded or kind is ProcessGone:
            gone = event.rank if kind is ProcessGone else rank
            self._ranks.pop(gone, None)
            return self._over(event) if self._of == gone or not self._ranks else ()
        state = self._ranks.get(rank)
        if state is None or kind is RunStarted:
            state = self._ranks[rank] = _Rank(event.max_steps if kind is RunStarted else 0)
            if kind is RunStarted:
                return self._over(event)
        state.stood = 0.0
        if kind is StepEnded:
            self._step(event, state)
            return self._over(event) if self._said is not None and self._of == rank else ()
        if kind is PhaseEntered:
            self._phase(event, state)
        return ()

    @staticmethod
    def _step(event: StepEnded, state: _Rank) -> None:
        state.taken = True
        state.steps += 1
        if state.step_at is not None and state.steps > _WARM_UP_STEPS:
            passed = event.time - state.step_at
            if passed > 0.0:
                state.intervals.add(passed)
        state.step, state.step_at = event.step, event.time

    @staticmethod
    def _phase(event: PhaseEntered, state: _Rank) -> None:
        state.taken = True
        state.phase = event.phase
        if event.left in _BESIDE:
            # The time of an evaluation or a save is none of the step's.
            state.step_at = None
            if 0.0 < event.seconds < math.inf:
                state.beside[event.left] = max(state.beside.get(event.left, 0.0), event.seconds)

    def _over(self, event: Any) -> Iterable[FindingRaised]:
        if self._said is None:
            return ()
        self._said = None
        return (self.cleared(event),)

    def _limit(self, state: _Rank) -> tuple[float, float | None]:
        """Returns how long is too long where a rank stands, and what is usual there; None for not known."""
        options = self.options
        if state.phase in _BESIDE:
            longest_beside = state.beside.get(state.phase or "")
            if longest_beside is None:
                return options.unknown, None
            return max(options.least_beside, options.longest * longest_beside), longest_beside
        usual = state.intervals.median
        # After the last step comes what was never seen before: the best checkpoint is loaded, reports are written.
        if math.isnan(usual) or 0 < state.last <= (state.step or 0):
            return options.unknown, None
        longest = state.intervals.quantile(1.0)
        return max(options.least, options.factor * usual, options.longest * longest), usual

    def _judge(self, event: Sampled, rank: int | None, state: _Rank) -> Iterable[FindingRaised]:
        if self._said == "critical":
            return ()
        limit, usual = self._limit(state)
        if state.stood < limit:
            return ()
        severity: Severity = "warning"
        if usual is None and state.phase in ("eval", "load"):
            severity = "info"  # the first evaluation may take as long as it takes
        elif state.stood >= max(self.options.critical * limit, self.options.critical_seconds):
            severity = "critical"
        if severity == self._said or (self._said == "warning" and severity == "info"):
            return ()
        self._said, self._of = severity, rank
        standing = {number: one for number, one in self._ranks.items() if one.taken and number is not None}
        evidence: dict[str, Any] = {
            "seconds": state.stood,
            "usual": usual,
            "phase": state.phase,
            "step": state.step,
            "where": [
                {"rank": number, "step": one.step, "phase": one.phase, "seconds": round(one.stood, 1)}
                for number, one in sorted(standing.items())[:64]
            ],
            "behind": behind(standing),
        }
        return (self.finding(event, severity, step=state.step, evidence=evidence),)


def behind(ranks: dict[int, _Rank]) -> list[int]:
    """Returns the ranks that did not come as far as the others: fewer steps, or another phase than most."""
    if len(ranks) < 2:
        return []
    places = {rank: (-1 if one.step is None else one.step, one.phase) for rank, one in ranks.items()}
    farthest = max(step for step, _ in places.values())
    slow = [rank for rank, (step, _) in places.items() if step < farthest]
    if slow:
        return sorted(slow)
    # All have done the same steps: the few that are in another phase than most stand apart.
    phases = [phase for _, phase in places.values()]
    common = max(set(phases), key=lambda phase: (phases.count(phase), str(phase)))
    apart = sorted(rank for rank, (_, phase) in places.items() if phase != common)
    return apart if len(apart) * 2 < len(places) else []
