"""Writes what W&B and TensorBoard write, byte for byte, so that the tests need neither package."""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Mapping
from typing import Any

BLOCK = 32768


def varint(value: int) -> bytes:
    value &= (1 << 64) - 1
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def field(number: int, value: int | float | bytes | str) -> bytes:
    if isinstance(value, str):
        value = value.encode()
    if isinstance(value, bytes):
        return varint(number << 3 | 2) + varint(len(value)) + value
    if isinstance(value, float):
        return varint(number << 3 | 1) + struct.pack("<d", value)
    return varint(number << 3) + varint(value)


def single(number: int, value: float) -> bytes:
    return varint(number << 3 | 5) + struct.pack("<f", value)


# -- W&B ---------------------------------------------------------------------------------------------------------------


def history(values: Mapping[str, Any]) -> bytes:
    items = [field(1, field(1, key) + field(16, json.dumps(value))) for key, value in values.items()]
    return field(1, 1) + field(2, b"".join(items))


def stats(time: float, values: Mapping[str, Any]) -> bytes:
    stamp = field(1, int(time)) + field(2, int(time % 1 * 1e9))
    items = [field(3, field(1, key) + field(16, json.dumps(value))) for key, value in values.items()]
    return field(7, field(2, stamp) + b"".join(items))


def run(name: str, project: str) -> bytes:
    return field(17, field(1, "abc123") + field(3, project) + field(8, name))


def exited(status: int) -> bytes:
    return field(18, field(1, status))


def wandb_file(*records: bytes) -> bytes:
    out = bytearray(b":W&B\xe1\xbe\x00")

    def put(kind: int, data: bytes) -> None:
        out.extend(struct.pack("<IHB", zlib.crc32(bytes([kind]) + data), len(data), kind) + data)

    for record in records:
        rest, begun = record, False
        while True:
            room = BLOCK - len(out) % BLOCK
            if room < 7:
                out.extend(bytes(room))
                continue
            part, rest = rest[: room - 7], rest[room - 7 :]
            put((3 if begun else 2) if rest else (4 if begun else 1), part)
            begun = True
            if not rest:
                break
    return bytes(out)


# -- TensorBoard -------------------------------------------------------------------------------------------------------


def masked_crc(data: bytes) -> int:
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    crc ^= 0xFFFFFFFF
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def scalar(tag: str, value: float) -> bytes:
    return field(1, tag) + single(2, value)


def tensor(tag: str, value: float) -> bytes:
    """A scalar as TensorFlow 2 writes it."""
    return field(1, tag) + field(8, field(1, 1) + field(2, b"") + field(5, struct.pack("<f", value)))


def event(time: float, step: int, *values: bytes) -> bytes:
    return field(1, time) + field(2, step) + field(5, b"".join(field(1, value) for value in values))


def event_file(*records: bytes) -> bytes:
    out = b""
    for record in (field(1, 1.0) + field(3, "brain.Event:2"), *records):
        length = struct.pack("<Q", len(record))
        out += length + struct.pack("<I", masked_crc(length)) + record + struct.pack("<I", masked_crc(record))
    return out
