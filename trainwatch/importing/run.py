"""What a reader makes of a file: the same for every format."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, Literal

from trainwatch.events import AnyEvent

Clock = Literal["file", "relative", "made up"]
"""Where the events' times come from: the file's own dates; its seconds since the begin; one second a point."""

Point = tuple[int, int | None, AnyEvent]
"""The index of the logged entry (or of the sample's time), from 0; the rank; and an event made of it."""


class UnreadableError(ValueError):
    """A file cannot be read; the message says what is wrong and what to do."""


class OtherFileError(UnreadableError):
    """The file is whole, but no log of a training: a folder's walk passes it over."""


class ImportedRun:
    """A run as a file tells it.

    Args:
        path: The file.
        format: Its format, for people.
        name: The run's name, as the file or its folder says.
        project: The project, where the file says; else empty.
        clock: Where the events' times come from.
        started: Time of the first event, in seconds; Unix seconds only with clock ``"file"``.
        points: How many points there are.
        skipped: Reason to how many entries were left out; more may be counted while `events` are read.
        notes: Sentences on what had to be assumed.
        make: Makes the events anew, in order.
    """

    def __init__(
        self,
        path: Path,
        *,
        format: str,
        name: str,
        project: str = "",
        clock: Clock,
        started: float,
        points: int,
        skipped: Counter[str],
        notes: Iterable[str] = (),
        make: Callable[[], Iterator[Point]],
    ) -> None:
        self.path = path
        self.format = format
        self.name = name
        self.project = project
        self.clock = clock
        self.started = started
        self.points = points
        self.skipped = skipped
        self.notes = list(notes)
        self._make = make

    def events(self) -> Iterator[Point]:
        """Yields the run's events in order, each with its point's index and its rank."""
        return self._make()

    def origin(self) -> dict[str, Any]:
        """Returns what the run's page should say about where it comes from, as plain values."""
        told: dict[str, Any] = {"file": str(self.path), "format": self.format, "clock": self.clock}
        if self.skipped:
            told["skipped"] = dict(self.skipped)
        if self.notes:
            told["notes"] = self.notes
        return told


def name_of(path: Path) -> str:
    """Returns a name for a run whose file tells none: the file's, or its folder's where all files are called alike."""
    usual = {"trainer_state", "trainer_log", "wandb-history", "wandb-events", "log_history", "metrics", "history"}
    stem = path.name.partition(".")[0] if path.name.startswith("events.out.tfevents") else path.stem
    if stem.lower() not in usual | {"events"}:
        return stem
    for folder in path.resolve().parents:
        # outputs/llama/checkpoint-500/trainer_state.json, wandb/run-1/files/wandb-history.jsonl
        if folder.name and not folder.name.startswith("checkpoint-") and folder.name not in {"files", "logs", "runs"}:
            return folder.name
    return stem
