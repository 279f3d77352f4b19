"""From system readings, as W&B names them, to samples under the catalogue's names.

Memory traces carry the use of a whole card, often without its size, and percentages of the machine's memory. What is
missing is worked out from the whole file, once, and said in a note.
"""

from __future__ import annotations

import math
import re
import statistics
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final, NamedTuple

from trainwatch.events import DeviceValues, RunStarted, Sampled
from trainwatch.importing.run import Clock, ImportedRun, OtherFileError, Point

GIB: Final = 2**30
_NOMINAL: Final = 100 * GIB
_CARDS: Final = tuple(size * GIB for size in (16, 24, 32, 40, 48, 80, 96, 141, 192))
_FULL: Final = 0.9
"""From which share of a common card's size on the largest use says which card it is."""

_UNITS: Final = {
    "bytes": 1.0,
    "b": 1.0,
    "": 1.0,
    "kb": 1e3,
    "kib": 2.0**10,
    # W&B's "MB" are divided by 1024 twice (psutil's bytes), and so are most people's.
    "mb": 2.0**20,
    "mib": 2.0**20,
    "gb": 2.0**30,
    "gib": 2.0**30,
}
_GPU: Final = re.compile(r"(?:system\.)?gpu\.(\d+)\.(\w+)")
_GPU_BYTES: Final = frozenset({"memory_allocated_bytes", "memoryAllocatedBytes", "memory_used", "memoryUsed"})
_GPU_SHARE: Final = frozenset({"memory_allocated_pct", "memoryAllocated", "memory_allocated"})
_GPU_TOTAL: Final = frozenset({"memory_total", "memoryTotal", "memory_capacity"})
_GPU_BUSY: Final = frozenset({"gpu", "utilization", "utilization_gpu"})
_PROCESS: Final = frozenset({"proc.rss", "proc.memory.rssMB"})
_AVAILABLE: Final = frozenset({"host.available", "proc.memory.availableMB"})
_HOST_SHARE: Final = frozenset({"host.memory_percent", "memory_percent", "memory"})


class Reading(NamedTuple):
    """One value of one series.

    Attributes:
        time: Seconds.
        series: Its name, as W&B or a memory trace has it.
        value: The value.
        unit: Its unit, as the file says it; empty where the name tells.
    """

    time: float
    series: str
    value: float
    unit: str = ""


class _Columns:
    """Readings sorted by what they are."""

    def __init__(self) -> None:
        self.device: defaultdict[str, dict[str, float]] = defaultdict(dict)
        self.share: dict[str, float] = {}
        self.available: float | None = None


def _device_of(series: str) -> tuple[str, str]:
    """Returns the device and what is read of it, for a series of a card."""
    found = _GPU.fullmatch(series)
    if not found:
        return "", ""
    return f"cuda:{int(found[1])}", found[2]


def _sort(into: _Columns, reading: Reading) -> bool:
    """Puts a reading where it belongs; tells whether its series is known."""
    series = reading.series.removeprefix("system.")
    unit = reading.unit.lower()
    device, what = _device_of(series)
    if device:
        if what in _GPU_SHARE or (what in _GPU_BYTES and unit in ("percent", "%")):
            into.share[device] = reading.value
        elif what in _GPU_BYTES or what in _GPU_TOTAL:
            name = "memory/device_used" if what in _GPU_BYTES else "memory/capacity"
            into.device[device][name] = reading.value * _UNITS.get(unit, 1.0)
        elif what in _GPU_BUSY:
            into.device[device]["device/utilization"] = reading.value / 100
        else:
            return False
        return True
    scale = _UNITS.get(unit or "mb", 1.0)
    if series in _PROCESS:
        into.device["cpu"]["memory/resident"] = reading.value * scale
    elif series in _AVAILABLE:
        into.available = reading.value * scale
    elif series in _HOST_SHARE:
        into.share["host"] = reading.value
    elif series == "cpu":
        into.device["host"]["host/cpu"] = reading.value / 100
    else:
        return False
    return True


def run_of(
    path: Path,
    readings: Iterable[Reading],
    *,
    format: str,
    name: str,
    clock: Clock,
    skipped: Counter[str],
    project: str = "",
    max_steps: int = 0,
) -> ImportedRun:
    """Makes a run of system readings: one sample for each time.

    Raises:
        OtherFileError: There is no reading of memory among them.
    """
    samples = Samples(readings, skipped)
    if not samples.times:
        raise OtherFileError(
            f"{path}: none of its series is known here. Wanted are W&B's names, such as "
            "gpu.0.memory_allocated_bytes, proc.rss (MB) or host.memory_percent."
        )

    def events() -> Iterator[Point]:
        yield (
            0,
            0,
            RunStarted(time=samples.times[0], name=name, max_steps=max_steps, environment={"imported": run.origin()}),
        )
        yield from samples.events()

    run = ImportedRun(
        path,
        format=format,
        name=name,
        project=project,
        clock=clock,
        started=samples.times[0],
        points=len(set(samples.times)),
        skipped=skipped,
        notes=samples.notes,
        make=events,
    )
    return run


