"""TensorBoard's event files: a chain of records with checksums, each a protobuf message.

Read without the ``tensorboard`` package, which brings a web server and dozens of megabytes for two messages. Scalars
are what is read: as the Trainer writes them (``simple_value``) and as TensorFlow 2 does (a tensor of one number).
"""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from trainwatch.importing import protobuf
from trainwatch.importing.entries import Entries, plain_keys
from trainwatch.importing.run import ImportedRun, OtherFileError, UnreadableError, name_of

_LENGTH: Final = struct.Struct("<QI")
_CHECKSUM: Final = 4
_MASK: Final = 0xA282EAD8
_POLYNOMIAL: Final = 0x82F63B78
_LARGEST: Final = 2**30
_FLOATS: Final = {1: 4, 2: 8}
"""Type of a tensor to the bytes of a number in it: float and double."""


def looks_like(data: bytes) -> bool:
    """Tells whether bytes begin as an event file does: with a record of which the length has the right checksum."""
    if len(data) < _LENGTH.size:
        return False
    length, checksum = _LENGTH.unpack_from(data)
    return bool(length < _LARGEST and _masked_crc(data[:8]) == checksum)


def read_events(path: Path, data: bytes) -> ImportedRun:
    """Reads an event file.

    Values of one step that were written one after the other are one entry.

    Raises:
        UnreadableError: It is damaged from its begin on.
        OtherFileError: There is no scalar in it.
    """
    if not looks_like(data):
        raise UnreadableError(f"{path}: its name is that of a TensorBoard event file, but its first record is damaged.")
    skipped: Counter[str] = Counter()
    entries: list[dict[str, Any]] = []
    last = None
    for record in _records(data, skipped):
        try:
            step, time, values = _event(record)
        except (protobuf.DamagedError, struct.error):
            skipped["damaged records"] += 1
            continue
        if not values:
            continue
        # The Trainer logs training and evaluation apart, also when both are of the same step.
        group = (step, any(tag.startswith("eval") for tag in values))
        if group != last or any(tag in entries[-1] for tag in values):
            entries.append({"step": step, "_timestamp": time})
        entries[-1].update(values)
        last = group
    if not entries:
        raise OtherFileError(f"{path}: there is no scalar in it.")
    return Entries(path, "TensorBoard events", entries, name=name_of(path), skipped=skipped).run()


def _records(data: bytes, skipped: Counter[str]) -> Iterator[bytes]:
    at, end = 0, len(data)
    while at < end:
        if at + _LENGTH.size > end:
            skipped["last record cut off"] += 1
            return
        length, checksum = _LENGTH.unpack_from(data, at)
        if length > _LARGEST or _masked_crc(data[at : at + 8]) != checksum:
            skipped["damaged records; nothing behind them can be found"] += 1
            return
        begin = at + _LENGTH.size
        at = begin + length + _CHECKSUM
        if at > end:
            skipped["last record cut off"] += 1
            return
        yield data[begin : begin + length]


def _event(record: bytes) -> tuple[int, float, dict[str, float]]:
    step, time = 0, 0.0
    values: dict[str, float] = {}
    for field, kind, content in protobuf.fields(record):
        if field == 1 and kind == protobuf.FIXED64 and isinstance(content, bytes):
            time = protobuf.double(content)
        elif field == 2 and isinstance(content, int):
            step = content
        elif field == 5 and isinstance(content, bytes):
            for value in protobuf.messages(content, 1):
                tag, found = _scalar(value)
                if tag and found is not None:
                    values.update(plain_keys({tag: found}))
    return step, time, values


def _scalar(value: bytes) -> tuple[str, float | None]:
    tag, found = "", None
    for field, kind, content in protobuf.fields(value):
        if field == 1 and isinstance(content, bytes):
            tag = content.decode("utf-8", "replace")
        elif field == 2 and kind == protobuf.FIXED32 and isinstance(content, bytes):
            found = protobuf.double(content)
        elif field == 8 and isinstance(content, bytes):
            found = _tensor(content)
    return tag, found


def _tensor(tensor: bytes) -> float | None:
    """Returns the number in a tensor of one number; None for others."""
    size = _FLOATS.get(protobuf.integer(tensor, 1))
    if size is None:
        return None
    for number in (4, 5, 6):  # its bytes as they are; or lists of floats or doubles, packed
        for raw in protobuf.messages(tensor, number):
            if len(raw) == size:
                return protobuf.double(raw)
    return None


def _table() -> list[int]:
    table = []
    for number in range(256):
        for _ in range(8):
            number = number >> 1 ^ (_POLYNOMIAL if number & 1 else 0)
        table.append(number)
    return table


_TABLE: Final = _table()


def _masked_crc(data: bytes) -> int:
    """Returns TensorFlow's masked CRC-32C; of lengths only, which is what finding the next record rests on."""
    crc = 0xFFFF_FFFF
    for byte in data:
        crc = crc >> 8 ^ _TABLE[(crc ^ byte) & 0xFF]
    crc ^= 0xFFFF_FFFF
    return ((crc >> 15 | crc << 17) + _MASK) & 0xFFFF_FFFF
