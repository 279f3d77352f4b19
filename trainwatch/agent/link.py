"""The connection to the server: one request at a time over HTTP/1.1, kept alive. Only the standard library.

What an answer means is said once, in :func:`judge`.
"""

from __future__ import annotations

import gzip
import http.client
import random
from collections.abc import Callable
from enum import Enum
from typing import Final
from urllib.parse import urlsplit

import msgspec

import trainwatch

CONNECT_SECONDS: Final = 3.0
READ_SECONDS: Final = 15.0
ANSWER_BYTES: Final = 8 * 1024 * 1024
RETRY_AFTER_MOST: Final = 300.0
# Below this, compressing takes longer than it saves.
_SMALL: Final = 512


class Meaning(Enum):
    """What to do after a request."""

    ACCEPTED = "the server answered as it should"
    LATER = "try again: the server is away or busy"
    FAULT = "try again: the server failed, maybe over this very content"
    NOT_ALLOWED = "try again slowly: the address or the token must be put right by a person"
    TOO_LARGE = "send less at once"
    REFUSED = "the content will never be accepted"
    OTHER_ENCODING = "compress in another way"


class Reply(msgspec.Struct, frozen=True):
    """What came of a request.

    Attributes:
        status: HTTP status; 0 when there was no whole answer.
        body: The answer's body; for status 0 the error as text.
        retry_after: Seconds that the server asked to wait; None when it did not.
    """

    status: int
    body: bytes = b""
    retry_after: float | None = None

    def __str__(self) -> str:
        text = " ".join(self.body[:200].decode(errors="replace").split())
        return f"answer {self.status}: {text}" if self.status else text


def judge(status: int) -> Meaning:
    """Says what a status means for what was sent."""
    if status in (0, 408, 425, 429, 502, 503, 504):
        return Meaning.LATER
    if 200 <= status < 300:
        return Meaning.ACCEPTED
    if status >= 500:
        return Meaning.FAULT
    if status == 413:
        return Meaning.TOO_LARGE
    if status == 415:
        return Meaning.OTHER_ENCODING
    # A redirect, or a path that is not there, is an address that is not (or not yet) our server's.
    if status < 400 or status in (401, 402, 403, 404, 405, 407, 421):
        return Meaning.NOT_ALLOWED
    return Meaning.REFUSED


def backoff(failures: int, *, first: float = 0.5, most: float = 10.0, chance: float | None = None) -> float:
    """Returns how long to wait after failures in a row, in seconds.

    Args:
        failures: How many; at least 1.
        first: The wait after the first.
        most: The longest wait.
        chance: Jitter from 0 to 1, by chance by default, so that agents do not come back all at the same moment.
    """
    jitter = random.random() if chance is None else chance
    return float(min(first * 2 ** min(failures - 1, 16), most) * (0.5 + 0.5 * jitter))


class Link:
    """Posts to a server.

    Args:
        server: Its address, ``http://`` or ``https://``, a path is allowed.
        token: Sent as ``Authorization: Bearer``; empty for none.
        connect_seconds: Longest wait for the connection.
        read_seconds: Longest wait for each part of the answer.

    Raises:
        ValueError: The address is none.
    """

    def __init__(
        self,
        server: str,
        token: str = "",
        *,
        connect_seconds: float = CONNECT_SECONDS,
        read_seconds: float = READ_SECONDS,
    ) -> None:
        parts = urlsplit(server)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(f"{server!r} is no server address: write http://HOST:PORT or https://HOST:PORT")
        self.server = server
        self._https = parts.scheme == "https"
        self._host, self._port = parts.hostname, parts.port
        self._path = f"{parts.path.rstrip('/')}/api/ingest"
        self._token = token
        self._connect_seconds = connect_seconds
        self._read_seconds = read_seconds
        self._connection: http.client.HTTPConnection | None = None
        self._encodings = _encodings()

    def post(self, body: bytes) -> Reply:
        """Sends a body and waits for the answer. Never raises for what a network or a server may do.

        Args:
            body: MessagePack.
        """
        for fresh in (False, True):
            reused = self._connection is not None
            try:
                return self._post(body)
            except (OSError, http.client.HTTPException, ValueError) as error:
                self.close()
                # A kept-alive connection may have been closed meanwhile. Taking what was sent twice is the server's
                # trade, so that is worth one more try at once; a time-out is not.
                if fresh or not reused or isinstance(error, TimeoutError):
                    return Reply(0, f"{type(error).__name__}: {error}".encode())
        raise AssertionError("unreachable")

    def next_encoding(self) -> bool:
        """Gives up the way of compressing that the server does not know; tells whether another one is left."""
        if len(self._encodings) == 1:
            return False
        self._encodings = self._encodings[1:]
        return True

    def close(self) -> None:
        """Closes the connection; the next request opens another."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _post(self, body: bytes) -> Reply:
        connection = self._connection or self._connect()
        self._connection = connection
        name, compress = self._encodings[0] if len(body) > _SMALL else ("identity", bytes)
        headers = {
            "Content-Type": "application/msgpack",
            "Content-Encoding": name,
            "User-Agent": f"trainwatch-agent/{trainwatch.__version__}",
        }
        if self._token:
            headers["Authorization"] = f"Bearer {self._token}"
        connection.request("POST", self._path, compress(body), headers)
        response = connection.getresponse()
        answer = response.read(ANSWER_BYTES + 1)
        if len(answer) > ANSWER_BYTES:
            raise ValueError("the answer is too long")
        if response.will_close:
            self.close()
        return Reply(response.status, answer, _retry_after(response.getheader("Retry-After")))

    def _connect(self) -> http.client.HTTPConnection:
        kind = http.client.HTTPSConnection if self._https else http.client.HTTPConnection
        connection = kind(self._host, self._port, timeout=self._connect_seconds)
        connection.connect()
        connection.sock.settimeout(self._read_seconds)
        return connection


def _retry_after(text: str | None) -> float | None:
    try:
        seconds = float(text or "")
    except ValueError:  # none, or a date: our servers send seconds
        return None
    return min(max(seconds, 0.0), RETRY_AFTER_MOST) if seconds == seconds else None


def _encodings() -> list[tuple[str, Callable[[bytes], bytes]]]:
    """Returns the ways to compress that exist here, best first."""
    found: list[tuple[str, Callable[[bytes], bytes]]] = []
    try:
        from compression import zstd  # type: ignore[import-not-found, unused-ignore]

        found.append(("zstd", zstd.compress))
    except ImportError:
        try:
            import zstandard

            found.append(("zstd", zstandard.ZstdCompressor(level=3).compress))
        except ImportError:
            pass
    found.append(("gzip", _gzip))
    found.append(("identity", bytes))
    return found


def _gzip(body: bytes) -> bytes:
    return gzip.compress(body, compresslevel=4, mtime=0)
