"""Gradients that explode or vanish, measured against the run's own."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Final

from trainwatch.events import FindingRaised, Logged, Severity, StepEnded
from trainwatch.rules.base import SEVERITIES, Count, Options, Positive, Rule, Share, is_first
from trainwatch.rules.curve import LISTENS, Level, LevelWindow, gradient_curve, loss_curve
from trainwatch.rules.window import RunningMedian

_FEWEST: Final = 5
_RECENT: Final = 20
_LONG: Final = 200
_TENS: Final = 1023


class ExplodingGradientOptions(Options, frozen=True, kw_only=True):
    """Thresholds of :class:`ExplodingGradient`.

    Attributes:
        factor: How many times the usual norm is an explosion.
        smallest: Norms below this are none: where clipping is on, most clip at 1.
        start: Norm that is one in a run's first values, when nothing is usual yet.
        in_ten: How many of ten values must be explosions for a warning, when the loss has risen as well.
    """

    factor: Positive = 15.0
    smallest: Positive = 5.0
    start: Positive = 1000.0
    in_ten: Count = 5


class ExplodingGradient(Rule[ExplodingGradientOptions]):
    """The gradient norm is many times what it usually is.

    One large gradient is clipped and forgotten, and the first norms of a run may be huge while the loss falls: a note.
    It is a warning when half of the norms are and the loss is above where it was. Usual is the median of the last 20
    norms that were no explosions themselves.
    """

    id = "exploding_gradient"
    listens = LISTENS
    options_type = ExplodingGradientOptions

    def __init__(self, options: ExplodingGradientOptions) -> None:
        super().__init__(options)
        self._curve = gradient_curve()
        self._loss = loss_curve()
        self._losses = RunningMedian(5)
        self._loss_window = LevelWindow(50, 1)
        self._loss_level: Level | None = None
        self._usual = RunningMedian(_RECENT)
        self._recent = 0
        self._peak = 0.0
        self._severity: Severity | None = None

    def observe(self, event: StepEnded | Logged, rank: int | None) -> Iterable[FindingRaised]:
        """See :class:`~trainwatch.rules.base.Rule`."""
        if not is_first(rank):
            return ()
        loss = self._loss.take(event)
        if loss is not None:
            self._losses.add(loss)
            if not self._recent:
                self._loss_window.add(loss)
        norm = self._curve.take(event)
        if norm is None or not math.isfinite(norm):
            return ()
        if self._curve.restarted:
            self._usual.clear()
        options, usual = self.options, self._usual
        count = len(usual)
        median = usual.median
        if norm < options.smallest:
            explodes = False
        elif count < _FEWEST:
            explodes = norm >= options.start
        else:
            explodes = norm >= options.factor * median
        self._recent = (self._recent << 1 | explodes) & _TENS
        if not explodes:
            usual.add(norm)
            if self._severity is not None and not self._recent:
                self._severity = None
                return (self.cleared(event),)
            return ()
        return self._found(event, norm, median if count >= _FEWEST else None)

    def _found(self, event: StepEnded | Logged, norm: float, usual: float | None) -> Iterable[FindingRaised]:
        often = self._recent.bit_count()
        if self._severity is None:
            self._peak = 0.0
            known = not math.isnan(self._loss_window.median)
            self._loss_level = self._loss_window.level() if known else None
        severity: Severity = "info"
        if often >= self.options.in_ten and usual is not None:
            before, now = self._loss_level, self._losses.median
            if before is not None and before.rise(now) >= 0.5 and before.score(now) >= 3.0:
                severity = "warning"
            elif often == 10:
                # All of ten: this is what is usual now, and the loss does not mind.
                self._usual.add(norm)
        worse = self._severity is None or SEVERITIES[severity] > SEVERITIES[self._severity]
        grown = norm >= 2 * self._peak
        self._peak = max(self._peak, norm)
        if worse:
            self._severity = severity
        if not (worse or grown):
            return ()
        assert self._severity is not None
        evidence = {"value": norm, "usual": usual, "often": often}
        return (self.finding(event, self._severity, evidence=evidence),)


class VanishingGradientOptions(Options, frozen=True, kw_only=True):
    """Thresholds of :class:`VanishingGradient`.

    Attributes:
        share: Share of the run's usual norm below which a norm has vanished.
        in_a_row: How many in a row are a note.
        lasting: How many in a row are a warning.
        loss_share: A loss that fell to less than this share of what it was explains it: there is nothing to learn.
    """

    share: Share = 1e-3
    in_a_row: Count = 10
    lasting: Count = 50
    loss_share: Share = 0.5


class VanishingGradient(Rule[VanishingGradientOptions]):
    """The gradient norm has fallen to nothing, and the loss has not.

    As after a collapse to a constant output, with dead activations, or when an engine does not pass the gradients on.
    Where no norm was ever above 0, exact zeros are told all the same.
    """

    id = "vanishing_gradient"
    listens = LISTENS
    options_type = VanishingGradientOptions

    def __init__(self, options: VanishingGradientOptions) -> None:
        super().__init__(options)
        self._curve = gradient_curve()
        self._loss = loss_curve()
        self._losses = RunningMedian(25)
        self._usual = RunningMedian(_LONG)
        self._usual_loss = math.nan
        self._in_a_row = 0
        self._since = 0
        self._severity: Severity | None = None

    def observe(self, event: StepEnded | Logged, rank: int | None) -> Iterable[FindingRaised]:
        """See :class:`~trainwatch.rules.base.Rule`."""
        if not is_first(rank):
            return ()
        loss = self._loss.take(event)
        if loss is not None:
            self._losses.add(abs(loss))
        norm = self._curve.take(event)
        if norm is None or not math.isfinite(norm):
            return ()
        if self._curve.restarted:
            self._usual.clear()
            self._losses.clear()
        usual = self._usual.median
        if norm == 0.0 or norm < self.options.share * usual:
            return self._vanished(event, norm, usual)
        self._usual.add(norm)
        if self._in_a_row:
            self._in_a_row = 0
            if self._severity is not None:
                self._severity = None
                return (self.cleared(event),)
        return ()

    def _vanished(self, event: StepEnded | Logged, norm: float, usual: float) -> Iterable[FindingRaised]:
        options = self.options
        if not self._in_a_row:
            self._since = event.step
            self._usual_loss = self._losses.median
        self._in_a_row += 1
        if self._in_a_row < options.in_a_row or self._severity == "warning":
            return ()
        loss = self._losses.median
        if not loss >= options.loss_share * self._usual_loss or loss == 0.0:
            return ()
        severity: Severity = "warning" if self._in_a_row >= options.lasting else "info"
        if severity == self._severity:
            return ()
        self._severity = severity
        evidence = {
            "value": norm,
            "usual": None if math.isnan(usual) else usual,
            "since": self._since,
            "in_a_row": self._in_a_row,
            "loss": loss,
        }
        return (self.finding(event, severity, evidence=evidence),)