class Samples:
    """System readings, put together by time.

    Args:
        readings: In any order; those with the same time are one sample, a series that comes twice at one time is two.
        skipped: Counts the readings that mean nothing here.
    """

    def __init__(self, readings: Iterable[Reading], skipped: Counter[str]) -> None:
        rows: dict[tuple[float, int], _Columns] = defaultdict(_Columns)
        seen: Counter[tuple[float, str]] = Counter()
        for reading in readings:
            if not math.isfinite(reading.time) or math.isnan(reading.value):
                skipped["readings without a time or a value"] += 1
                continue
            again = seen[reading.time, reading.series]
            seen[reading.time, reading.series] += 1
            columns = rows[reading.time, again]
            if not _sort(columns, reading):
                skipped[f"series {_generic(reading.series)}"] += 1
        kept = sorted(key for key, row in rows.items() if row.device or row.share or row.available is not None)
        self.notes: list[str] = []
        self._rows = [(key[0], rows[key]) for key in kept]
        self.times = [time for time, _ in self._rows]
        self._capacity = self._capacities()

    def events(self) -> Iterator[Point]:
        """Yields the samples in order of time."""
        index, before = -1, math.nan
        for time, columns in self._rows:
            index += time != before
            before = time
            devices = self._values(columns)
            machine = devices.pop("host", None)
            if devices:
                yield index, 0, Sampled(time=time, rank=0, devices=devices)
            if machine:  # as an agent does: what belongs to the whole node is of no rank
                yield index, None, Sampled(time=time, devices={"host": machine})

    def _values(self, columns: _Columns) -> DeviceValues:
        devices: DeviceValues = {device: dict(values) for device, values in columns.device.items()}
        for device, percent in columns.share.items():
            capacity = self._capacity.get(device)
            if capacity:
                devices.setdefault(device, {}).setdefault("memory/device_used", max(capacity * percent / 100, 0.0))
        if columns.available is not None and "host" in self._capacity:
            # Finer than the percentage, which comes with one decimal.
            used = max(self._capacity["host"] - columns.available, 0.0)
            devices.setdefault("host", {})["memory/device_used"] = used
        for device, values in devices.items():
            if device in self._capacity and "memory/device_used" in values:
                values.setdefault("memory/capacity", self._capacity[device])
        return {device: values for device, values in devices.items() if values}

    def _capacities(self) -> dict[str, float]:
        """Works out what the file does not say: how much each device holds."""
        derived: defaultdict[str, list[float]] = defaultdict(list)
        largest: defaultdict[str, float] = defaultdict(float)
        told: set[str] = set()
        for _, columns in self._rows:
            for device, values in columns.device.items():
                if "memory/capacity" in values:
                    told.add(device)
                used = values.get("memory/device_used")
                if used is not None and math.isfinite(used):
                    largest[device] = max(largest[device], used)
                    percent = columns.share.get(device, 0.0)
                    if 1 <= percent <= 100:
                        derived[device].append(used / percent * 100)
            percent = columns.share.get("host", 100.0)
            if columns.available is not None and 0 < percent < 99:
                derived["host"].append(columns.available / (1 - percent / 100))
        capacities = {device: statistics.median(found) for device, found in derived.items() if device not in told}
        shares = {device for _, columns in self._rows for device in columns.share}
        nominal = sorted(device for device in shares - set(capacities) - told if device not in largest)
        if nominal:
            capacities |= dict.fromkeys(nominal, float(_NOMINAL))
            self.notes.append(
                f"Of {', '.join(nominal)} the file tells percentages only: they are shown as if 100 % were 100 GiB."
            )
        unknown = sorted(device for device in largest if device not in capacities and device not in told)
        capacities |= self._guessed(unknown, max(largest.values(), default=0.0))
        return capacities

    def _guessed(self, devices: list[str], largest: float) -> dict[str, float]:
        """Returns the size of the card that nothing but the largest use tells; nothing when that could be several."""
        card = next((size for size in _CARDS if largest <= size), None)
        if not devices or card is None or largest < _FULL * card:
            return {}
        self.notes.append(
            f"The file does not tell how large the cards are: {card // GIB} GiB are assumed, since up to "
            f"{largest / GIB:.1f} GiB were in use."
        )
        return dict.fromkeys(devices, float(card))


def _generic(series: str) -> str:
    return re.sub(r"\d+", "N", series)
