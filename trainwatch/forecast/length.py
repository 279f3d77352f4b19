"""The peak of a step as a function of its batch's shape, learned from the steps seen.

Activations and logits grow with the padded tokens of a micro-batch, attention that keeps its scores grows with
tokens × length. So the peak is ``base + a × tokens + b × tokens × length`` with `a` and `b` not below zero. Which of
the two parts is there is for the steps to say: when the line and the curve fit equally well, what lies beyond the
batches seen is as uncertain as they differ, and the interval spans both.

The state is the sums of the normal equations, whatever the number of steps. Three things make it robust. A step far off
the fit counts only as far as the usual error goes. Several of those on the same side in a row mean that the level
itself has changed (an evaluation left its cache behind), and everything begins anew. And each step is predicted before
it is learned from: where the predictions were worse than their intervals said, the interval is widened by as much, and
where their errors follow each other (an allocator's level drifts) so many steps count only as the fewer independent
ones that they are worth.

An allocator that keeps what is freed hides what small batches need: a peak that did not rise above what was held before
only says that the batch needed no more. Learned as it is, it makes the slope too flat, never too steep. So the low end
of the interval rests on all steps, and its high end on those too that did rise.
"""

from __future__ import annotations

import copy
import math
from typing import Final, NamedTuple

import msgspec

from trainwatch.forecast.squares import inverse_of, student
from trainwatch.forecast.surprises import Surprises

LEAST_STEPS: Final = 12
"""Fewer tell nothing about three unknowns and their error."""

_LEAST_RISEN: Final = 8
_ROSE: Final = 0.002
_CLIP: Final = 5.0
_SHIFTED: Final = 8
_REFIT_UNTIL: Final = 64
_RECORD: Final = 1.05
_FLOOR: Final = 0.02
_WAITING: Final = 8
_INSIGNIFICANT: Final = 1e-9
_SMALLEST_ERROR: Final = 1e-4


class Batch(NamedTuple):
    """The largest micro-batch of a step.

    Attributes:
        tokens: With padding.
        length: Of its longest sample.
    """

    tokens: float
    length: float


class Prediction(msgspec.Struct, frozen=True):
    """What a batch will need.

    Attributes:
        peak: Bytes expected.
        low: Low end of the interval that nineteen of twenty such batches should lie in.
        high: Its high end.
        steps: How many steps it rests on.
        reach: Tokens of the batch over those of the largest one seen.
        share: Share of the peaks' variance that the batches' shapes explain.
    """

    peak: float
    low: float
    high: float
    steps: int
    reach: float
    share: float

    @property
    def error(self) -> float:
        """Half the interval's width, as a share of the peak."""
        return 0.5 * (self.high - self.low) / self.peak if self.peak > 0 else math.inf


class _Model(NamedTuple):
    """A least-squares fit of one form.

    Attributes:
        terms: Which of (1, tokens, tokens × length) it has.
        weights: Their coefficients.
        inverse: Inverse of its normal matrix.
        errors: Sum of squared errors.
    """

    terms: tuple[int, ...]
    weights: tuple[float, ...]
    inverse: tuple[tuple[float, ...], ...]
    errors: float

    def value(self, row: tuple[float, float, float]) -> float:
        return sum(weight * row[term] for weight, term in zip(self.weights, self.terms, strict=True))

    def leverage(self, row: tuple[float, float, float]) -> float:
        x = [row[term] for term in self.terms]
        return sum(x[i] * entry * x[j] for i, line in enumerate(self.inverse) for j, entry in enumerate(line))


_FORMS: Final = ((0, 1), (0, 2), (0, 1, 2))


