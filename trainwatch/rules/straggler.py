"""A rank that is slower than the others of its node, so that all of them wait for it.

Whole steps cannot tell: ranks that reduce gradients together end each step together, and the waiting of the fast ones
hides in theirs. What a rank does before it meets the others is its own: loading data, and forward and backward passes
as the host sees them. On an accelerator the host runs ahead, and a slow *device* may stay unseen; a slow loader, CPU or
disk does not. Where ranks meet within the passes (sharded weights, pipelines) their times are alike: nothing is said.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any, Final

from trainwatch.events import FindingRaised, RunEnded, RunStarted, Severity, StepEnded
from trainwatch.rules.base import Count, Options, Positive, Rule, Share
from trainwatch.rules.throughput import WARM_UP_STEPS

# Ranks are read one after the other: how far one may be ahead.
_AHEAD: Final = 32
# Of the steps of a block, in how many the same rank must have been the slowest.
_MOSTLY: Final = 0.8


class StragglerOptions(Options, frozen=True, kw_only=True):
    """Options of :class:`Straggler`.

    Attributes:
        steps: Steps of a block; two in a row must show the same.
        factor: How many times the others' own time a rank must need.
        share: Which share of the step the others must lose by it, for a note.
        bad: Which share, for a warning.
    """

    steps: Count = 50
    factor: Positive = 1.25
    share: Share = 0.1
    bad: Share = 0.25


class _Sums:
    """What a rank took in the present block."""

    __slots__ = ("data", "own", "slowest", "whole")

    def __init__(self) -> None:
        self.own = self.data = self.whole = 0.0
        self.slowest = 0


class Straggler(Rule[StragglerOptions]):
    """One rank's own work lastingly takes longer than that of the node's other ranks."""

    id = "straggler"
    listens = (StepEnded, RunStarted, RunEnded)
    options_type = StragglerOptions
    actions = ("notify",)

    def __init__(self, options: StragglerOptions) -> None:
        super().__init__(options)
        self._seen: dict[int, int] = {}
        self._open: dict[int, dict[int, tuple[float, float, float]]] = {}
        self._sums: dict[int, _Sums] = {}
        self._complete = 0
        self._suspect: int | None = None
        self._said: tuple[int, Severity] | None = None

    def observe(self, event: Any, rank: int | None) -> Iterable[FindingRaised]:
        """See :class:`~trainwatch.rules.base.Rule`."""
        if rank is None:
            return ()
        if type(event) is not StepEnded:
            return self._comes_or_goes(event, rank)
        seen = self._seen.get(rank, 0) + 1
        self._seen[rank] = seen
        if len(self._seen) < 2 or seen <= WARM_UP_STEPS:
            return ()
        values = event.values
        own, data = values.get("train/compute_seconds", 0.0), values.get("train/data_seconds", 0.0)
        whole = values.get("train/step_seconds", 0.0) + data
        if not (0.0 < own < math.inf and data >= 0.0 and 0.0 < whole < math.inf):
            return ()
        step = self._open.setdefault(event.step, {})
        step[rank] = (own + data, data, whole)
        if len(step) < len(self._seen):
            if len(self._open) > _AHEAD:
                del self._open[next(iter(self._open))]
            return ()
        del self._open[event.step]
        self._fold(step)
        return self._judge(event) if self._complete >= self.options.steps else ()

    def _comes_or_goes(self, event: RunStarted | RunEnded, rank: int) -> Iterable[FindingRaised]:
        """Begins anew: with other processes, on another machine, or with fewer ranks."""
        if type(event) is RunStarted:
            self._seen[rank] = 0
        else:
            self._seen.pop(rank, None)
        self._open.clear()
        self._forget_block()
        self._suspect = None
        said, self._said = self._said, None
        return () if said is None else (self.cleared(event, rank=said[0]),)

    def _forget_block(self) -> None:
        self._sums = {rank: _Sums() for rank in self._seen}
        self._complete = 0

    def _fold(self, step: dict[int, tuple[float, float, float]]) -> None:
        if not self._sums or len(self._sums) != len(self._seen):
            self._forget_block()
        slowest, most = -1, -1.0
        for rank, (own, data, whole) in step.items():
            sums = self._sums[rank]
            sums.own += own
            sums.data += data
            sums.whole += whole
            if own > most:
                slowest, most = rank, own
        self._sums[slowest].slowest += 1
        self._complete += 1

    def _judge(self, event: StepEnded) -> Iterable[FindingRaised]:
        rank, sums = max(self._sums.items(), key=lambda item: item[1].own)
        others = sorted((one for number, one in self._sums.items() if number != rank), key=lambda one: one.own)
        usual, steps, ranks = others[len(others) // 2], self._complete, len(self._sums)
        self._forget_block()
        lost = (sums.own - usual.own) / sums.whole
        options = self.options
        shows = sums.own >= options.factor * usual.own and lost >= options.share and sums.slowest >= _MOSTLY * steps
        suspect, self._suspect = self._suspect, rank if shows else None
        found: list[FindingRaised] = []
        if self._said is not None and (suspect is None or suspect != self._said[0]) and self._suspect != self._said[0]:
            # Two blocks in a row without it: one alone may have been an accident.
            found.append(self.cleared(event, rank=self._said[0]))
            self._said = None
        if not shows or suspect != rank:
            return found
        severity: Severity = "warning" if lost >= options.bad else "info"
        if self._said is not None and (self._said == (rank, severity) or self._said == (rank, "warning")):
            return found
        self._said = (rank, severity)
        evidence = {
            "own": sums.own / steps,
            "usual": usual.own / steps,
            "lost": lost,
            "by_data": sums.data - usual.data >= 0.5 * (sums.own - usual.own),
            "steps": steps,
            "ranks": ranks,
        }
        return [*found, self.finding(event, severity, rank=rank, evidence=evidence)]
