"""A run that was taken up again: of steps that were done twice, the newest attempt counts.

A process that resumes from a checkpoint does steps again that its predecessor had done after it. On the axis of steps
only the newest of them are drawn, or curves would go back and cross themselves; on the axis of time nothing happened
twice, and everything is shown.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from trainwatch.charts.columns import Column
from trainwatch.charts.marks import Marks


class Attempt(NamedTuple):
    """A process of a rank.

    Attributes:
        started_at: When it began to train, in Unix seconds.
        first_step: The first step that it finished. Not the one it said it would begin with: what it has not done
            yet replaces nothing.
        world_size: Of how many ranks its launch was; 0 when unknown.
    """

    rank: int
    started_at: float
    first_step: int
    world_size: int = 0


class Cut(NamedTuple):
    """What was recorded before `time` of `step` and later ones was done again since."""

    time: float
    step: int


@dataclass(frozen=True)
class Cuts:
    """What of each rank was done again.

    Args:
        attempts: All processes of all ranks that finished a step.
    """

    attempts: tuple[Attempt, ...] = ()

    def of(self, rank: int | None) -> list[Cut]:
        """Returns the cuts in a rank's records. A rank that a smaller launch no longer has is cut by that launch."""
        if rank is None:
            return []
        return [
            Cut(one.started_at, one.first_step)
            for one in self.attempts
            if one.rank == rank or 0 < one.world_size <= rank
        ]

    def replaced(self, rank: int | None, step: int | None, time: float | None) -> bool:
        """Tells whether something of a step was done again since."""
        if step is None or time is None:
            return False
        return any(time < cut.time and step >= cut.step for cut in self.of(rank))

    def mask(self, rank: int | None, step: NDArray[np.int64], time: NDArray[np.float64]) -> NDArray[np.bool_]:
        """Tells of each point whether it still counts."""
        keep = np.ones(step.size, np.bool_)
        for cut in self.of(rank):
            keep &= ~((time < cut.time) & (step >= cut.step))
        return keep


def newest(columns: Sequence[Column], cuts: Cuts) -> list[Column]:
    """Leaves out what was done again; for the axis of steps.

    A node's readings know no step and are placed by the clock of those that do: they are left out where what happened
    meanwhile was left out.
    """
    if len({one.started_at for one in cuts.attempts}) < 2:
        return list(columns)
    kept: list[Column] = []
    lost: defaultdict[float, float] = defaultdict(lambda: np.inf)
    for column in columns:
        keep = cuts.mask(column.rank, column.step, column.time)
        for cut in cuts.of(column.rank):
            gone = column.time[(column.time < cut.time) & (column.step >= cut.step)]
            if gone.size:
                lost[cut.time] = min(lost[cut.time], float(gone.min()))
        kept.append(column if keep.all() else column.take(keep))
    if not lost:
        return kept
    return [_without(column, lost.items()) if column.rank is None else column for column in kept]


def newest_marks(marks: Marks, cuts: Cuts) -> Marks:
    """Leaves out the marks of what was done again. Checkpoints stay: they lie on the disk all the same."""
    return Marks(
        phases=[span for span in marks.phases if not cuts.replaced(span.rank, span.start_step, span.start)],
        checkpoints=marks.checkpoints,
        nonfinite=[mark for mark in marks.nonfinite if not cuts.replaced(mark.rank, mark.step, mark.time)],
        end=marks.end,
    )


def _without(column: Column, stretches: Iterable[tuple[float, float]]) -> Column:
    keep = np.ones(column.time.size, np.bool_)
    for end, begin in stretches:
        keep &= ~((column.step < 0) & (column.time >= begin) & (column.time < end))
    return column if keep.all() else column.take(keep)
