"""A learning rate with which nothing is learned."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

from trainwatch.events import FindingRaised, Severity
from trainwatch.rules.base import Count, Options, Rule, is_first
from trainwatch.rules.curve import LISTENS, Curve


class LearningRateOptions(Options, frozen=True, kw_only=True):
    """Thresholds of :class:`LearningRate`.

    Attributes:
        in_a_row: How many logged rates of 0 in a row are found.
        steps: How many steps in a row of a live run are.
    """

    in_a_row: Count = 3
    steps: Count = 50


class LearningRate(Rule[LearningRateOptions]):
    """The learning rate stays at 0, or is no number.

    A schedule begins and ends at 0, for one value. Where it stays there the training costs time and changes nothing:
    the schedule was made for fewer steps, or every optimizer step is skipped and the schedule never starts.
    """

    id = "learning_rate"
    listens = LISTENS
    options_type = LearningRateOptions

    def __init__(self, options: LearningRateOptions) -> None:
        super().__init__(options)
        self._curve = Curve("train/learning_rate", "train/learning_rate")
        self._zeros = 0
        self._since = 0
        self._had_one = False
        self._said = ""

    def observe(self, event: Any, rank: int | None) -> Iterable[FindingRaised]:
        """See :class:`~trainwatch.rules.base.Rule`."""
        if not is_first(rank):
            return ()
        rate = self._curve.take(event)
        if rate is None:
            return ()
        if rate > 0.0 and rate < math.inf:
            self._zeros = 0
            self._had_one = True
            if self._said:
                self._said = ""
                return (self.cleared(event),)
            return ()
        if rate == 0.0:
            if not self._zeros:
                self._since = event.step
            self._zeros += 1
            enough = self.options.steps if self._curve.live else self.options.in_a_row
            return self._found(event, "zero", "warning", rate) if self._zeros >= enough else ()
        return self._found(event, "bad", "critical", rate)

    def _found(self, event: Any, what: str, severity: Severity, rate: float) -> Iterable[FindingRaised]:
        if self._said == what:
            return ()
        self._said = what
        since = self._since if what == "zero" else event.step
        value = "NaN" if math.isnan(rate) else f"{rate:.3g}"
        evidence = {"what": what, "value": value, "since": since, "had_one": self._had_one}
        return (self.finding(event, severity, evidence=evidence),)
