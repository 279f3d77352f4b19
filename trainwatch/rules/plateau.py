"""Plateau: the loss is no lower than where the run began."""

from __future__ import annotations

from collections.abc import Iterable
from statistics import fmean
from typing import Any, Final

from trainwatch.events import FindingRaised
from trainwatch.rules.base import Count, Options, Share
from trainwatch.rules.curve import LossRule

_BLOCKS: Final = 32


class PlateauOptions(Options, frozen=True, kw_only=True):
    """Thresholds of :class:`Plateau`.

    Attributes:
        fewest: From how many logged values on it judges.
        fewest_steps: From how many steps on it judges a live run, whose every step has a loss.
        gain: Share of the loss by which a run must have come down from its beginning.
    """

    fewest: Count = 32
    fewest_steps: Count = 200
    gain: Share = 0.025


class Plateau(LossRule[PlateauOptions]):
    """The run learns nothing: its later half is as high as its beginning.

    The whole curve is kept as at most 32 means of equal length, which are merged in pairs as the run grows. A run that
    came down and then levels off is no plateau: that is how trainings end.
    """

    id = "plateau"
    options_type = PlateauOptions

    def __init__(self, options: PlateauOptions) -> None:
        super().__init__(options)
        self._forget()

    def _forget(self) -> None:
        self._matches = False
        self._means: list[float] = []
        self._size = 1
        self._sum = 0.0
        self._count = 0
        self._values = 0
        self._report_at = 0

    def _restart(self) -> bool:
        was = self._matches
        self._forget()
        return was

    def _judge(self, event: Any, loss: float) -> Iterable[FindingRaised]:
        self._values += 1
        self._sum += loss
        self._count += 1
        if self._count < self._size:
            return ()
        means = self._means
        means.append(self._sum / self._count)
        self._sum, self._count = 0.0, 0
        fewest = self.options.fewest_steps if self._curve.live else self.options.fewest
        found = self._compare(event) if self._values >= fewest else ()
        if len(means) == _BLOCKS:
            means[:] = [(means[i] + means[i + 1]) / 2 for i in range(0, _BLOCKS, 2)]
            self._size *= 2
        return found

    def _compare(self, event: Any) -> Iterable[FindingRaised]:
        means = self._means
        first = fmean(means[: len(means) // 4])
        last = fmean(means[len(means) // 2 :])
        if not (first - last < self.options.gain * abs(first)):
            if self._matches:
                self._matches = False
                return (self.cleared(event),)
            return ()
        if self._matches and self._values < self._report_at:
            return ()
        self._matches = True
        self._report_at = 2 * self._values
        return (self.finding(event, "info", evidence={"first": first, "last": last, "values": self._values}),)
