"""Runs that TrainWatch itself recorded, from their journals."""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import msgspec

from trainwatch import events, journal
from trainwatch.events import AnyEvent, Evaluated, Event, Logged, ProcessGone, RunStarted, Sampled, StepEnded
from trainwatch.importing.run import ImportedRun, Point, UnreadableError

_Stamped = tuple[float, int | None, AnyEvent]


def read_recorded(journals: Path, run: str) -> ImportedRun:
    """Reads a run's journals, of all its ranks and nodes.

    A point is a step of the first rank; in a run that was imported, what was logged or sampled.

    Args:
        journals: The folder of all journals.
        run: The run's id.

    Raises:
        UnreadableError: There is no such run, or nothing in it.
    """
    directory = journals / run
    sources = list(journal.sources(journals, run))
    skipped: Counter[str] = Counter()
    name, begin = "", None
    steps = entries = samples = 0
    for source in sources:
        for time, rank, event in _stamped(source, skipped):
            begin = time if begin is None else min(begin, time)
            if isinstance(event, RunStarted) and (rank == 0 or not name):
                name = event.name
            steps += rank == 0 and isinstance(event, StepEnded)
            entries += rank == 0 and isinstance(event, Logged | Evaluated)
            samples += rank == 0 and isinstance(event, Sampled)
    if begin is None:
        raise UnreadableError(f"{directory}: there is no event of a run in it.")
    counted: tuple[type[Event], ...] = (StepEnded,) if steps else (Logged, Evaluated) if entries else (Sampled,)

    def make() -> Iterator[Point]:
        index = -1
        streams = [_stamped(source, Counter()) for source in sources]
        for _, rank, event in heapq.merge(*streams, key=lambda stamped: stamped[0]):
            index += rank == 0 and isinstance(event, counted)
            yield max(index, 0), rank, event

    return ImportedRun(
        directory,
        format="journal",
        name=name or run,
        clock="file",
        started=begin,
        points=steps or entries or samples,
        skipped=skipped,
        make=make,
    )


def _stamped(source: journal.Source, skipped: Counter[str]) -> Iterator[_Stamped]:
    """Yields a source's events with the time by which they are put among those of the others: it never falls."""
    reader = journal.Reader(source.directory)
    time = 0.0
    while records := reader.read():
        for record in records:
            if record.lost:
                skipped["events lost in the journal"] += record.lost
            try:
                event = events.decode(record.payload)
            except msgspec.MsgspecError:
                skipped["events of another version"] += 1
                continue
            time = max(time, event.time)
            yield time, event.rank if isinstance(event, Sampled | ProcessGone) else source.rank, event
