"""The journal: the queue between a process that sees events and the agent that ships them.

Layout on disk, below ``settings.journals``::

    RUN/NODE/SOURCE/00000000000000000000.twj     segments, named after their first sequence
    RUN/NODE/SOURCE/acknowledged                 how far the server has it (written by the agent)
    RUN/NODE/project                             the run's project, as text
    RUN/NODE/control                             commands from the server (written by the agent)

A record is ``length: u32, crc: u32, sequence: u64, payload``, little-endian; the CRC-32 covers sequence and payload. A
record is written with one ``write`` to the page cache: it survives whatever kills the process, not a crash of the
machine. Each source has exactly one writer, ever: a process that starts again makes a new source. Its name is unique
for ever, also when the disk is fresh and the run's id an old one (a pod that was started again): ``rank0~7c1e5a04``,
then on the same disk ``rank0.1~9ab20f31``; ``agent@NODE~…``. The server takes an event that it has seen before, by run,
source and sequence, for one that was shipped twice, so a name used again would lose events without a word.

What a reader may meet: a record of which the end is not there yet (it waits), a torn record in front of another
segment, or damaged bytes. It then looks for the next whole record and says how many sequences were lost on the way.
"""

from __future__ import annotations

import contextlib
import os
import re
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import msgspec

MAX_PAYLOAD: Final = 16 * 1024 * 1024
SEGMENT_BYTES: Final = 32 * 1024 * 1024

IMPORTED_NODE: Final = "imported"
"""The node of runs that were not recorded here but read from another tool's files: nobody lives there."""

_HEADER: Final = struct.Struct("<IIQ")
_SEQUENCE: Final = struct.Struct("<Q")
_CRC_FROM: Final = 8  # the CRC covers what follows it in the record
_MAX_GAP: Final = 1 << 30
_SUFFIX: Final = ".twj"
_RANK: Final = re.compile(r"rank([0-9]{1,9})(?:\.([0-9]{1,8}))?(?=[.~]|$)")
_ATTEMPT: Final = re.compile(r"(?:\.([0-9]{1,8}))?(?:~.*)?")
# Node names need not be unique (every container may be "localhost"), so chance alone keeps thousands of agents apart.
_RANDOM_BYTES: Final = 4


class JournalFull(OSError):
    """The disk did not take a record. The record is lost, the journal is intact and takes later ones."""


