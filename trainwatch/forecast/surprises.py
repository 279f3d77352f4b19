"""How predictions fared: whether they were worse than foreseen, and whether their errors follow each other."""

from __future__ import annotations

import math
from typing import Final

_KEPT: Final = 0.98
_LARGEST: Final = 10.0
_MOST_ALIKE: Final = 0.8
_ENOUGH: Final = 4.0


class Surprises:
    """Remembers the errors of about the last fifty predictions, in a state of fixed size."""

    __slots__ = ("_count", "_last", "_products", "_relative", "_squares")

    def __init__(self) -> None:
        self._count = self._relative = 0.0
        self._last = self._products = self._squares = 0.0

    def add(self, off: float, clipped: float, spread: float) -> None:
        """Takes the next one.

        Args:
            off: What came less what was foreseen.
            clipped: As much of that as is believed.
            spread: The error that was foreseen, above zero.
        """
        self._count = self._count * _KEPT + 1.0
        self._relative = self._relative * _KEPT + min(abs(off) / spread, _LARGEST) ** 2
        self._squares = self._squares * _KEPT + clipped * clipped
        self._products = self._products * _KEPT + clipped * self._last
        self._last = clipped

    @property
    def widening(self) -> float:
        """By how much the errors exceeded what was foreseen; at least 1."""
        return max(1.0, math.sqrt(self._relative / self._count)) if self._count >= _ENOUGH else 1.0

    @property
    def alike(self) -> float:
        """How many errors are worth one independent one, from the correlation of each with the next; at least 1."""
        correlation = self._products / self._squares if self._squares > 0 else 0.0
        correlation = min(max(correlation, 0.0), _MOST_ALIKE)
        return (1.0 + correlation) / (1.0 - correlation)
