"""Divergence: the loss leaves the level that it had reached, and stays away."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from trainwatch.events import FindingRaised, Severity
from trainwatch.rules.base import SEVERITIES, Count, Options, Positive
from trainwatch.rules.curve import Level, LevelWindow, LossRule

_FEWEST: Final = 4
_EARLY: Final = 0.5
_ENOUGH: Final = 20
_BITS: Final = (1 << 30) - 1


class DivergenceOptions(Options, frozen=True, kw_only=True):
    """Thresholds of :class:`Divergence`.

    Attributes:
        window: From how many values the level is taken.
        score: How many times the scatter of its best time the loss must lie above it to count at all.
        note: Rise above the best level from which two values of three are a note; 0.15 is 15 % more.
        warn: Rise from which eight values of ten are a warning.
        ruin: Rise from which 24 values of 30 are critical.
        explosion: Rise from which even four values of five are critical.
    """

    window: Count = 50
    score: Positive = 3.5
    note: Positive = 0.15
    warn: Positive = 0.5
    ruin: Positive = 1.0
    explosion: Positive = 30.0


class Divergence(LossRule[DivergenceOptions]):
    """The loss has risen above the best level of the run and does not come back.

    It compares with the run's own best time, so that it sees a slow rise as well as a jump. Losses that step up at the
    border of an epoch, or rise by 40 % within one, are healthy: they are at most a note.
    """

    id = "divergence"
    options_type = DivergenceOptions

    def __init__(self, options: DivergenceOptions) -> None:
        super().__init__(options)
        self._forget()

    def _forget(self) -> None:
        self._window = LevelWindow(self.options.window, 1)
        self._best: Level | None = None
        self._note = self._warn = self._ruin = self._explosion = 0
        self._since = 0
        self._values = 0
        self._report_at = 0
        self._severity: Severity | None = None

    def configure(self, options: DivergenceOptions) -> None:
        """See :class:`~trainwatch.rules.base.Rule`."""
        super().configure(options)
        self._window.resize(options.window)

    def _restart(self) -> bool:
        was = self._severity is not None
        self._forget()
        return was

    def _judge(self, event: Any, loss: float) -> Iterable[FindingRaised]:
        options, best = self.options, self._best
        rise, high = 0.0, False
        if best is not None:
            high = best.score(loss) >= options.score
            rise = best.rise(loss)
            note = options.note if best.count >= _FEWEST else max(_EARLY, options.note)
            self._note = (self._note << 1 | (high and rise >= note)) & _BITS
            self._warn = (self._warn << 1 | (high and rise >= options.warn)) & _BITS
            self._ruin = (self._ruin << 1 | (high and rise >= options.ruin)) & _BITS
            self._explosion = (self._explosion << 1 | (high and rise >= options.explosion)) & 31
        window = self._window
        if not self._explosion & 1:
            window.add(loss)  # what explodes is no part of any level
        median = window.median
        if best is None or median < best.median or (best.count < _ENOUGH and not high and best.score(median) < 1.0):
            # The same level, but known from more values, is the better measure; a lucky first value would be none.
            self._best = window.level()
        if best is None or not (self._note or self._severity):
            return ()
        severity = self._grade(best)
        if self._severity is None:
            if severity is None:
                return ()
            self._since = event.step
            self._values = 0
        elif severity is None and not (self._note & 1023).bit_count() > 2:
            self._severity = None
            return (self.cleared(event),)
        return self._report(event, severity, loss, rise, best)

    def _grade(self, best: Level) -> Severity | None:
        if self._explosion.bit_count() >= 4 or (best.count >= _ENOUGH and self._ruin.bit_count() >= 24):
            return "critical"
        # What rests on a few first values is only called a warning when it is twice as bad.
        bits = self._warn if best.count >= _ENOUGH else self._ruin
        if (bits & 1023).bit_count() >= 8:
            return "warning"
        return "info" if self._explosion & 1 or (self._note & 7).bit_count() >= 2 else None

    def _report(
        self, event: Any, severity: Severity | None, loss: float, rise: float, best: Level
    ) -> Iterable[FindingRaised]:
        self._values += 1
        said = self._severity
        if severity is not None and (said is None or SEVERITIES[severity] > SEVERITIES[said]):
            self._severity = severity
        elif self._values < self._report_at:
            return ()
        assert self._severity is not None
        self._report_at = 2 * self._values
        evidence = {"value": loss, "best": best.median, "rise": rise, "since": self._since, "values": self._values}
        return (self.finding(event, self._severity, evidence=evidence),)
