"""What a benchmark says: a table for people and, as its last line, one JSON object."""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from importlib import metadata
from typing import Any


def quantile(values: Sequence[float], share: float) -> float:
    """Returns the value below which `share` (0 to 1) of the values lie, by linear interpolation.

    Raises:
        ValueError: There are no values.
    """
    if not values:
        raise ValueError("a quantile of nothing")
    ordered = sorted(values)
    place = share * (len(ordered) - 1)
    below = int(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (place - below)


@dataclass
class Figure:
    """One number of a benchmark.

    Attributes:
        name: What was measured.
        measured: The median, or the only value.
        unit: Its unit.
        low: The 10th percentile, None for a single value.
        high: The 90th percentile.
        target: The greatest value wanted; None where none was set.
        note: What people should know about it.
    """

    name: str
    measured: float
    unit: str = ""
    low: float | None = None
    high: float | None = None
    target: float | None = None
    note: str = ""

    @property
    def met(self) -> bool | None:
        """Whether the target was met; None where there is none."""
        return None if self.target is None else self.measured <= self.target


@dataclass
class Report:
    """The figures of one benchmark.

    Args:
        name: The benchmark's name.
        quick: It was a fast run, with few repetitions.
    """

    name: str
    quick: bool
    figures: list[Figure] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    load_before: list[float] = field(default_factory=lambda: _load())

    def one(self, name: str, value: float, unit: str = "", *, target: float | None = None, note: str = "") -> None:
        """Adds a single value."""
        self.figures.append(Figure(name, value, unit, target=target, note=note))

    def many(
        self, name: str, values: Sequence[float], unit: str = "", *, target: float | None = None, note: str = ""
    ) -> None:
        """Adds the median of several values, with its percentiles."""
        self.figures.append(
            Figure(
                name, statistics.median(values), unit, quantile(values, 0.1), quantile(values, 0.9), target, note=note
            )
        )

    def note(self, text: str) -> None:
        """Adds a sentence below the table."""
        self.notes.append(text)

    def finish(self) -> None:
        """Writes the table, the notes and the JSON line."""
        machine = describe_machine() | {"load_before": self.load_before, "load_after": _load()}
        say("")
        table([_HEAD, *map(_cells, self.figures)])
        for text in self.notes:
            say(f"- {text}")
        say(
            f"- Machine: {machine['cores']} cores, {machine['processor']}, Python {machine['python']}; load average"
            f" {machine['load_before'][0]:.1f} before and {machine['load_after'][0]:.1f} after."
        )
        figures = [asdict(one) | {"met": one.met} for one in self.figures]
        content = {"benchmark": self.name, "quick": self.quick, "machine": machine, "figures": figures}
        say(json.dumps(content | {"notes": self.notes}, allow_nan=False))


def options(description: str | None) -> argparse.ArgumentParser:
    """Returns the parser that every benchmark begins with."""
    parser = argparse.ArgumentParser(description=(description or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="few repetitions: a look, not a measurement")
    return parser


def say(text: str) -> None:
    """Writes a line at once."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def table(rows: Sequence[Sequence[str]]) -> None:
    """Writes rows in columns; the first is the head, and all columns but the first are numbers."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    for index, row in enumerate(rows):
        cells = [row[0].ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True))]
        say("  ".join(cells).rstrip())
        if not index:
            say("  ".join("-" * width for width in widths))


def describe_machine() -> dict[str, Any]:
    """Returns what a figure depends on."""
    versions = {}
    for package in ("torch", "transformers", "numpy", "msgspec", "zstandard"):
        try:
            versions[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return {
        "cores": os.cpu_count(),
        "processor": _processor(),
        "system": platform.platform(),
        "python": platform.python_version(),
        "versions": versions,
    }


_HEAD = ("figure", "target", "measured", "p10", "p90", "met?")


def _cells(figure: Figure) -> tuple[str, ...]:
    met = {None: "", True: "yes", False: "NO"}[figure.met]
    target = "" if figure.target is None else f"≤ {_number(figure.target)}"
    measured = f"{_number(figure.measured)} {figure.unit}".rstrip()
    name = f"{figure.name} ({figure.note})" if figure.note else figure.name
    return (name, target, measured, _number(figure.low), _number(figure.high), met)


def _number(value: float | None) -> str:
    if value is None:
        return ""
    size = abs(value)
    if size >= 1000:
        return f"{value:,.0f}"
    return f"{value:.1f}" if size >= 10 else f"{value:.3f}".rstrip("0").rstrip(".")


def _processor() -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            found = next((line.partition(":")[2].strip() for line in file if line.startswith("model name")), "")
    except OSError:
        found = ""
    return found or platform.processor() or platform.machine()


def _load() -> list[float]:
    return [round(value, 2) for value in os.getloadavg()]
