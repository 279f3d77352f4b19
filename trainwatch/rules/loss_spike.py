"""Spikes: the loss jumps up for a step or a few."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from trainwatch.events import FindingRaised, Severity
from trainwatch.rules.base import Count, Options, Positive
from trainwatch.rules.curve import Level, LevelWindow, LossRule

_FEWEST: Final = 10
_CALM: Final = 5


class LossSpikeOptions(Options, frozen=True, kw_only=True):
    """Thresholds of :class:`LossSpike`.

    Attributes:
        window: From how many values before it the usual level is taken.
        score: How many times the usual scatter the loss must lie above the level.
        rise: Rise above the level from which it is a spike; 1 is twice the level.
        enormous: Rise from which a spike is a warning.
        unrecovered: After how many values that do not come back it is one.
    """

    window: Count = 30
    score: Positive = 5.0
    rise: Positive = 1.0
    enormous: Positive = 100.0
    unrecovered: Count = 50


class LossSpike(LossRule[LossSpikeOptions]):
    """The loss has jumped far above where it was.

    Most spikes recover by themselves and are a note. The level is held while a spike lasts.
    """

    id = "loss_spike"
    options_type = LossSpikeOptions

    def __init__(self, options: LossSpikeOptions) -> None:
        super().__init__(options)
        self._forget()

    def _forget(self) -> None:
        self._window = LevelWindow(max(self.options.window, _FEWEST), _FEWEST)
        self._level: Level | None = None
        self._peak = 0.0
        self._values = 0
        self._calm = 0
        self._since = 0
        self._is_warning = False

    def configure(self, options: LossSpikeOptions) -> None:
        """See :class:`~trainwatch.rules.base.Rule`."""
        super().configure(options)
        self._window.resize(max(options.window, _FEWEST))

    def _restart(self) -> bool:
        was = self._level is not None
        self._forget()
        return was

    def _judge(self, event: Any, loss: float) -> Iterable[FindingRaised]:
        level = self._level
        if level is not None:
            return self._follow(event, loss, level)
        median = self._window.median
        if loss > median:  # NaN while there is no level
            level = self._window.level()
            rise = level.rise(loss)
            if rise >= self.options.rise and level.score(loss) >= self.options.score:
                self._level, self._peak, self._since = level, loss, event.step
                self._values = self._calm = 0
                self._is_warning = rise >= self.options.enormous
                return (self._finding(event, level),)
        self._window.add(loss)
        return ()

    def _follow(self, event: Any, loss: float, level: Level) -> Iterable[FindingRaised]:
        self._values += 1
        if level.rise(loss) < self.options.rise / 2:
            self._calm += 1
            if self._calm >= _CALM:
                self._level = None
                return (self.cleared(event),)
            return ()
        self._calm = 0
        grown = loss > 2 * self._peak - level.median
        self._peak = max(self._peak, loss)
        worse = not self._is_warning and (
            level.rise(self._peak) >= self.options.enormous or self._values >= self.options.unrecovered
        )
        self._is_warning = self._is_warning or worse
        if worse or grown:
            return (self._finding(event, level),)
        if self._values >= 4 * self.options.unrecovered:
            # By now this is where the loss is; divergence is another rule's.
            self._forget()
            return (self.cleared(event),)
        return ()

    def _finding(self, event: Any, level: Level) -> FindingRaised:
        severity: Severity = "warning" if self._is_warning else "info"
        evidence = {"value": self._peak, "level": level.median, "since": self._since, "values": self._values + 1}
        return self.finding(event, severity, evidence=evidence)
