"""Where to look in a data set when there may be no time to look everywhere."""

from __future__ import annotations

from collections.abc import Iterator
from math import gcd


def positions(count: int) -> Iterator[int]:
    """Yields all positions below `count`, such that the first ones lie all over the range; always in the same order.

    Args:
        count: How many there are.
    """
    step = max(1, int(count * 0.6180339887))
    while count > 1 and gcd(step, count) != 1:
        step += 1
    return ((place * step) % count for place in range(count))
