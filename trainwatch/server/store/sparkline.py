"""The small curve in the list of runs, kept up to date point by point so that listing reads no series."""

from __future__ import annotations

import math
import struct
from array import array
from collections.abc import Iterable
from typing import Final

CAPACITY: Final = 60
_HEAD: Final = struct.Struct("<II")


class Sparkline:
    """At most :data:`CAPACITY` buckets; when all are full, neighbours are merged and each holds twice as many points.

    A bucket shows its last step and the mean of its values; one non-finite value in it and it shows that value.

    Args:
        packed: What :meth:`to_bytes` returned; None for an empty one.
    """

    def __init__(self, packed: bytes | None = None) -> None:
        self._stride = 1  # points a bucket holds
        self._filled = 0  # points in the last bucket
        self.step = array("q")
        self.value = array("d")
        if packed:
            self._stride, self._filled = _HEAD.unpack_from(packed)
            middle = _HEAD.size + (len(packed) - _HEAD.size) // 2
            self.step.frombytes(packed[_HEAD.size : middle])
            self.value.frombytes(packed[middle:])

    def extend(self, points: Iterable[tuple[int, float]]) -> None:
        """Adds (step, value) pairs behind the last one. Where steps go back (a resumed run) they replace the rest."""
        for step, value in points:
            if self.step and step < self.step[-1]:
                self._cut(step)
            if self.value and self._filled < self._stride:
                self.step[-1] = step
                self.value[-1] = _mean(self.value[-1], value, self._filled)
                self._filled += 1
                continue
            if len(self.value) == CAPACITY:
                self._halve()
            self.step.append(step)
            self.value.append(value)
            self._filled = 1

    def to_bytes(self) -> bytes:
        """Packs it for the database."""
        return _HEAD.pack(self._stride, self._filled) + self.step.tobytes() + self.value.tobytes()

    def _cut(self, step: int) -> None:
        while self.step and self.step[-1] >= step:
            self.step.pop()
            self.value.pop()
        self._filled = self._stride

    def _halve(self) -> None:
        self.step = self.step[1::2]
        self.value = array("d", (_mean(a, b, 1) for a, b in zip(self.value[::2], self.value[1::2], strict=True)))
        self._stride *= 2


def _mean(mean: float, value: float, weight: int) -> float:
    """Returns the mean of `weight` values with this mean and one more; a non-finite one wins, the newest of two."""
    if not math.isfinite(value):
        return value
    return mean + (value - mean) / (weight + 1) if math.isfinite(mean) else mean
