"""Sends one HTTP request to an address that was checked: no redirect is followed, nothing large or slow is read."""

from __future__ import annotations

import socket
import ssl
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import SplitResult, quote, urlsplit

import httpcore2

from trainwatch import __version__
from trainwatch.server.delivery.addresses import Forbidden, Guard
from trainwatch.server.delivery.retry import Answer, judge, wish

TOTAL_SECONDS: Final = 15.0
"""How long a request may take in all, however slowly the receiver answers."""
_CONNECT_SECONDS: Final = 5.0
_ANSWER_BYTES: Final = 64 * 1024
_SHOWN: Final = 200


@dataclass(frozen=True, slots=True)
class Reply:
    """What a receiver answered, as far as it was read."""

    status: int
    headers: Mapping[str, str]
    text: str


def parse(url: str) -> SplitResult:
    """Takes an address apart.

    Raises:
        ValueError: It is none that a message can be sent to; the message says why.
    """
    try:
        parts = urlsplit(url.strip())
        port = parts.port
    except ValueError as error:
        raise ValueError(f"The address cannot be read: {error}.") from None
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError("An address begins with https:// or http:// and names a host.")
    if parts.username is not None or parts.password is not None:
        raise ValueError("An address may not hold a name and password; put what is secret into its path or query.")
    if port == 0 or not url.isprintable() or " " in url.strip():
        raise ValueError("The address holds something that no address can.")
    try:
        parts.hostname.encode("idna")
    except UnicodeError:
        raise ValueError(f"{parts.hostname[:80]!r} cannot be the name of a host.") from None
    return parts


def post(
    url: str, body: bytes, headers: Mapping[str, str], *, guard: Guard, now: float, seconds: float = TOTAL_SECONDS
) -> Answer:
    """Posts a body.

    Args:
        url: Where to.
        body: What.
        headers: Besides those that say how long the body is and who sends it.
        guard: Whom it may reach.
        now: The server's clock, for a Retry-After that is a date.
        seconds: How long it may take in all.

    Returns:
        What became of it. The address is not in it.
    """
    try:
        reply = _exchange(parse(url), body, headers, guard, seconds)
    except ValueError as error:
        return Answer("disable", error=str(error))
    except Forbidden as error:
        return Answer("disable", error=f"The address may not be reached: {error}.")
    except httpcore2.TimeoutException:
        return Answer("retry", error="The receiver did not answer in time.")
    except (httpcore2.NetworkError, httpcore2.ProtocolError, OSError) as error:
        return Answer("retry", error=f"The receiver cannot be reached: {_brief(error)}")
    verdict = judge(reply.status)
    if verdict == "sent":
        return Answer("sent", reply.status)
    error_text = f"The receiver answered {reply.status}"
    if 300 <= reply.status < 400:
        error_text += ", a redirect, which is not followed"
    shown = " ".join(reply.text.split())[:_SHOWN]
    error_text += f": {shown}" if shown else "."
    return Answer(verdict, reply.status, error_text, wish(reply.headers.get("retry-after"), now))


def _exchange(parts: SplitResult, body: bytes, headers: Mapping[str, str], guard: Guard, seconds: float) -> Reply:
    host = (parts.hostname or "").encode("idna")
    port = parts.port or (443 if parts.scheme == "https" else 80)
    target = httpcore2.URL(
        scheme=parts.scheme.encode(),
        host=host,
        port=parts.port,
        target=_ascii(f"{parts.path or '/'}{'?' if parts.query else ''}{parts.query}"),
    )
    name = host.decode() if ":" not in host.decode() else f"[{host.decode()}]"
    sent = {
        "Host": name if parts.port is None else f"{name}:{port}",
        "User-Agent": f"TrainWatch/{__version__}",
        "Accept": "*/*",
        "Content-Length": str(len(body)),
        **headers,
    }
    deadline = time.monotonic() + seconds
    limits = {"connect": _CONNECT_SECONDS, "read": seconds, "write": seconds, "pool": seconds}
    with (
        httpcore2.ConnectionPool(network_backend=_Checked(guard, deadline), max_keepalive_connections=0) as pool,
        pool.stream(
            b"POST",
            target,
            headers=[(key.encode(), value.encode()) for key, value in sent.items()],
            content=body,
            extensions={"timeout": limits},
        ) as response,
    ):
        return Reply(
            status=response.status,
            headers={key.decode("latin-1").lower(): value.decode("latin-1") for key, value in response.headers},
            text=_text(response),
        )


