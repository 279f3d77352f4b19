"""CSV: any table with a step and metrics, nvidia-smi's output, and memory traces."""

from __future__ import annotations

import csv
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from datetime import datetime, timezone
from itertools import pairwise
from pathlib import Path
from typing import Final

from trainwatch.importing.entries import Entries, number, plain_keys
from trainwatch.importing.run import ImportedRun, OtherFileError, UnreadableError, name_of
from trainwatch.importing.system import Reading, run_of

_TRACE: Final = ("t_seconds", "series", "value")
_STAMP: Final = re.compile(r"(\d{4})[/-](\d\d)[/-](\d\d)[ T](\d\d):(\d\d):(\d\d)(?:\.(\d{1,6})\d*)?")
_SMI_HEADER: Final = re.compile(r"([\w.()]+)\s*(?:\[([^\]]+)\])?")
_SMI_VALUE: Final = re.compile(r"(-?(?:\d+\.?\d*|\.\d+))\s*(MiB|GiB|KiB|B|%)?")
_SMI_SERIES: Final = {
    "memory.used": "memory_used",
    "memory.used_gpu": "memory_used",
    "memory.total": "memory_total",
    "utilization.gpu": "utilization",
}
_SMI_PLAIN: Final = ("timestamp", "index", "memory.used", "memory.total")
"""The columns that are taken for granted where the header was left out (``noheader``)."""

_STEP_COLUMNS: Final = ("step", "steps", "global_step", "iteration", "iter", "current_steps", "_step")
_SECONDS_COLUMNS: Final = ("t_seconds", "seconds", "relative time (process)", "elapsed")
_DATE_COLUMNS: Final = ("_timestamp", "timestamp", "wall time", "wall_time", "time")


def read_table(path: Path, text: str) -> ImportedRun:
    """Reads a table.

    Raises:
        UnreadableError: It is no table of a known kind.
    """
    try:
        rows = [row for row in csv.reader(text.splitlines(), delimiter=_delimiter(text)) if row]
    except csv.Error as error:
        raise UnreadableError(f"{path}: this is no CSV that can be read ({error}).") from None
    if not rows:
        raise UnreadableError(f"{path} is empty.")
    header = [cell.strip() for cell in rows[0]]
    if tuple(cell.lower() for cell in header[:3]) == _TRACE:
        return _trace(path, rows[1:])
    lowered = [cell.partition("[")[0].strip().lower() for cell in header]
    if "timestamp" in lowered and any(cell in _SMI_SERIES for cell in lowered):
        return _smi(path, lowered, _smi_units(header), rows[1:])
    if _STAMP.fullmatch(header[0]):
        return _smi(path, *_smi_guess(path, header), rows)
    return _generic(path, header, rows[1:])


def _delimiter(text: str) -> str:
    first = text.partition("\n")[0]
    return max(",\t;", key=first.count)


# -- memory traces -----------------------------------------------------------------------------------------------------


def _trace(path: Path, rows: Sequence[Sequence[str]]) -> ImportedRun:
    skipped: Counter[str] = Counter()

    def readings() -> Iterator[Reading]:
        for row in rows:
            time = number(row[0])
            value = number(row[2]) if len(row) > 2 else None
            if time is None or value is None:
                skipped["lines without a time or a value"] += 1
                continue
            yield Reading(time, row[1].strip(), value, row[3].strip() if len(row) > 3 else "")

    return run_of(path, readings(), format="memory trace", name=name_of(path), clock="relative", skipped=skipped)


# -- nvidia-smi --------------------------------------------------------------------------------------------------------


def _smi_units(header: Sequence[str]) -> list[str]:
    return [(match[2] or "") if (match := _SMI_HEADER.fullmatch(cell)) else "" for cell in header]


def _smi_guess(path: Path, first: Sequence[str]) -> tuple[list[str], list[str]]:
    """Returns columns and units for output without a header: by their number, and by what their values look like."""
    if len(first) < 3 or not first[1].strip().isdigit():
        raise UnreadableError(
            f"{path}: without its header it cannot be told what its columns are. Write it with a header "
            f"(--format=csv), or with --query-gpu={','.join(_SMI_PLAIN)}."
        )
    names = list(_SMI_PLAIN[: len(first)])
    names += [f"column {index}" for index in range(len(names), len(first))]
    if len(first) > 4:
        sizes = [index for index, cell in enumerate(first) if cell.strip().endswith("MiB")]
        if len(sizes) >= 2:
            names = ["timestamp", "index"] + [f"column {index}" for index in range(2, len(first))]
            names[sizes[0]], names[sizes[1]] = "memory.used", "memory.total"
    return names, [""] * len(names)


