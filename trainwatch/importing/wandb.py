"""W&B's local files: the run's ``.wandb`` and the JSON lines that older versions wrote beside it.

A ``.wandb`` file is a log in LevelDB's format (blocks of 32 KiB, records with a checksum that may span blocks) of
protobuf messages. What is read of them: the run's names, history, system statistics and the exit status. Field numbers
are those of ``wandb_internal.proto``.
"""

from __future__ import annotations

import json
import math
import struct
import zlib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from trainwatch.importing import protobuf
from trainwatch.importing.entries import Entries, number, plain_keys
from trainwatch.importing.run import ImportedRun, OtherFileError, UnreadableError, name_of
from trainwatch.importing.system import Reading, Samples, run_of

MAGIC: Final = b":W&B"
_FILE_HEADER: Final = 7
_BLOCK: Final = 32768
_HEADER: Final = struct.Struct("<IHB")
_FULL, _FIRST, _MIDDLE, _LAST = 1, 2, 3, 4
_SEEDS: Final = {kind: zlib.crc32(bytes([kind])) for kind in (_FULL, _FIRST, _MIDDLE, _LAST)}
_DAMAGED: Final = "damaged records"
_CUT_OFF: Final = "last record cut off"

_HISTORY, _STATS, _RUN, _EXIT = 2, 7, 17, 18
_NUMBERS: Final = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}


def is_history(entry: Any) -> bool:
    """Tells whether a JSON line is one of W&B's history."""
    return isinstance(entry, dict) and ("_step" in entry or "_timestamp" in entry)


def is_system(entry: Any) -> bool:
    """Tells whether a JSON line is one of W&B's system readings."""
    return isinstance(entry, dict) and any(key.startswith("system.") for key in entry)


def read_history_lines(path: Path, lines: list[Any], skipped: Counter[str]) -> ImportedRun:
    """Reads ``wandb-history.jsonl``."""
    entries = [plain_keys(line) if isinstance(line, dict) else line for line in lines]
    return Entries(path, "W&B history", entries, name=name_of(path), skipped=skipped).run()


def read_system_lines(path: Path, lines: list[Any], skipped: Counter[str]) -> ImportedRun:
    """Reads ``wandb-events.jsonl``."""
    stamped = any(isinstance(line, dict) and number(line.get("_timestamp")) is not None for line in lines)
    clock = "_timestamp" if stamped else "_runtime"

    def readings() -> Iterator[Reading]:
        for line in lines:
            time = number(line.get(clock)) if isinstance(line, dict) else None
            if time is None:
                skipped["lines without a time"] += 1
                continue
            for series, value in line.items():
                found = number(value) if series.startswith("system.") else None
                if found is not None:
                    yield Reading(time, series, found)

    return run_of(
        path,
        readings(),
        format="W&B system readings",
        name=name_of(path),
        clock="file" if stamped else "relative",
        skipped=skipped,
    )


def read_records(path: Path, data: bytes) -> ImportedRun:
    """Reads a ``.wandb`` file.

    Raises:
        UnreadableError: Not one record in it is whole.
        OtherFileError: The run logged nothing.
    """
    skipped: Counter[str] = Counter()
    entries: list[dict[str, Any]] = []
    readings: list[Reading] = []
    name, project, ended = "", "", None
    count = 0
    for record in _records(data, skipped):
        try:
            for field, _, content in protobuf.fields(record):
                if not isinstance(content, bytes):
                    continue
                if field == _HISTORY:
                    entries.append(plain_keys(_history(content)))
                elif field == _STATS:
                    readings += _stats(content)
                elif field == _RUN:
                    name = protobuf.text(content, 8) or protobuf.text(content, 1) or name
                    project = protobuf.text(content, 3) or project
                elif field == _EXIT:
                    ended = protobuf.integer(content, 1)
            count += 1
        except (protobuf.DamagedError, struct.error):
            skipped[_DAMAGED] += 1
    if not count:
        raise UnreadableError(f"{path}: not one record in it is whole. Copy it again from where it was written.")
    name = name or name_of(path)
    notes = [f"W&B noted exit status {ended}."] if ended else []
    unknown: Counter[str] = Counter()  # W&B reads disks, networks and much else that is none of our business
    if not entries:
        if not readings:
            raise OtherFileError(f"{path}: the run logged nothing: there is no history in it and no system reading.")
        return run_of(path, readings, format=".wandb", name=name, clock="file", skipped=unknown, project=project)
    return Entries(
        path,
        ".wandb",
        entries,
        name=name,
        skipped=skipped,
        finished=ended == 0,
        project=project,
        notes=notes,
        samples=Samples(readings, unknown) if readings else None,
    ).run()


def _history(content: bytes) -> dict[str, Any]:
    entry: dict[str, Any] = {}
    for item in protobuf.messages(content, 1):
        keys: list[str] = []
        value: float | None = None
        for field, _, found in protobuf.fields(item):
            if field in (1, 2) and isinstance(found, bytes):
                keys.append(found.decode("utf-8", "replace"))
            elif field == 5 and isinstance(found, int):
                value = found - (1 << 64) if found >= 1 << 63 else found
            elif field == 6 and isinstance(found, bytes):
                value = protobuf.double(found)
            elif field in (8, 16) and isinstance(found, bytes):
                value = _json_number(found)
        if keys and value is not None:
            entry[".".join(key for key in keys if key)] = value
    return entry


def _stats(content: bytes) -> list[Reading]:
    stamp = protobuf.messages(content, 2)
    if not stamp:
        return []
    time = protobuf.integer(stamp[-1], 1) + protobuf.integer(stamp[-1], 2) / 1e9
    readings = []
    for item in protobuf.messages(content, 3):
        for raw in protobuf.messages(item, 16):
            value = _json_number(raw)
            if value is not None:
                readings.append(Reading(time, protobuf.text(item, 1), value))
    return readings


def _json_number(raw: bytes) -> float | None:
    text = raw.decode("utf-8", "replace").strip('"')
    if text in _NUMBERS:
        return _NUMBERS[text]
    if not text or text[0] not in "-0123456789":
        return None  # texts, tables, pictures
    try:
        return number(json.loads(text))
    except (ValueError, RecursionError):
        return None


def _records(data: bytes, skipped: Counter[str]) -> Iterator[bytes]:
    """Yields the log's records; goes on with the next block behind damaged bytes."""
    at, end = _FILE_HEADER, len(data)
    parts: list[bytes] = []
    while at < end:
        room = _BLOCK - at % _BLOCK
        if room < _HEADER.size:  # the rest of a block in which no header has room
            at += room
            continue
        if at + _HEADER.size > end:
            skipped[_CUT_OFF] += 1
            return
        checksum, size, kind = _HEADER.unpack_from(data, at)
        begin = at + _HEADER.size
        if begin + size > end and kind in _SEEDS and size <= room - _HEADER.size:
            skipped[_CUT_OFF] += 1
            return
        payload = data[begin : begin + size]
        if kind not in _SEEDS or size > room - _HEADER.size or zlib.crc32(payload, _SEEDS[kind]) != checksum:
            skipped[_DAMAGED] += 1
            parts = []
            at += room
            continue
        at = begin + size
        if kind == _FULL:
            parts = []
            yield payload
        elif kind == _FIRST:
            parts = [payload]
        elif parts:  # else its begin was damaged
            parts.append(payload)
            if kind == _LAST:
                yield b"".join(parts)
                parts = []
    if parts:
        skipped[_CUT_OFF] += 1