def _text(response: httpcore2.Response) -> str:
    """Reads an answer's body, as far as it comes."""
    read = b""
    # The status has said what became of the message. A body that stops in the middle takes nothing back: who answered
    # 200 has it, and must not get it again.
    with suppress(httpcore2.TimeoutException, httpcore2.NetworkError, httpcore2.ProtocolError, OSError):
        for piece in response.iter_stream():
            read += piece
            if len(read) >= _ANSWER_BYTES:
                break
    return read[:_ANSWER_BYTES].decode("utf-8", "replace")


class _Checked(httpcore2.NetworkBackend):
    """Connects to checked addresses only, and lets nothing go on after the deadline."""

    def __init__(self, guard: Guard, deadline: float) -> None:
        self._guard = guard
        self._deadline = deadline
        self._inner = httpcore2.SyncBackend()

    def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore2.NetworkStream:
        """Connects to the first address of the host that takes it."""
        try:
            addresses = self._guard.resolve(host, port)
        except (socket.gaierror, UnicodeError) as error:
            raise httpcore2.ConnectError(f"its name cannot be resolved: {error}") from error
        failed: Exception = httpcore2.ConnectError("it has no address")
        for address in addresses:
            try:
                stream = self._inner.connect_tcp(
                    address, port, _left(self._deadline, timeout), local_address, socket_options
                )
            except (httpcore2.ConnectError, httpcore2.ConnectTimeout) as error:
                failed = error
                continue
            return _Bounded(stream, self._deadline)
        raise failed

    def connect_unix_socket(
        self, path: str, timeout: float | None = None, socket_options: Iterable[Any] | None = None
    ) -> httpcore2.NetworkStream:
        """Refuses: no address of a channel names a file."""
        raise Forbidden("a file is not an address")


class _Bounded(httpcore2.NetworkStream):
    """A connection that ends at a deadline, also when something comes every few seconds."""

    def __init__(self, inner: httpcore2.NetworkStream, deadline: float) -> None:
        self._inner = inner
        self._deadline = deadline

    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        """Reads what comes before the deadline."""
        return self._inner.read(max_bytes, _left(self._deadline, timeout))

    def write(self, buffer: bytes, timeout: float | None = None) -> None:
        """Writes before the deadline."""
        self._inner.write(buffer, _left(self._deadline, timeout))

    def close(self) -> None:
        """Closes the connection."""
        self._inner.close()

    def start_tls(
        self, ssl_context: ssl.SSLContext, server_hostname: str | None = None, timeout: float | None = None
    ) -> httpcore2.NetworkStream:
        """Begins TLS; the certificate is checked against the name, not against the address."""
        secured = self._inner.start_tls(ssl_context, server_hostname, _left(self._deadline, timeout))
        return _Bounded(secured, self._deadline)

    def get_extra_info(self, info: str) -> Any:
        """Returns what is known of the connection."""
        return self._inner.get_extra_info(info)


def _left(deadline: float, timeout: float | None) -> float:
    left = deadline - time.monotonic()
    if left <= 0:
        raise httpcore2.ReadTimeout("too slow")
    return left if timeout is None else min(left, timeout)


def _ascii(target: str) -> bytes:
    return quote(target, safe="/?&=%:@!$'()*+,;~#[]-._").encode("ascii")


def _brief(error: Exception) -> str:
    text = " ".join(str(error).split()) or type(error).__name__
    return f"{text[:_SHOWN]}."


def masked(url: str) -> str:
    """Returns as much of an address as may be shown: where it leads, not what is secret in it."""
    try:
        parts = parse(url)
    except ValueError:
        return "…"
    port = "" if parts.port is None else f":{parts.port}"
    return f"{parts.scheme}://{parts.hostname}{port}/…"