def _smi(path: Path, names: Sequence[str], units: Sequence[str], rows: Sequence[Sequence[str]]) -> ImportedRun:
    skipped: Counter[str] = Counter()
    readings: list[Reading] = []
    at = names.index("timestamp")
    which = names.index("index") if "index" in names else None
    ranks: Counter[float] = Counter()
    for row in rows:
        time = _date(row[at]) if len(row) > at else None
        if time is None:
            skipped["lines without a time"] += 1
            continue
        if which is not None:
            card = row[which].strip() if len(row) > which else ""
            if not card.isdigit():
                skipped["lines without a card"] += 1
                continue
        else:  # the cards come in their order at each time
            card = str(ranks[time])
            ranks[time] += 1
        for name, unit, cell in zip(names, units, row, strict=False):
            series = _SMI_SERIES.get(name)
            if series is None:
                continue
            found = _SMI_VALUE.fullmatch(cell.strip())
            if not found:
                skipped[f"values of {name} that are no number"] += 1
                continue
            told = found[2] or unit or ("MiB" if series != "utilization" else "%")
            readings.append(Reading(time, f"gpu.{card}.{series}", float(found[1]), told))
    return run_of(
        path, _one_clock(readings), format="nvidia-smi CSV", name=name_of(path), clock="file", skipped=skipped
    )


def _one_clock(readings: list[Reading]) -> list[Reading]:
    """Gives the cards of one look the same time: nvidia-smi stamps each line some milliseconds later."""
    times = sorted({reading.time for reading in readings})
    instead = {time: time for time in times[:1]}
    gaps = sorted(later - earlier for earlier, later in pairwise(times))
    tolerance = min(0.1, gaps[-1] / 4) if gaps else 0.0
    for earlier, later in pairwise(times):
        instead[later] = instead[earlier] if later - earlier <= tolerance else later
    return [reading._replace(time=instead[reading.time]) for reading in readings]


def _date(text: str) -> float | None:
    found = _STAMP.fullmatch(text.strip())
    if not found:
        return None
    year, month, day, hour, minute, second = (int(part) for part in found.groups()[:6])
    micro = int((found[7] or "0").ljust(6, "0"))
    try:
        # The file does not tell its zone; what matters here are the distances.
        return datetime(year, month, day, hour, minute, second, micro, tzinfo=timezone.utc).timestamp()
    except (ValueError, OverflowError):
        return None


# -- any table ---------------------------------------------------------------------------------------------------------


def _generic(path: Path, header: Sequence[str], rows: Sequence[Sequence[str]]) -> ImportedRun:
    plain = [next(iter(plain_keys({name: 0}))) for name in header]
    if "step" not in plain:
        step = next((index for index, name in enumerate(plain) if name.lower() in _STEP_COLUMNS), None)
        if step is not None:
            plain[step] = "step"
    seconds_at = next((index for index, name in enumerate(plain) if name.lower() in _SECONDS_COLUMNS), None)
    date_at = next((index for index, name in enumerate(plain) if name.lower() in _DATE_COLUMNS), None)
    metrics = [name for name in plain if name and name != "step"]
    if "step" not in plain or not metrics or all(number(cell) is not None for cell in header):
        raise OtherFileError(
            f"{path}: its first line names no step. Wanted is a table with a column 'step' and one for each metric "
            "(loss, grad_norm, eval_loss …), nvidia-smi's CSV, or a memory trace (t_seconds,series,value,unit)."
        )
    skipped: Counter[str] = Counter()
    entries: list[dict[str, float]] = []
    seconds: list[float] = []
    for row in rows:
        if len(row) < len(header) and row is rows[-1]:
            skipped["last line cut off"] += 1
            break
        entry: dict[str, float] = {}
        for index, (name, cell) in enumerate(zip(plain, row, strict=False)):
            text = cell.strip()
            found = number(text) if text else None
            if index == date_at and text:
                found = found if found is not None else _date(text)
                name = "_timestamp"
            elif text and found is None and index != seconds_at:
                skipped[f"values of {header[index]} that are no number"] += 1
            if found is not None and index != seconds_at:
                entry[name] = found
            elif found is not None:
                seconds.append(found)
        entries.append(entry)
    relative = seconds if len(seconds) == len(entries) else None
    return Entries(path, "CSV", entries, name=name_of(path), seconds=relative, skipped=skipped).run()
