"""Running statistics for rules: bounded memory, constant or logarithmic time for each value."""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from collections import deque


class RunningMedian:
    """Quantiles of the newest finite values.

    Args:
        size: How many values count.
    """

    __slots__ = ("_order", "_size", "_sorted")

    def __init__(self, size: int) -> None:
        self._size = size
        self._order: deque[float] = deque()
        self._sorted: list[float] = []

    def __len__(self) -> int:
        return len(self._order)

    @property
    def is_full(self) -> bool:
        """Whether as many values were seen as count."""
        return len(self._order) == self._size

    def add(self, value: float) -> None:
        """Takes the next value; one that is not finite is left out."""
        if not math.isfinite(value):
            return
        if len(self._order) == self._size:
            old = self._order.popleft()
            del self._sorted[bisect_left(self._sorted, old)]
        self._order.append(value)
        insort(self._sorted, value)

    def resize(self, size: int) -> None:
        """Counts more or fewer values from here on; the oldest that are too many are forgotten.

        Args:
            size: How many.
        """
        self._size = size
        while len(self._order) > size:
            del self._sorted[bisect_left(self._sorted, self._order.popleft())]

    def quantile(self, share: float) -> float:
        """Returns the value below which a share of the window lies; NaN when it is empty."""
        values = self._sorted
        if not values:
            return math.nan
        return values[min(int(share * len(values)), len(values) - 1)]

    @property
    def median(self) -> float:
        """The median (the upper one of two); NaN when nothing was seen."""
        values = self._sorted
        return values[len(values) // 2] if values else math.nan

    def clear(self) -> None:
        """Forgets all values."""
        self._order.clear()
        self._sorted.clear()
