"""Reads protobuf's wire format, as far as W&B's and TensorBoard's records need it, without their packages."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Final

VARINT: Final = 0
FIXED64: Final = 1
BYTES: Final = 2
FIXED32: Final = 5


class DamagedError(ValueError):
    """The bytes are no message."""


def fields(data: bytes) -> Iterator[tuple[int, int, int | bytes]]:
    """Yields a message's fields: number, wire type, and the value (fixed-size ones as their bytes).

    Raises:
        DamagedError: The bytes are no message.
    """
    at, end = 0, len(data)
    while at < end:
        key, at = _varint(data, at)
        kind = key & 7
        if kind == VARINT:
            value, at = _varint(data, at)
            yield key >> 3, kind, value
            continue
        if kind == BYTES:
            size, at = _varint(data, at)
        elif kind == FIXED64:
            size = 8
        elif kind == FIXED32:
            size = 4
        else:
            raise DamagedError(f"unknown wire type {kind}")
        if at + size > end:
            raise DamagedError("a field ends behind its message")
        yield key >> 3, kind, data[at : at + size]
        at += size


def messages(data: bytes, number: int) -> list[bytes]:
    """Returns the bytes of a field: texts or messages, each as often as it comes."""
    return [value for found, _, value in fields(data) if found == number and isinstance(value, bytes)]


def text(data: bytes, number: int) -> str:
    """Returns a text field, the last one that comes; empty when there is none."""
    found = messages(data, number)
    return found[-1].decode("utf-8", "replace") if found else ""


def integer(data: bytes, number: int) -> int:
    """Returns a signed whole number; 0 when there is none, which is how the format leaves out zeros."""
    found = [value for field, kind, value in fields(data) if field == number and kind == VARINT]
    value = found[-1] if found else 0
    assert isinstance(value, int)
    return value - (1 << 64) if value >= 1 << 63 else value


def double(raw: bytes) -> float:
    """Returns a fixed-size number of eight or four bytes."""
    value: float = struct.unpack("<d" if len(raw) == 8 else "<f", raw)[0]
    return value


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        if at >= len(data) or shift > 63:
            raise DamagedError("a number does not end")
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value & 0xFFFF_FFFF_FFFF_FFFF, at
        shift += 7