class Writer:
    """Appends to one source's journal. Not for use from several threads at once.

    Args:
        directory: The source's folder, as :func:`create_source` made it.
        segment_bytes: Size at which a new segment is begun.
    """

    def __init__(self, directory: Path, *, segment_bytes: int = SEGMENT_BYTES) -> None:
        self.directory = directory
        self._segment_bytes = segment_bytes
        self._next = 0
        self._size = 0
        self._fd = -1
        self._open_segment()

    def append(self, payload: bytes) -> int:
        """Appends one record.

        Args:
            payload: The encoded event.

        Returns:
            The record's sequence.

        Raises:
            ValueError: The payload is larger than 16 MiB.
            JournalFull: The disk did not take it.
        """
        if len(payload) > MAX_PAYLOAD:
            raise ValueError(f"an event of {len(payload)} bytes is too large for the journal (limit {MAX_PAYLOAD})")
        sequence = self._next
        body = _SEQUENCE.pack(sequence) + payload
        record = _HEADER.pack(len(payload), zlib.crc32(body), sequence) + payload
        if self._size and self._size + len(record) > self._segment_bytes:
            self._open_segment()
        try:
            written = os.write(self._fd, record)
        except OSError as error:
            raise JournalFull(error.errno, f"cannot write to {self.directory}: {error.strerror}") from error
        if written < len(record):
            # Only a full disk does this. The rest must not follow later: whatever came between would be damaged too.
            with contextlib.suppress(OSError):  # then the reader skips the torn record
                os.ftruncate(self._fd, self._size)
            raise JournalFull(28, f"no space left for {self.directory}")
        self._size += written
        self._next += 1
        return sequence

    def close(self) -> None:
        """Closes the file; safe to call twice."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _open_segment(self) -> None:
        path = self.directory / f"{self._next:020d}{_SUFFIX}"
        try:
            fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise JournalFull(error.errno, f"cannot create {path}: {error.strerror}") from error
        self.close()
        self._fd = fd
        self._size = 0


class Position(msgspec.Struct, frozen=True):
    """A place between two records.

    Attributes:
        sequence: The sequence expected next.
        segment: First sequence of the segment, as in its file's name.
        offset: Byte in the segment.
    """

    sequence: int = 0
    segment: int = 0
    offset: int = 0


class Record(msgspec.Struct, frozen=True):
    """One record read back.

    Attributes:
        lost: Sequences directly before this one that could not be read.
        after: The position behind the record.
    """

    sequence: int
    payload: bytes
    lost: int
    after: Position


class Reader:
    """Reads one source's journal, also while it is being written.

    Args:
        directory: The source's folder.
        position: Where to begin.
    """

    def __init__(self, directory: Path, position: Position | None = None) -> None:
        self.directory = directory
        self.position = position or Position()
        self._fruitless = (Position(-1), 0)

    def read(self, limit: int = 1024 * 1024) -> list[Record]:
        """Reads what is there, and moves the position behind it.

        Args:
            limit: About how many bytes to read at most; a single record may be larger.

        Returns:
            The records in order; empty when nothing new is there.

        Raises:
            OSError: The files cannot be read.
        """
        while True:
            # Asked before reading: once a later segment exists, this one never grows again.
            following = self._following()
            if following is None and self._nothing_new():
                return []
            # A record larger than the limit, then one of which the length is damaged, need a longer look.
            for size in (limit, _HEADER.size + MAX_PAYLOAD, -1):
                data, at_end = self._bytes(size)
                sealed = at_end and following is not None
                records, used = _parse(data, self.position, limit=limit, at_end=at_end, sealed=sealed)
                if used or at_end:
                    break
            if records:
                self.position = records[-1].after
                return records
            if used:  # damaged bytes with nothing readable behind them
                self.position = msgspec.structs.replace(self.position, offset=self.position.offset + used)
            if at_end and following is not None:
                self.position = Position(self.position.sequence, following, 0)
            elif not used:
                self._fruitless = (self.position, self.position.offset + len(data))
                return []

    def unread(self) -> int:
        """Returns how many bytes lie behind the position in its segment: a torn tail when :meth:`read` finds none."""
        return max(self._size() - self.position.offset, 0)

    def seek(self, sequence: int) -> None:
        """Moves to `sequence`, or to the first readable one behind it, by reading on from its segment's begin."""
        begun = [start for start in segments(self.directory) if start <= sequence]
        start = begun[-1] if begun else 0
        self.position = Position(start, start, 0)
        while self.position.sequence < sequence:
            before = self.position
            for record in self.read():
                if record.sequence >= sequence:
                    self.position = before
                    return
                before = record.after
            if self.position == before:
                return

    def _following(self) -> int | None:
        return next((start for start in segments(self.directory) if start > self.position.segment), None)

    def _nothing_new(self) -> bool:
        size = self._size()
        # Looking for a record in damaged bytes takes long; not twice in the same ones.
        return size <= self.position.offset or self._fruitless == (self.position, size)

    def _size(self) -> int:
        try:
            return os.stat(self._path()).st_size
        except FileNotFoundError:
            return 0

    def _path(self) -> str:
        return f"{self.directory}/{self.position.segment:020d}{_SUFFIX}"

    def _bytes(self, size: int) -> tuple[bytes, bool]:
        """Returns the bytes from the position on (all for -1), and whether they reach the file's present end."""
        try:
            with open(self._path(), "rb") as file:
                file.seek(self.position.offset)
                data = file.read(size)
                return data, size < 0 or len(data) < size
        except FileNotFoundError:
            return b"", True


def _parse(data: bytes, position: Position, *, limit: int, at_end: bool, sealed: bool) -> tuple[list[Record], int]:
    """Cuts records out of bytes.

    Args:
        data: What was read.
        position: Where it was read.
        limit: About how many bytes of records are wanted.
        at_end: The bytes reach the file's end, so that damage can be told from a record cut by the read.
        sealed: Nothing will ever be added behind them.

    Returns:
        The records, and how many bytes are done with (more than the records' when trailing damage is given up).
    """
    records: list[Record] = []
    expected, at = position.sequence, 0
    while at < len(data) and at < limit:
        end = _whole_record(data, at, expected)
        if end is None:
            if not at_end:
                break
            following = _next_record(data, at + 1, expected)
            if following is None:
                if sealed:
                    at = len(data)
                break
            at, end = following
        sequence = _HEADER.unpack_from(data, at)[2]
        after = Position(sequence + 1, position.segment, position.offset + end)
        records.append(Record(sequence, data[at + _HEADER.size : end], sequence - expected, after))
        expected, at = sequence + 1, end
    return records, at


