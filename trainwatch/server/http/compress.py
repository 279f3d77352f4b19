"""Compresses responses: a chart of some thousand points is much smaller over a real network."""

from __future__ import annotations

import gzip
from typing import Final

import zstandard
from anyio import to_thread
from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

LEAST: Final = 1024
"""Bytes below which a body is sent as it is."""
_KINDS: Final = ("application/json", "text/", "application/javascript", "image/svg+xml")


class Compress:
    """Sends bodies of text as zstd or gzip to those who take it. Streams pass untouched.

    Args:
        app: The application.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handles one request."""
        encoding = wanted(Headers(scope=scope).get("accept-encoding", "")) if scope["type"] == "http" else ""
        if not encoding:
            await self._app(scope, receive, send)
            return
        start: Message | None = None

        async def send_compressed(message: Message) -> None:
            nonlocal start
            if message["type"] == "http.response.start":
                start = message
                return
            if start is not None:
                head, start = start, None
                body = message.get("body", b"")
                if not message.get("more_body") and _worth(head, body):
                    small = await to_thread.run_sync(compress, body, encoding)
                    headers = MutableHeaders(scope=head)
                    headers["content-encoding"] = encoding
                    headers["content-length"] = str(len(small))
                    headers.add_vary_header("accept-encoding")
                    message = {**message, "body": small}
                await send(head)
            await send(message)

        await self._app(scope, receive, send_compressed)


def wanted(accepted: str) -> str:
    """Picks the best encoding that the client takes; empty for none."""
    names = {}
    for part in accepted.lower().split(","):
        name, _, quality = part.partition(";")
        names[name.strip()] = quality.replace(" ", "") not in ("q=0", "q=0.0", "q=0.00", "q=0.000")
    return next((name for name in ("zstd", "gzip") if names.get(name)), "")


def _worth(start: Message, body: bytes) -> bool:
    headers = Headers(raw=start["headers"])
    kind = headers.get("content-type", "")
    return (
        len(body) >= LEAST
        and start["status"] == 200
        and "content-encoding" not in headers
        and kind.startswith(_KINDS)
        and not kind.startswith("text/event-stream")
    )


def compress(body: bytes, encoding: str) -> bytes:
    """Compresses with ``zstd`` or ``gzip``."""
    if encoding == "zstd":
        return zstandard.ZstdCompressor(level=3).compress(body)
    return gzip.compress(body, compresslevel=5)