class LengthFit:
    """Learns what batches need, one step after the other. Its state has a fixed size.

    Args:
        floored: Peaks are exact, and those of small batches may be the optimizer's, which do not depend on the batch:
            so it is on an accelerator. The lowest peaks are left out then.
    """

    __slots__ = (
        "_best",
        "_clipped",
        "_current",
        "_due",
        "_error",
        "_floored",
        "_high",
        "_largest",
        "_least",
        "_longest",
        "_low",
        "_models",
        "_offset",
        "_record_error",
        "_risen",
        "_scale",
        "_seen",
        "_side",
        "_sums",
        "_surprises",
        "_targets",
        "_waiting",
        "count",
    )

    def __init__(self, *, floored: bool = False) -> None:
        self._floored = floored
        self._least = LEAST_STEPS
        self.restart()

    def restart(self) -> None:
        """Forgets everything."""
        self.count = self._seen = 0
        self._waiting: list[tuple[tuple[float, float, float], float]] = []
        self._low, self._high = math.inf, -math.inf
        self._sums = [0.0] * 5  # of t, q, t², tq, q² with t tokens, q tokens × length, both scaled
        self._targets = [0.0] * 4  # of y, yt, yq, y²
        self._scale = self._offset = 0.0
        self._largest = self._longest = 0.0
        self._models: list[_Model] = []
        self._current = True
        self._best: _Model | None = None
        self._due = self._least
        self._error = 0.0
        self._side = self._clipped = 0
        self._surprises = Surprises()
        self._record_error = 0.0
        self._risen: LengthFit | None = None

    @property
    def largest(self) -> float:
        """Tokens of the largest batch seen."""
        return self._largest

    @property
    def longest(self) -> float:
        """Length of the longest batch seen."""
        return self._longest

    def add(self, batch: Batch, peak: float, held: float = 0.0) -> None:
        """Learns from a step.

        Args:
            batch: Its largest micro-batch.
            peak: Its peak in bytes.
            held: What was held when it began, where its peak is never lower than that: so it is with a process's
                resident memory. 0 where that is not known.
        """
        tokens, length = batch
        if not (0 < tokens < math.inf and 0 < length < math.inf and 0 < peak < math.inf):
            return
        if peak > held * (1.0 + _ROSE):
            if self._risen is not None:
                self._risen.add(batch, peak)
        elif self._risen is None:
            self._risen = copy.deepcopy(self)  # all steps before did rise
            self._risen._least = self._risen._due = _LEAST_RISEN
        if not self._seen:
            self._scale, self._offset = tokens, peak
        row = self._row(batch)
        y = (peak - self._offset) / self._offset
        best = self._best
        if best is not None:
            y = self._compare(best, row, tokens, y)
            if math.isnan(y):
                self.restart()
                return
        self._largest, self._longest = max(self._largest, tokens), max(self._longest, length)
        self._low, self._high = min(self._low, y), max(self._high, y)
        self._seen += 1
        if not self._floored:
            self._learn(row, y)
        elif self._seen > _WAITING:
            self._learn_above(row, y)
        else:
            # Which peaks are the lowest shows when there are some.
            self._waiting.append((row, y))
            if self._seen == _WAITING:
                for waiting in self._waiting:
                    self._learn_above(*waiting)
                self._waiting.clear()

    def _learn_above(self, row: tuple[float, float, float], y: float) -> None:
        if y > self._low + _FLOOR * (self._high - self._low):
            self._learn(row, y)

    def _learn(self, row: tuple[float, float, float], y: float) -> None:
        self.count += 1
        _, t, q = row
        sums, targets = self._sums, self._targets
        sums[0] += t
        sums[1] += q
        sums[2] += t * t
        sums[3] += t * q
        sums[4] += q * q
        targets[0] += y
        targets[1] += y * t
        targets[2] += y * q
        targets[3] += y * y
        self._current = False
        if self.count >= self._due:
            self._due = self.count + (4 if self.count < _REFIT_UNTIL else self.count // 16)
            self._solve()

    def predict(self, batch: Batch) -> Prediction | None:
        """Predicts the peak of a step.

        Args:
            batch: The largest micro-batch that it will have.

        Returns:
            None where nothing can be said: too few steps, too few whose peak rose above what was held before, or
            batches so alike that they tell nothing of others.
        """
        best = self._fitted()
        if best is None:
            return None
        row = self._row(batch)
        low, high = math.inf, -math.inf
        expected = best.value(row)
        # As good as the best one, as far as errors of this size let one tell (an F test at about 1 in 20).
        as_good = best.errors + 4.0 * self._variance(best) * self._surprises.alike
        for model in self._models:
            if model is best or model.errors <= as_good:
                width, middle = self._width(model, row), model.value(row)
                low, high = min(low, middle - width), max(high, middle + width)
        widening = self._surprises.widening
        below, above = (expected - low) * widening, (high - expected) * widening
        reach = batch.tokens / self._largest
        if reach > 1.0:
            # What went wrong when larger batches than all before came goes wrong again, in proportion.
            at_largest = best.value(self._row(Batch(self._largest, self._longest)))
            beyond = max(expected - at_largest, 0.0)
            wrong = self._record_error * beyond
            # Where batches explain little of the peaks seen, they explain as little of those to come. Memory that an
            # allocator keeps hides what small batches need, so that the slope comes out too flat, never too steep.
            unexplained = 0.0 if math.isnan(self.share) else math.sqrt(1.0 - self.share)
            steep = max(beyond, (at_largest - best.weights[0]) * reach * reach)
            below, above = max(below, wrong, unexplained * beyond), max(above, wrong, unexplained * steep)
        if self._risen is not None:
            risen = self._risen._fitted()
            if risen is None:
                return None
            row = self._risen._row(batch)
            highest = self._risen._bytes(risen.value(row) + self._risen._width(risen, row))
            above = max(above, highest / self._offset - 1.0 - expected)
        return Prediction(
            peak=self._bytes(expected),
            low=self._bytes(expected - below),
            high=self._bytes(expected + above),
            steps=self.count,
            reach=reach,
            share=self.share,
        )

    @property
    def share(self) -> float:
        """Share of the peaks' variance that the batches explain; NaN while that cannot be told."""
        best = self._fitted()
        if self.count < self._least:
            return math.nan
        total = self._targets[3] - self._targets[0] * self._targets[0] / self.count
        if total <= self.count * _INSIGNIFICANT**2:
            return math.nan
        return 0.0 if best is None else max(0.0, min(1.0, 1.0 - best.errors / total))

    @property
    def swing(self) -> float:
        """Standard deviation of the peaks, in bytes; NaN while that cannot be told."""
        if self.count < LEAST_STEPS:
            return math.nan
        variance = (self._targets[3] - self._targets[0] * self._targets[0] / self.count) / (self.count - 1)
        return math.sqrt(max(variance, 0.0)) * self._offset

    @property
    def base(self) -> float:
        """Bytes that every step needs, whatever its batch; NaN while that cannot be told."""
        best = self._fitted()
        return math.nan if best is None else self._bytes(best.weights[0])

    # -- inside --------------------------------------------------------------------------------------------------

    def _fitted(self) -> _Model | None:
        """Returns the best model; None where there are too few steps or too similar ones."""
        if self.count < self._least:
            return None
        if not self._current:
            self._solve()
        return self._best

    def _variance(self, model: _Model) -> float:
        return max(model.errors / (self.count - len(model.terms)), _SMALLEST_ERROR**2)

    def _width(self, model: _Model, row: tuple[float, float, float]) -> float:
        """Returns half the width of the interval that a model gives."""
        leverage = self._surprises.alike * max(model.leverage(row), 0.0)
        return student(self.count - len(model.terms)) * math.sqrt(self._variance(model) * (1.0 + leverage))

    def _row(self, batch: Batch) -> tuple[float, float, float]:
        t = batch.tokens / self._scale
        # A length is scaled as tokens are, so that all three terms are of about the same size.
        return 1.0, t, t * batch.length / self._scale

    def _bytes(self, y: float) -> float:
        return self._offset * (1.0 + y)

    def _compare(self, model: _Model, row: tuple[float, float, float], tokens: float, y: float) -> float:
        """Holds a step against its prediction; returns what to learn, NaN to begin anew."""
        expected = model.value(row)
        off = y - expected
        spread = max(self._error, _SMALLEST_ERROR)
        size = abs(off)
        if tokens > _RECORD * self._largest:
            # A larger batch than all before: how it was foreseen tells how the next one will be. It is learned from
            # as it is, however far off.
            grown = expected - model.value(self._row(Batch(self._largest, self._longest)))
            if grown > 2 * spread:
                self._record_error = max(0.7 * self._record_error, min(size / grown, 2.0))
            return y
        limit = _CLIP * spread
        clipped = max(min(off, limit), -limit)
        self._surprises.add(off, clipped, spread)
        side = (off > limit) - (off < -limit)
        self._clipped = self._clipped + 1 if side and side == self._side else abs(side)
        self._side = side
        if self._clipped >= _SHIFTED:
            return math.nan
        return expected + clipped

    def _solve(self) -> None:
        self._current = True
        self._models = []
        self._best = None
        t, q, tt, tq, qq = self._sums
        count = float(self.count)
        matrix = ((count, t, q), (t, tt, tq), (q, tq, qq))
        y, yt, yq, yy = self._targets
        target = (y, yt, yq)
        # Batches that are all alike say nothing about others.
        if tt - t * t / count <= 1e-4 * tt:
            return
        for terms in _FORMS:
            inverse = inverse_of(tuple(tuple(matrix[i][j] for j in terms) for i in terms))
            if inverse is None:
                continue
            wanted = [target[i] for i in terms]
            weights = tuple(sum(entry * value for entry, value in zip(line, wanted, strict=True)) for line in inverse)
            if any(weight < 0 for weight in weights[1:]):
                continue  # memory that falls as batches grow is no model of anything
            errors = max(yy - sum(weight * value for weight, value in zip(weights, wanted, strict=True)), 0.0)
            self._models.append(_Model(terms, weights, inverse, errors))
        if not self._models:
            return
        simple = min((model for model in self._models if len(model.terms) == 2), key=_errors, default=self._models[-1])
        best = min(self._models, key=_errors)
        # The third unknown must earn its place.
        self._best = simple if simple.errors - best.errors <= 4.0 * self._variance(best) else best
        self._error = math.sqrt(max(self._best.errors / (self.count - len(self._best.terms)), 0.0))


def _errors(model: _Model) -> float:
    return model.errors
