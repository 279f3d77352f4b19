"""The peaks of many real trainings, kept in a file, since what holds for nineteen of twenty takes more than one.

``python -m tests.training.recorded_peaks`` trains them anew and writes the file; that takes an hour. They are trainings
of :mod:`tests.training.long_batches`, with other lengths of samples or with the same ones again.
"""

from __future__ import annotations

import csv
import gzip
import io
import tempfile
from pathlib import Path
from typing import Any, Final, NamedTuple

from tests.training.long_batches import LONGEST, SHARP, run

FILE: Final = Path(__file__).with_suffix(".csv.gz")
STEPS: Final = 300
SAMPLES: Final = 2
"""In a batch."""


class Step(NamedTuple):
    """What was recorded of a step: tokens of its longest sample; KiB."""

    length: int
    peak: int
    resident: int


def trainings() -> dict[str, dict[str, Any]]:
    """Returns what is trained, by name."""
    found: dict[str, dict[str, Any]] = {}
    for seed in range(24):
        found[f"defaults-{seed}"] = {"glibc": {}, "seed": seed, "threads": 2 if seed in (2, 5, 13, 21) else 1}
    for number in range(14):
        found[f"defaults-again-{number}"] = {"glibc": {}}
    for seed in range(6):
        found[f"sdpa-{seed}"] = {"glibc": {}, "seed": seed, "attention": "sdpa"}
        found[f"shuffled-{seed}"] = {"glibc": {}, "seed": seed, "shuffle": 1}
    for seed in range(8):
        found[f"sharp-{seed}"] = {"glibc": SHARP, "seed": seed}
        found[f"sharp-again-{seed}"] = {"glibc": SHARP}
    return found


def read() -> dict[str, list[Step]]:
    """Returns the steps of each training, in order, up to two after the longest batch."""
    found: dict[str, list[Step]] = {}
    for name, *values in csv.reader(io.StringIO(gzip.decompress(FILE.read_bytes()).decode())):
        found.setdefault(name, []).append(Step(*map(int, values)))
    return found


def longest(steps: list[Step]) -> int:
    """Returns the place of the longest batch."""
    return next(place for place, step in enumerate(steps) if step.length == LONGEST)


def write(found: dict[str, list[Step]]) -> None:
    """Writes the file, the same bytes for the same steps."""
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows((name, *step) for name in sorted(found) for step in found[name])
    FILE.write_bytes(gzip.compress(text.getvalue().encode(), mtime=0))


def main() -> None:
    from tests.training.tiny import of
    from trainwatch.events import StepEnded

    found: dict[str, list[Step]] = {}
    for name, options in trainings().items():
        with tempfile.TemporaryDirectory() as folder:
            events = run(Path(folder), steps=STEPS, **options)
        found[name] = [
            Step(
                round(event.values["train/batch_length"]),
                round(event.devices["cpu"]["memory/peak"] / 1024),
                round(event.devices["cpu"]["memory/resident"] / 1024),
            )
            for event in of(StepEnded, events)
        ]
    write(found)


if __name__ == "__main__":
    main()
