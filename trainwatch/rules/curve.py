"""The curves of a run that rules judge: its loss and its gradient norm, whoever recorded them.

A live run has them in every finished step, and once more in what the Trainer logs, where the loss is an average that
hides NaN. An imported run has the log alone. A rule takes the better of the two and never both.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any, Final

from trainwatch.events import Event, FindingRaised, Logged, StepEnded
from trainwatch.rules.base import O, Rule, is_first
from trainwatch.rules.window import RunningMedian

LISTENS: Final[tuple[type[Event], ...]] = (StepEnded, Logged)
"""The events that hold a curve."""


class Curve:
    """One curve of a run.

    Attributes:
        restarted: The value taken last does not go on from the one before: the run went back to an earlier step, where
            its loss was another one, or the finished steps took the place of the log.
        live: It is read from finished steps.
    """

    __slots__ = ("_logged", "_raw", "_step", "live", "restarted")

    def __init__(self, raw: str, logged: str) -> None:
        self._raw = raw
        self._logged = logged
        self._step = -1
        self.live = False
        self.restarted = False

    def take(self, event: StepEnded | Logged) -> float | None:
        """Returns the value that the event adds to the curve; None for nothing."""
        if type(event) is StepEnded:
            value = event.values.get(self._raw)
            if value is None:
                return None
            self.restarted = not self.live and self._step >= 0
            self.live = True
        else:
            if self.live:
                return None
            value = event.values.get(self._logged)
            if value is None:
                return None
            self.restarted = False
        step = event.step
        if step < self._step:
            self.restarted = True
        self._step = step
        return value


def loss_curve() -> Curve:
    """Returns the curve of the training loss."""
    return Curve("train/loss", "train/loss_logged")


def gradient_curve() -> Curve:
    """Returns the curve of the gradient norm before clipping."""
    return Curve("train/grad_norm", "train/grad_norm")


class LossRule(Rule[O]):
    """A rule that judges the run's loss, one finite value after the other."""

    listens = LISTENS

    def __init__(self, options: O) -> None:
        super().__init__(options)
        self._curve = loss_curve()

    def observe(self, event: Any, rank: int | None) -> Iterable[FindingRaised]:
        """See :class:`~trainwatch.rules.base.Rule`."""
        if not is_first(rank):
            return ()
        loss = self._curve.take(event)
        if loss is None:
            return ()
        if self._curve.restarted and self._restart():
            return (self.cleared(event),)
        # What is not finite is another rule's.
        return self._judge(event, loss) if math.isfinite(loss) else ()

    def _restart(self) -> bool:
        """Forgets the curve so far; returns whether something had been found in it."""
        raise NotImplementedError

    def _judge(self, event: Any, loss: float) -> Iterable[FindingRaised]:
        """Takes the next value, which is finite."""
        raise NotImplementedError


class Level:
    """Where a curve runs, and how far its values scatter upwards: relative to that, a value is high or not.

    The height of a value is measured in two ways. Its *rise* is relative to the level itself (0.5: half as much again),
    or to four times the scatter where that is more, as it is of a loss around 0, which may be negative. Its *score* is
    relative to the scatter alone. The scatter is the distance from the median up to the 90th percentile, which needs no
    shape of the noise: losses of single samples are anything but normal.

    Args:
        median: Of the window.
        high: The 90th percentile of the window.
        smallest: Below this, differences mean nothing: the values are as good as 0.
        count: How many values it rests on.
    """

    __slots__ = ("_scatter", "_unit", "count", "median")

    def __init__(self, median: float, high: float, smallest: float, count: int) -> None:
        self.median = median
        self.count = count
        # A scatter seen in few values is a guess that is mostly too low.
        few = 1.0 + 2.0 / count
        self._scatter = max((high - median) * few, 0.03 * abs(median), smallest, 1e-12)
        self._unit = max(abs(median), 4.0 * self._scatter)

    def rise(self, value: float) -> float:
        """Returns how far a value lies above the level, relative to it."""
        return (value - self.median) / self._unit

    def score(self, value: float) -> float:
        """Returns how far a value lies above the level, in units of its scatter."""
        return (value - self.median) / self._scatter


class LevelWindow:
    """The level of the newest values.

    Args:
        size: How many values count.
        fewest: From how many on there is a level.
    """

    __slots__ = ("_beginning", "_fewest", "_first", "_values")

    def __init__(self, size: int, fewest: int) -> None:
        self._values = RunningMedian(size)
        self._fewest = fewest
        self._first: list[float] = []
        self._beginning = 0.0

    def add(self, value: float) -> None:
        """Takes the next value."""
        if len(self._first) < 5 and math.isfinite(value):
            self._first.append(value)
            self._beginning = abs(sorted(self._first)[len(self._first) // 2])
        self._values.add(value)

    def resize(self, size: int) -> None:
        """Counts more or fewer values from here on.

        Args:
            size: How many.
        """
        self._values.resize(size)

    @property
    def median(self) -> float:
        """The median; NaN while there is no level."""
        return self._values.median if len(self._values) >= self._fewest else math.nan

    def level(self) -> Level:
        """Returns the level as it is now."""
        values = self._values
        # A curve that fell to a thousandth of where it began has nothing left to lose.
        return Level(values.median, values.quantile(0.9), 1e-3 * self._beginning, len(values))
