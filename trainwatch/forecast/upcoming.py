"""The longest batch that is still to come: from the data set's lengths and, where it is known, the sampler's order.

Neither is believed as it stands. A collator may cut, pad to a multiple, add tokens or pack samples together; somebody
may wrap the loader. So what was told before the training is held against the batches that come, and where they disagree
nothing is said.
"""

from __future__ import annotations

import math
from typing import Any, Final

import msgspec

from trainwatch.events import Values
from trainwatch.forecast.length import Batch

_CHECKS: Final = 4
_AGREE: Final = 0.9
_PADDING: Final = 64
_LARGER: Final = 1.02
_STEPS: Final = 12
_TIES: Final = 3
_MISSED_WITH_TIES, _MISSED = 2.0, 8.0
_MEANS: Final = (0.6, 1.6)


class Coming(msgspec.Struct, frozen=True):
    """A batch that is larger than all before.

    Attributes:
        batch: What it will look like.
        length: Tokens of its longest sample, as the data set has it.
        samples: How many samples it has.
        step: When it comes; None when only that it comes is known.
        complete: The lengths of all samples are known; else there may be longer ones.
    """

    batch: Batch
    length: int
    samples: int
    step: int | None = None
    complete: bool = True


def largest_micro_batch(values: Values) -> Batch | None:
    """Returns the largest micro-batch of a step.

    With gradient accumulation a step tells its longest micro-batch and the sum of its samples, from which the largest
    follows as long as all micro-batches have as many samples; where they do not, nothing is returned.

    Args:
        values: The step's.
    """
    length, tokens = values.get("train/batch_length", 0.0), values.get("train/padded_tokens", 0.0)
    parts = values.get("train/micro_batches", 1.0)
    if not (length > 0 and tokens >= length and parts >= 1):
        return None
    if parts == 1:
        return Batch(tokens, length)
    samples = values.get("train/samples", 0.0)
    if samples < parts or samples % parts or tokens > length * samples:
        return None
    return Batch(length * samples / parts, length)


