"""The loss scale of fp16 training runs out."""

from __future__ import annotations

import math
from collections.abc import Iterable

from trainwatch.events import FindingRaised, Severity, StepEnded
from trainwatch.rules.base import SEVERITIES, Count, Options, Positive, Rule, is_first


class LossScaleOptions(Options, frozen=True, kw_only=True):
    """Thresholds of :class:`LossScale`.

    Attributes:
        halvings: How many halvings more than doublings, within `steps`, are a warning once the run has started up.
        steps: Within how many steps.
        start: Steps at the beginning in which the scaler looks for its scale.
        floor: Scale below which gradients are lost to underflow, a warning.
        ruin: Scale below which nothing is learned any more.
    """

    halvings: Count = 5
    steps: Count = 100
    start: Count = 50
    floor: Positive = 1.0
    ruin: Positive = 1e-3


class LossScale(Rule[LossScaleOptions]):
    """The loss scaler halves its factor again and again.

    It halves it at every overflow and doubles it after 2000 steps without one. Some halvings at the beginning are its
    normal work; when they go on, most steps overflow and are skipped, whatever the scale.
    """

    id = "loss_scale"
    listens = (StepEnded,)
    options_type = LossScaleOptions

    def __init__(self, options: LossScaleOptions) -> None:
        super().__init__(options)
        self._scale = math.nan
        self._steps = 0
        self._highest = 0.0
        self._left = 0
        self._severity: Severity | None = None

    def observe(self, event: StepEnded, rank: int | None) -> Iterable[FindingRaised]:
        """See :class:`~trainwatch.rules.base.Rule`."""
        if not is_first(rank):
            return ()
        scale = event.values.get("train/loss_scale")
        if scale is None:
            return ()
        self._steps += 1
        self._left -= 1
        if scale == self._scale:
            # Over when it holds for as long as it may take to fall.
            if self._severity is not None and scale >= self.options.floor and self._left <= 0:
                self._severity, self._highest = None, scale
                return (self.cleared(event),)
            return ()
        fell = scale < self._scale
        self._scale = scale
        if not fell or not 0.0 < scale < math.inf:
            self._highest = scale
            return ()
        if self._left <= 0 and self._severity is None:
            self._highest = scale * 2
        self._left = self.options.steps
        return self._judge(event, scale)

    def _judge(self, event: StepEnded, scale: float) -> Iterable[FindingRaised]:
        options = self.options
        severity: Severity
        if scale < options.ruin:
            severity = "critical"
        elif scale < options.floor or (
            self._steps > options.start and self._highest >= scale * 2.0 ** min(options.halvings, 1000)
        ):
            severity = "warning"
        else:
            return ()
        if self._severity is not None and SEVERITIES[severity] <= SEVERITIES[self._severity]:
            return ()
        self._severity = severity
        return (self.finding(event, severity, evidence={"value": scale, "from": self._highest}),)