def _whole_record(data: bytes, at: int, expected: int) -> int | None:
    """Returns where the record at `at` ends, or None if there is no whole, undamaged one."""
    if at + _HEADER.size > len(data):
        return None
    length, crc, sequence = _HEADER.unpack_from(data, at)
    end: int = at + _HEADER.size + length
    # A sequence far off is damage that the CRC happened to match, or bytes of another file.
    if end > len(data) or length > MAX_PAYLOAD or not expected <= sequence < expected + _MAX_GAP:
        return None
    return end if zlib.crc32(memoryview(data)[at + _CRC_FROM : end]) == crc else None


def _next_record(data: bytes, start: int, expected: int) -> tuple[int, int] | None:
    # Only places that look like a header are tried, or damage of megabytes would take minutes: a length of at most
    # 16 MiB, a sequence with plausible high bytes, and not zeros, which a crashed machine leaves behind by the page.
    high = {_SEQUENCE.pack(sequence)[4:] for sequence in (expected, expected + _MAX_GAP)}
    pattern = rb"(?s)(?!\x00{8})(?=.{3}[\x00\x01].{8}(?:" + b"|".join(map(re.escape, sorted(high))) + rb"))"
    for candidate in re.compile(pattern).finditer(data, start):
        end = _whole_record(data, candidate.start(), expected)
        if end is not None:
            return candidate.start(), end
    return None


def segments(directory: Path) -> list[int]:
    """Returns the first sequences of a source's segments, in order."""
    try:
        names = os.listdir(directory)
    except (FileNotFoundError, NotADirectoryError):
        return []
    stems = (name.removesuffix(_SUFFIX) for name in names if name.endswith(_SUFFIX))
    return sorted(int(stem) for stem in stems if stem.isdigit())


class Source(msgspec.Struct, frozen=True):
    """A source found on disk."""

    run: str
    node: str
    name: str
    directory: Path

    @property
    def rank(self) -> int | None:
        """The rank, or None for an agent's journal."""
        found = _RANK.match(self.name)
        return int(found[1]) if found else None


def attempt_of(source: str) -> int:
    """Returns how often a rank's process had been started before on the same disk: 1 for ``rank0.1~9ab20f31``."""
    found = _RANK.match(source)
    return int(found[2] or 0) if found else 0


def attempt_of_agent(source: str, node: str) -> int:
    """Returns how many agents there were before on the same disk: 1 for ``agent@NODE.1~9ab20f31``."""
    found = _ATTEMPT.fullmatch(source.removeprefix(f"agent@{node}"))  # a node's name may hold dots of its own
    return int(found[1] or 0) if found else 0


def create_source(node_directory: Path, name: str) -> Path:
    """Makes the folder for a new source.

    Args:
        node_directory: ``journals/RUN/NODE``.
        name: The wanted name. Whenever it was used here before (the process was started again), ``.1``, ``.2`` … is
            added, and in any case ``~`` and a random suffix.

    Raises:
        OSError: The folder cannot be made.
    """
    node_directory.mkdir(parents=True, exist_ok=True)
    rests = [other.removeprefix(name) for other in os.listdir(node_directory) if other.startswith(name)]
    taken = [int(found[1] or 0) for rest in rests if (found := _ATTEMPT.fullmatch(rest))]
    stem = f"{name}.{max(taken) + 1}" if taken else name
    directory = node_directory / f"{stem}~{os.urandom(_RANDOM_BYTES).hex()}"
    directory.mkdir()
    return directory


def sources(journals: Path, run: str = "*", node: str = "*") -> Iterator[Source]:
    """Finds the sources on disk, in the order of their paths."""
    for directory in sorted(journals.glob(f"{run}/{node}/*/")):
        if segments(directory):
            yield Source(directory.parent.parent.name, directory.parent.name, directory.name, directory)


def acknowledged(directory: Path) -> Position:
    """Returns how far the server has a source; the begin when nothing, or nothing readable, is noted."""
    try:
        return msgspec.json.decode((directory / "acknowledged").read_bytes(), type=Position)
    except (FileNotFoundError, msgspec.MsgspecError):
        return Position()


def acknowledge(directory: Path, position: Position) -> None:
    """Notes how far the server has a source."""
    write_atomically(directory / "acknowledged", msgspec.json.encode(position))


def write_atomically(path: Path, content: bytes) -> None:
    """Writes a small file so that a reader sees the old or the new content, never a part."""
    scratch = path.with_name(f".{path.name}.{os.getpid()}")
    scratch.write_bytes(content)
    scratch.replace(path)