class Upcoming:
    """Knows what is still to come on one rank.

    Args:
        dataset: What :class:`~trainwatch.events.RunStarted` tells of the data sets.
        first_step: Updates done when the training began.

    Attributes:
        longest_sample: Length of the data set's longest sample; 0 when unknown.
    """

    def __init__(self, dataset: dict[str, Any], first_step: int = 0) -> None:
        train = _table(dataset.get("train"))
        lengths, order = _table(train.get("lengths")), _table(train.get("order"))
        self.longest_sample = _whole(lengths.get("max"))
        self._mean = _number(lengths.get("mean"))
        self._p99 = _whole(lengths.get("p99"))
        self._histogram = train.get("histogram")
        self._complete = train.get("complete") is True
        self._begin = first_step + 1
        self._told = [_whole(length) for length in _list(order.get("first"))]
        self._order = sorted(
            (_whole(one[0]), _whole(one[1]), _whole(one[2]))
            for one in map(_list, _list(order.get("longest")))
            if len(one) == 3
        )
        self._checked = self._agreed = 0
        self._least_added, self._most_added = math.inf, -math.inf
        self._multiple = 0
        self._steps = 0
        self._longest = 0.0
        self._times = 0
        self._samples = 0.0
        self._tokens = self._seen = 0.0
        self._epoch = 0.0

    @property
    def known(self) -> bool:
        """Whether anything is known of what is to come."""
        return self.longest_sample > 0

    @property
    def cap_candidate(self) -> int | None:
        """A length that cuts at most one sample in a hundred, where that is well below the longest."""
        return self._p99 if 0 < self._p99 * _LARGER < self.longest_sample else None

    @property
    def longest(self) -> float:
        """Padded length of the longest batch seen."""
        return self._longest

    def share_longer(self, length: int) -> float | None:
        """Returns the share of the samples that are longer than a length, None where it is not known."""
        return share_longer(self._histogram, length)

    def saw(self, step: int, values: Values) -> None:
        """Takes a step that is over.

        Args:
            step: Its number.
            values: What is known of it.
        """
        length = values.get("train/batch_length", 0.0)
        if not 0 < length < 1e12:
            return
        self._steps += 1
        self._epoch = max(self._epoch, values.get("train/epoch", 0.0))
        self._multiple = math.gcd(self._multiple, int(length))
        if length > self._longest:
            self._longest, self._times = length, 0
        self._times += length == self._longest
        samples, tokens = values.get("train/samples", 0.0), values.get("train/tokens", 0.0)
        if 0 < samples < 1e12 and 0 < tokens < 1e18:
            self._samples = max(self._samples, samples / max(values.get("train/micro_batches", 1.0), 1.0))
            self._seen += samples
            self._tokens += tokens
        place = step - self._begin
        if 0 <= place < len(self._told):
            self._checked += 1
            added = length - self._told[place]
            if 0 <= added < _PADDING:
                self._agreed += 1
                self._least_added = min(self._least_added, added)
                self._most_added = max(self._most_added, added)

    def coming(self, step: int) -> Coming | None:
        """Returns the largest batch that is still to come, if it is larger than those seen.

        Args:
            step: The last step that is over.
        """
        if not self.known or self._steps < _CHECKS:
            return None
        return self._by_order(step) if self._order_holds else self._by_distribution()

    @property
    def _order_holds(self) -> bool:
        telling = len(set(self._told)) > 1
        return telling and self._checked >= _CHECKS and self._agreed >= _AGREE * self._checked

    def _by_order(self, step: int) -> Coming | None:
        coming: Coming | None = None
        for at, length, samples in self._order:
            padded = self._padded(length)
            if at > step and (coming is None or samples * padded > coming.batch.tokens):
                coming = Coming(Batch(samples * padded, padded), length, samples, at, self._complete)
        if coming is None or coming.batch.length <= _LARGER * self._longest:
            return None
        return coming

    def _by_distribution(self) -> Coming | None:
        length, padded = self.longest_sample, self._padded(self.longest_sample)
        if self._steps < _STEPS or not self._samples or not self._seen or padded <= _LARGER * self._longest:
            return None
        # Of so many samples so many should have been longer. That chance kept them away is unlikely; with several
        # batches of exactly the same greatest length, something cuts them, or leaves them out.
        missed = (share_longer(self._histogram, int(_LARGER * self._longest), surely=True) or 0.0) * self._seen
        if self._epoch >= 1.0 or missed >= (_MISSED_WITH_TIES if self._times >= _TIES else _MISSED):
            return None
        if not _MEANS[0] <= self._tokens / self._seen / max(self._mean, 1e-9) <= _MEANS[1]:
            return None
        samples = int(self._samples)
        return Coming(Batch(samples * padded, padded), length, samples, None, self._complete)

    def _padded(self, length: int) -> float:
        if self._least_added == self._most_added:
            return length + self._most_added
        if self._multiple > 1:
            return float(-(-length // self._multiple) * self._multiple)
        return length + max(self._most_added, 0.0) if self._agreed else float(length)


def share_longer(histogram: Any, length: int, *, surely: bool = False) -> float | None:
    """Returns the share of a data set's samples that are longer than a length; None when that is not known.

    Args:
        histogram: ``edges`` and ``counts`` of :class:`~trainwatch.events.RunStarted`'s data set. Within a bin the
            samples are taken to be spread evenly.
        length: The length.
        surely: Leave out the bin that the length lies in.
    """
    if not isinstance(histogram, dict):
        return None
    edges, counts = histogram.get("edges"), histogram.get("counts")
    if not (isinstance(edges, list) and isinstance(counts, list) and len(edges) == len(counts) + 1 and counts):
        return None
    if not all(isinstance(each, int | float) and each - each == 0 for each in [*edges, *counts]):
        return None
    total, above = math.fsum(counts), 0.0
    for low, high, count in zip(edges, edges[1:], counts, strict=False):
        if high > low and (low > length or not surely):
            above += count * min(max((high - 1 - length) / (high - low), 0.0), 1.0)
    return min(max(above / total, 0.0), 1.0) if total > 0 else None


def _table(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _number(value: Any) -> float:
    return float(value) if isinstance(value, int | float) and 0 < value < 1e12 else 0.0


def _whole(value: Any) -> int:
    return int(_number(value))
