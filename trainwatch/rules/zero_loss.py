"""The loss collapses to exactly 0."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any, Final

from trainwatch.events import FindingRaised, NonFiniteSeen, Severity
from trainwatch.rules.base import SEVERITIES, Count, Options, Positive, Rule, is_first
from trainwatch.rules.curve import LISTENS, loss_curve
from trainwatch.rules.window import RunningMedian

_OVER: Final = 3


class ZeroLossOptions(Options, frozen=True, kw_only=True):
    """Thresholds of :class:`ZeroLoss`.

    Attributes:
        in_a_row: How many zeros in a row are a collapse and no accident.
        learned: Loss below which a 0 is expected: it is a small loss, rounded; the Trainer logs four decimals.
    """

    in_a_row: Count = 3
    learned: Positive = 0.01


class ZeroLoss(Rule[ZeroLossOptions]):
    """The loss is exactly 0.0.

    With the Trainer's ``logging_nan_inf_filter``, which is on by default, this is what a NaN loss looks like in the
    log: a NaN step counts as 0. So the first zero is noted at once; it is a warning at once where the gradient norm
    beside it is not finite or the learning rate is 0 (no step was taken), and a collapse at the third. A model that
    has learned its data by heart has losses that round to 0, and losses of reinforcement learning may be 0 while there
    is a gradient: those are notes at most.
    """

    id = "zero_loss"
    listens = (*LISTENS, NonFiniteSeen)
    options_type = ZeroLossOptions

    def __init__(self, options: ZeroLossOptions) -> None:
        super().__init__(options)
        self._curve = loss_curve()
        self._usual = RunningMedian(20)
        self._zeros = 0
        self._others = 0
        self._since = 0
        self._said: Severity | None = None
        self._explained = -1

    def observe(self, event: Any, rank: int | None) -> Iterable[FindingRaised]:
        """See :class:`~trainwatch.rules.base.Rule`."""
        if not is_first(rank):
            return ()
        if type(event) is NonFiniteSeen:
            # Said already: this is how the step will look in the Trainer's log.
            self._explained = event.step
            return ()
        loss = self._curve.take(event)
        if loss is None:
            return ()
        if loss == 0.0:
            return () if event.step == self._explained else self._zero(event)
        if math.isfinite(loss):
            self._usual.add(abs(loss))
        self._zeros = 0
        if self._said is None:
            return ()
        self._others += 1
        if self._others < _OVER:
            return ()
        self._said = None
        return (self.cleared(event),)

    def _zero(self, event: Any) -> Iterable[FindingRaised]:
        self._others = 0
        self._zeros += 1
        if self._said is None:
            self._since = event.step
        severity = self._grade(event)
        if severity is None or (self._said is not None and SEVERITIES[severity] <= SEVERITIES[self._said]):
            return ()
        self._said = severity
        usual = self._usual.median
        norm = event.values.get("train/grad_norm", math.nan)
        evidence = {
            "in_a_row": self._zeros,
            "since": self._since,
            "usual": None if math.isnan(usual) else usual,
            "norm": norm if math.isfinite(norm) and norm > 0.0 else None,
        }
        return (self.finding(event, severity, evidence=evidence),)

    def _grade(self, event: Any) -> Severity | None:
        values, lasts = event.values, self._zeros >= self.options.in_a_row
        norm = values.get("train/grad_norm")
        if (norm is not None and not math.isfinite(norm)) or values.get("train/learning_rate") == 0.0:
            return "critical" if lasts else "warning"
        usual = self._usual.median
        if usual >= self.options.learned:
            return "critical" if lasts else "info"
        unknown = math.isnan(usual)
        if not unknown:
            return None  # losses near 0 (reinforcement learning, all learned by heart), and now and then one is 0
        if norm is not None and norm > 0.0:
            return "info"  # a loss whose value says nothing; it has a gradient all the same
        return "warning" if lasts else "info"
