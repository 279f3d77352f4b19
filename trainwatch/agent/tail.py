"""Follows all journals of a node's folder and hands out their events in the order of time.

The order matters when an agent starts again: the rules see the whole history once more, and must see the ranks side by
side as they ran, not one journal after the other.
"""

from __future__ import annotations

import heapq
import os
from collections import deque
from collections.abc import Container
from pathlib import Path
from typing import Final

import msgspec

from trainwatch import events, journal
from trainwatch.events import AnyEvent
from trainwatch.journal import Source

READ_BYTES: Final = 64 * 1024


def find_sources(node_directory: Path, known: Container[str] = ()) -> list[Source]:
    """Finds a node folder's sources that have begun to write; cheap enough to be asked several times a second.

    Args:
        node_directory: ``journals/RUN/NODE``.
        known: Names to leave out.

    Raises:
        FileNotFoundError: The folder is gone.
    """
    run, node = node_directory.parent.name, node_directory.name
    with os.scandir(node_directory) as entries:
        names = sorted(entry.name for entry in entries if entry.name not in known and entry.is_dir())
    found = (Source(run, node, name, node_directory / name) for name in names)
    return [source for source in found if journal.segments(source.directory)]


class _Stream:
    def __init__(self, source: Source) -> None:
        self.source = source
        self.reader = journal.Reader(source.directory)
        self.ahead: deque[AnyEvent] = deque()

    def fill(self) -> bool:
        """Reads on if nothing is left; tells whether there is an event."""
        while not self.ahead:
            records = self.reader.read(READ_BYTES)
            if not records:
                return False
            for record in records:
                try:
                    self.ahead.append(events.decode(record.payload))
                except msgspec.MsgspecError:
                    continue  # the server counts it: it gets every record as it is
        return True


class Tail:
    """Reads all sources of a folder, also those that appear later.

    Args:
        node_directory: ``journals/RUN/NODE``.
    """

    def __init__(self, node_directory: Path) -> None:
        self._node_directory = node_directory
        self._streams: dict[str, _Stream] = {}

    def scan(self, except_for: str = "") -> list[Source]:
        """Looks for new sources.

        Args:
            except_for: A source to leave out: the reader's own.

        Returns:
            The new ones.

        Raises:
            FileNotFoundError: The folder is gone.
        """
        new = [source for source in find_sources(self._node_directory, self._streams) if source.name != except_for]
        for source in new:
            self._streams[source.name] = _Stream(source)
        return new

    def take(self, limit: int = 2000) -> list[tuple[Source, AnyEvent]]:
        """Takes the next events.

        Args:
            limit: How many at most.

        Returns:
            The events by time; fewer than `limit` when all journals have been read to their present ends.

        Raises:
            OSError: A journal cannot be read.
        """
        taken: list[tuple[Source, AnyEvent]] = []
        heap = [(s.ahead[0].time, i, s) for i, s in enumerate(self._streams.values()) if s.fill()]
        heapq.heapify(heap)
        while heap and len(taken) < limit:
            _, number, stream = heap[0]
            taken.append((stream.source, stream.ahead.popleft()))
            if stream.fill():
                heapq.heapreplace(heap, (stream.ahead[0].time, number, stream))
            else:
                heapq.heappop(heap)
        return taken

    def torn(self, source: str) -> int:
        """Returns how many bytes at a journal's end are no whole record: its writer was killed in mid-write."""
        stream = self._streams.get(source)
        return stream.reader.unread() if stream else 0
