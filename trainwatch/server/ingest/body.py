"""From the bytes of a request to a shipment that can be stored, or a refusal that says why."""

from __future__ import annotations

import io
import re
import zlib
from collections.abc import AsyncIterator
from typing import Final

import msgspec
import zstandard

from trainwatch.shipment import Batch, Shipment

_decoder: Final = msgspec.msgpack.Decoder(Shipment)
# Not of dots alone: a browser takes them for folders.
_RUN: Final = re.compile(r"(?!\.+\Z)[A-Za-z0-9._-]{1,100}")
_LARGEST: Final = 2**62
SMALL_BYTES: Final = 4 * 1024 * 1024
"""What as many may expand to at once as there are threads; an agent's shipments have less than half of it."""
_WINDOW: Final = 1 << 27  # what a zstd frame may make the reader allocate; the agent's need 8 MiB


class Unacceptable(Exception):
    """The request cannot be taken.

    Attributes:
        status: The HTTP status that says so.
    """

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class TooLarge(Unacceptable):
    """The shipment is larger than it may be."""


async def receive(stream: AsyncIterator[bytes], declared: str | None, limit: int) -> bytes:
    """Reads a body, but not more than `limit` bytes.

    Args:
        stream: The body's pieces as they come.
        declared: The Content-Length header.
        limit: Bytes.

    Raises:
        TooLarge: The body is larger.
    """
    if declared is not None and declared.isdigit() and int(declared) > limit:
        raise _too_large(limit, "compressed")
    pieces: list[bytes] = []
    size = 0
    async for piece in stream:
        size += len(piece)
        if size > limit:
            raise _too_large(limit, "compressed")
        pieces.append(piece)
    return b"".join(pieces)


def expand(body: bytes, encoding: str, limit: int) -> bytes:
    """Undoes the Content-Encoding; stops at `limit`, however little was sent.

    Raises:
        TooLarge: It expands to more than `limit` bytes.
        Unacceptable: The encoding is unknown, or the body damaged.
    """
    name = encoding.strip().lower()
    try:
        if name in ("", "identity"):
            expanded = body
        elif name == "zstd":
            with zstandard.ZstdDecompressor(max_window_size=_WINDOW).stream_reader(
                io.BytesIO(body), read_across_frames=True
            ) as reader:
                expanded = reader.read(limit + 1)
        elif name == "gzip":
            inflater = zlib.decompressobj(wbits=31)
            expanded = inflater.decompress(body, limit + 1)
            if len(expanded) <= limit and not inflater.eof:
                raise Unacceptable(400, "The gzip body ends too early.")
        else:
            raise Unacceptable(415, f"Content-Encoding {encoding[:50]!r} is not known: use zstd, gzip or identity.")
    except (zlib.error, zstandard.ZstdError) as error:
        raise Unacceptable(400, f"The body is not {name}: {error}") from error
    if len(expanded) > limit:
        raise _too_large(limit, "expanded")
    return expanded


def decode(body: bytes) -> Shipment:
    """Decodes and checks a shipment. Its events stay encoded.

    Raises:
        Unacceptable: It is none, or a name or number in it is out of bounds.
    """
    try:
        shipment = _decoder.decode(body)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
        raise Unacceptable(400, f"The body is not a MessagePack shipment: {error}") from error
    for batch in shipment.batches:
        _check(batch)
    for run in shipment.runs:
        _check_run(run)
    return shipment


def _check(batch: Batch) -> None:
    _check_run(batch.run)
    for what, text in (("project", batch.project), ("node", batch.node), ("source", batch.source)):
        if not 0 < len(text) <= 250 or not text.isprintable():
            raise Unacceptable(400, f"A {what} must be 1 to 250 printable characters, not {text[:50]!r}.")
    if not 0 <= batch.lost <= batch.first < _LARGEST:
        raise Unacceptable(400, f"first={batch.first} and lost={batch.lost} of {batch.source!r} make no sense.")
    if batch.rank is not None and not 0 <= batch.rank < 2**31:
        raise Unacceptable(400, f"Rank {batch.rank} of {batch.source!r} makes no sense.")


def _check_run(run: str) -> None:
    if not _RUN.fullmatch(run):
        raise Unacceptable(400, f"A run's id is 1 to 100 of A-Z a-z 0-9 . _ -, not {run[:50]!r}.")


def _too_large(limit: int, what: str) -> TooLarge:
    return TooLarge(413, f"The shipment is larger than {limit} bytes {what}: send fewer events at once.")
