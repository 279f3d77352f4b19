"""A mark on folders in which nothing is left to do, so that old runs are not read again at every sync."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import msgspec

from trainwatch import journal
from trainwatch.agent.tail import find_sources

_FILE: Final = "settled"


def settle(node_directory: Path) -> None:
    """Marks a folder: all its ranks have ended and the server has everything. It counts until something is added.

    Raises:
        OSError: The mark cannot be written.
    """
    journal.write_atomically(node_directory / _FILE, _fingerprint(node_directory))


def is_settled(node_directory: Path) -> bool:
    """Tells whether a folder is marked and nothing was added since."""
    try:
        return (node_directory / _FILE).read_bytes() == _fingerprint(node_directory)
    except OSError:
        return False


def _fingerprint(node_directory: Path) -> bytes:
    """Describes how much lies in a folder and how much of it is acknowledged."""
    sizes = {}
    for source in find_sources(node_directory):
        files = sorted(source.directory.glob("*.twj"))
        position = journal.acknowledged(source.directory)
        sizes[source.name] = [len(files), files[-1].stat().st_size, position.sequence]
    return msgspec.json.encode(sizes)
