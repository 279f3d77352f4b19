"""Overfitting: the eval loss rises while the training loss falls."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any, Final

from trainwatch.events import Evaluated, FindingRaised, Logged, Severity, StepEnded
from trainwatch.rules.base import Count, Options, Positive, Rule, is_first
from trainwatch.rules.curve import loss_curve
from trainwatch.rules.window import RunningMedian

_WORTH: Final = 0.01


class OverfittingOptions(Options, frozen=True, kw_only=True):
    """Thresholds of :class:`Overfitting`.

    Attributes:
        rise: Share by which the last two evaluations must lie above the best one to be a note.
        clear: Share from which it is a warning.
        evals: How many evaluations must have come since the best for a warning.
        window: From how many values the training loss is taken.
    """

    rise: Positive = 0.05
    clear: Positive = 0.10
    evals: Count = 3
    window: Count = 25


class Overfitting(Rule[OverfittingOptions]):
    """The model learns its training data by heart: evaluation becomes worse as training goes on to improve.

    The mean of two evaluations is compared with the best one, so that no single one decides. The rise must also be
    worth something beside what was gained since the beginning: an eval loss that came down from 2.0 to 0.010 and
    is 0.011 now is not worse.
    """

    id = "overfitting"
    listens = (StepEnded, Logged, Evaluated)
    options_type = OverfittingOptions

    def __init__(self, options: OverfittingOptions) -> None:
        super().__init__(options)
        self._curve = loss_curve()
        self._train = RunningMedian(options.window)
        self._forget()

    def _forget(self) -> None:
        self._highest = self._best = self._last = math.nan
        self._best_step = 0
        self._train_at_best = math.nan
        self._since = 0
        self._said: Severity | None = None
        self._said_rise = 0.0

    def configure(self, options: OverfittingOptions) -> None:
        """See :class:`~trainwatch.rules.base.Rule`."""
        super().configure(options)
        self._train.resize(options.window)

    def observe(self, event: Any, rank: int | None) -> Iterable[FindingRaised]:
        """See :class:`~trainwatch.rules.base.Rule`."""
        if not is_first(rank):
            return ()
        if type(event) is Evaluated:
            return self._judge(event)
        loss = self._curve.take(event)
        if loss is not None:
            if self._curve.restarted:
                said = self._said
                self._forget()
                self._train.clear()
                if said:
                    return (self.cleared(event),)
            self._train.add(loss)
            if math.isnan(self._highest):
                self._highest = loss
            if math.isnan(self._train_at_best):
                self._train_at_best = loss  # the log is sparser than the evaluations
        return ()

    def _judge(self, event: Evaluated) -> Iterable[FindingRaised]:
        loss = event.values.get("eval/loss", event.values.get("eval/loss_reported", math.nan))
        if not math.isfinite(loss):
            return ()  # another rule's
        if not self._highest >= loss:
            self._highest = loss
        if not loss >= self._best:
            self._best, self._best_step, self._since = loss, event.step, 0
            self._train_at_best = self._train.quantile(0.45)
            self._last = loss
            return self._over(event)
        self._since += 1
        recent = self._last / 2 + loss / 2
        self._last = loss
        if self._since < 2:
            return ()
        options = self.options
        rise = (recent - self._best) / max(abs(self._best), 1e-12)
        now = self._train.quantile(0.45)
        gained = self._highest - self._best
        if not (rise >= options.rise and recent - self._best >= _WORTH * gained and now < self._train_at_best):
            return self._over(event) if rise < options.rise / 2 else ()
        severity: Severity = "warning" if rise >= options.clear and self._since >= options.evals else "info"
        if self._said in ("warning", severity) and rise < 1.5 * self._said_rise:
            return ()
        self._said = "warning" if "warning" in (self._said, severity) else "info"
        self._said_rise = rise
        evidence = {
            "best": self._best,
            "best_step": self._best_step,
            "value": recent,
            "rise": rise,
            "evals": self._since,
            "train_then": self._train_at_best,
            "train": now,
        }
        return (self.finding(event, self._said, evidence=evidence),)

    def _over(self, event: Evaluated) -> Iterable[FindingRaised]:
        if self._said is None:
            return ()
        self._said, self._said_rise = None, 0.0
        return (self.cleared(event),)
