"""How a chunk of points lies in a BLOB.

Codec 1: step (i64), time (f64) and value (f64), each little-endian. Steps and the bit patterns of times are kept as
differences, because they grow evenly; then all first bytes of a column, all second bytes … lie together, because
neighbours share their high bytes; zstd over the whole. About 6 bytes a point instead of 24, and as fast to read back as
the raw bytes are to fetch. Every bit survives, NaN and ±Infinity included.

Codec 2: the same, with the points' positions before them; of points that are some of a series only.
"""

from __future__ import annotations

import threading
from typing import Final, NamedTuple

import numpy as np
import zstandard
from numpy.typing import NDArray

CODEC: Final = 1
CHOSEN_CODEC: Final = 2
_WIDTH: Final = 8
_COLUMNS: Final = 3
_local = threading.local()  # zstd contexts must not be shared by threads, and are too dear to make per chunk


class Columns(NamedTuple):
    """Points of one series as columns of equal length; a step that is not known is -1."""

    step: NDArray[np.int64]
    time: NDArray[np.float64]
    value: NDArray[np.float64]

    def take(self, index: slice | NDArray[np.int64] | NDArray[np.bool_]) -> Columns:
        """Returns some of the points."""
        return Columns(self.step[index], self.time[index], self.value[index])


def pack(columns: Columns) -> bytes:
    """Packs points into a BLOB of :data:`CODEC`."""
    return _pack_words(*_words(columns))


def unpack(codec: int, data: bytes) -> Columns:
    """Unpacks a BLOB.

    Raises:
        ValueError: The codec is of a newer TrainWatch.
    """
    if codec != CODEC:
        raise ValueError(f"points are stored with codec {codec}, which this version of TrainWatch does not know")
    return _columns(_unpack_words(data, _COLUMNS))


def pack_chosen(position: NDArray[np.int64], columns: Columns) -> bytes:
    """Packs some of a series' points, with their positions, into a BLOB of :data:`CHOSEN_CODEC`."""
    return _pack_words(np.diff(position, prepend=np.int64(0)).view(np.uint64), *_words(columns))


def unpack_chosen(codec: int, data: bytes) -> tuple[NDArray[np.int64], Columns]:
    """Unpacks what :func:`pack_chosen` made.

    Raises:
        ValueError: The codec is of a newer TrainWatch.
    """
    if codec != CHOSEN_CODEC:
        raise ValueError(f"points are stored with codec {codec}, which this version of TrainWatch does not know")
    words = _unpack_words(data, _COLUMNS + 1)
    return np.cumsum(words[0].view(np.int64)), _columns(words[1:])


def _words(columns: Columns) -> tuple[NDArray[np.uint64], ...]:
    return (
        _differences(columns.step),
        _differences(np.ascontiguousarray(columns.time).view(np.int64)),
        np.ascontiguousarray(columns.value).view(np.uint64),
    )


def _differences(column: NDArray[np.int64]) -> NDArray[np.uint64]:
    """Returns each number less the one before. Like ``np.diff`` with a 0 before the first, in a third of the time."""
    found = np.array(column, np.int64)
    found[1:] -= column[:-1]
    return found.view(np.uint64)


def _columns(words: NDArray[np.uint64]) -> Columns:
    return Columns(
        np.cumsum(words[0].view(np.int64)),
        np.cumsum(words[1].view(np.int64)).view(np.float64),
        words[2].view(np.float64),
    )


def _pack_words(*columns: NDArray[np.uint64]) -> bytes:
    words = np.empty((len(columns), len(columns[0])), dtype="<u8")
    for number, column in enumerate(columns):
        words[number] = column
    shuffled = words.view(np.uint8).reshape(len(columns), -1, _WIDTH).transpose(0, 2, 1)
    return compress(shuffled.tobytes())


def _unpack_words(data: bytes, columns: int) -> NDArray[np.uint64]:
    raw = np.frombuffer(decompress(data), dtype=np.uint8)
    return np.ascontiguousarray(raw.reshape(columns, _WIDTH, -1).transpose(0, 2, 1)).view("<u8")[:, :, 0]


def join(parts: list[Columns]) -> Columns:
    """Puts columns one behind the other."""
    if len(parts) == 1:
        return parts[0]
    if not parts:
        return Columns(np.empty(0, np.int64), np.empty(0), np.empty(0))
    return Columns(
        np.concatenate([part.step for part in parts]),
        np.concatenate([part.time for part in parts]),
        np.concatenate([part.value for part in parts]),
    )


def compress(data: bytes) -> bytes:
    """Compresses with zstd, for speed rather than size."""
    return _compressor().compress(data)


def decompress(data: bytes) -> bytes:
    """Reverses :func:`compress`."""
    return _decompressor().decompress(data)


def _compressor() -> zstandard.ZstdCompressor:
    if not hasattr(_local, "compressor"):
        _local.compressor = zstandard.ZstdCompressor(level=1)
    found: zstandard.ZstdCompressor = _local.compressor
    return found


def _decompressor() -> zstandard.ZstdDecompressor:
    if not hasattr(_local, "decompressor"):
        _local.decompressor = zstandard.ZstdDecompressor()
    found: zstandard.ZstdDecompressor = _local.decompressor
    return found
