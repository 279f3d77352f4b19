"""How a stretch of layer measurements lies in BLOBs: one for the places in time, one for each quantity.

Codec 1. A quantity is a table of measurements × layers. Its BLOB is one byte for the width of a number (4 or 8), then,
compressed with zstd, a bit for each cell that says whether there was a value at all, and the values as little-endian
floats with all first bytes together, all second bytes … Four bytes are enough for a norm unless it would overflow or
vanish in them: then the whole stretch is kept in eight. NaN and ±Infinity survive, and are no missing values.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from trainwatch.server.store.codec import compress, decompress

LAYER_CODEC: Final = 1

_TINY: Final = float(np.finfo(np.float32).tiny)
_HUGE: Final = float(np.finfo(np.float32).max)


class Grid(NamedTuple):
    """A quantity: measurements × layers.

    Attributes:
        value: The values; where there was none, NaN.
        known: Whether there was one.
    """

    value: NDArray[np.float64]
    known: NDArray[np.bool_]


def grid(rows: list[list[float | None]], layers: int) -> Grid:
    """Makes a grid of what events hold; an empty row is one that was not measured."""
    full = [row or [None] * layers for row in rows]
    known = np.array([[value is not None for value in row] for row in full], dtype=np.bool_).reshape(len(rows), layers)
    value = np.array([[np.nan if value is None else value for value in row] for row in full], dtype=np.float64)
    return Grid(value.reshape(len(rows), layers), known)


def pack_grid(cells: Grid) -> bytes:
    """Packs a quantity."""
    size = np.abs(cells.value[np.isfinite(cells.value)])
    narrow = not np.any((size > _HUGE) | ((size < _TINY) & (size > 0)))
    width = 4 if narrow else 8
    value = np.ascontiguousarray(cells.value, dtype=f"<f{width}")
    shuffled = value.view(np.uint8).reshape(-1, width).T
    return bytes([width]) + compress(np.packbits(cells.known).tobytes() + shuffled.tobytes())


def unpack_grid(codec: int, data: bytes, measurements: int) -> Grid:
    """Unpacks a quantity.

    Raises:
        ValueError: The codec is of a newer TrainWatch.
    """
    _check(codec)
    width = data[0]
    raw = np.frombuffer(decompress(data[1:]), dtype=np.uint8)
    # n bits and n numbers: n is what fits.
    count = _cells(raw.size, width)
    bits = -(-count // 8)
    known = np.unpackbits(raw[:bits], count=count).astype(np.bool_).reshape(measurements, -1)
    shuffled = np.ascontiguousarray(raw[bits:].reshape(width, count).T)
    return Grid(shuffled.view(f"<f{width}").astype(np.float64).reshape(measurements, -1), known)


def pack_places(step: NDArray[np.int64], time: NDArray[np.float64]) -> bytes:
    """Packs the steps and times of measurements."""
    return compress(np.stack((step.astype("<i8").view(np.uint64), time.astype("<f8").view(np.uint64))).tobytes())


def unpack_places(codec: int, data: bytes) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Unpacks them.

    Raises:
        ValueError: The codec is of a newer TrainWatch.
    """
    _check(codec)
    words = np.frombuffer(decompress(data), dtype="<u8").reshape(2, -1)
    return words[0].view(np.int64), words[1].view(np.float64)


def _cells(size: int, width: int) -> int:
    count = size * 8 // (8 * width + 1)
    while -(-count // 8) + count * width < size:
        count += 1
    return count


def _check(codec: int) -> None:
    if codec != LAYER_CODEC:
        raise ValueError(f"layers are stored with codec {codec}, which this version of TrainWatch does not know")
