"""What holds for every request and every answer, whoever asks.

Without a token the server listens on loopback only, and whoever is on the machine is let in. A web page on the internet
is not: the browser that shows it is on the machine too, so the Host and Origin of a request are checked.
"""

from __future__ import annotations

from typing import Final
from urllib.parse import urlsplit

from anyio import move_on_after
from fastapi import HTTPException
from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from trainwatch.server.settings import Settings, is_loopback

BODY_BYTES: Final = 1024 * 1024
"""Largest body of a request that is no shipment; those have a limit of their own, in the settings."""
_SAFE: Final = frozenset({"GET", "HEAD", "OPTIONS"})
_INGEST: Final = "/api/ingest"
_BODY_SECONDS: Final = 60.0
"""How long a client may take for a body, and for each piece of a shipment."""
_FORWARDED: Final = ("forwarded", "via", "x-forwarded-for", "x-forwarded-host", "x-forwarded-proto", "x-real-ip")
"""What a proxy adds."""
HEADERS: Final = {
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    # plotly.js and Mantine set styles inline; scripts only come from files of ours.
    "Content-Security-Policy": (
        "default-src 'self'; script-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data: blob:;"
        " font-src 'self' data:; connect-src 'self'; worker-src 'self' blob:; object-src 'none';"
        " frame-ancestors 'none'; base-uri 'self'; form-action 'self'"
    ),
}
_TOO_LARGE: Final = f"The body is larger than {BODY_BYTES} bytes."


class Gate:
    """Refuses requests that a foreign web page made a browser send, and bodies that are too large; sets the security
    headers of all responses.

    Args:
        app: The application.
        settings: Whether there is a token, and where the server listens.
    """

    def __init__(self, app: ASGIApp, settings: Settings) -> None:
        self._app = app
        self._open = not settings.secret

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handles one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        is_api = scope["path"].startswith("/api/")

        async def send_secured(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers.setdefault(name, value)
                if is_api:
                    headers.setdefault("Cache-Control", "no-store")
            await send(message)

        got = Headers(scope=scope)
        problem = self._problem(scope["method"], got)
        is_shipment = scope["path"].rstrip("/") == _INGEST
        declared = got.get("content-length", "")
        if problem is not None:
            await JSONResponse({"detail": problem}, status_code=403)(scope, receive, send_secured)
        elif is_shipment:
            await self._app(scope, _timed(receive), send_secured)
        elif declared.isdigit() and int(declared[:20]) > BODY_BYTES:
            await JSONResponse({"detail": _TOO_LARGE}, status_code=413)(scope, receive, send_secured)
        else:
            await self._app(scope, _measured(_timed(receive)), send_secured)

    def _problem(self, method: str, headers: Headers) -> str | None:
        host = headers.get("host", "")
        if self._open and not is_loopback(_name(host)):
            # DNS rebinding: a foreign name that was made to point at this machine.
            return (
                f"A TrainWatch server without a token answers only to localhost, not to {host[:100]!r}:"
                " set TRAINWATCH_TOKEN to use another name."
            )
        if self._open and any(name in headers for name in _FORWARDED):
            # It is on this machine; whoever it speaks for need not be.
            return "A TrainWatch server without a token does not answer through a proxy: set TRAINWATCH_TOKEN."
        origin = headers.get("origin")
        if method not in _SAFE and origin is not None and urlsplit(origin).netloc.lower() != host.lower():
            return "The request comes from a web page of another site."
        return None


def _timed(receive: Receive) -> Receive:
    """Waits for a body, but not for ever: who never sends the rest would keep a place that others need."""
    complete = False

    async def receive_timed() -> Message:
        nonlocal complete
        if complete:  # what comes after the body is its end, whenever that is
            return await receive()
        with move_on_after(_BODY_SECONDS):
            message = await receive()
            complete = not message.get("more_body", False)
            return message
        raise HTTPException(408, f"The rest of the body did not come within {_BODY_SECONDS:.0f} seconds.")

    return receive_timed


def _measured(receive: Receive) -> Receive:
    """Reads a body of unknown length, but not more of it than is allowed."""
    size = 0

    async def receive_measured() -> Message:
        nonlocal size
        message = await receive()
        if message["type"] == "http.request":
            size += len(message.get("body", b""))
            if size > BODY_BYTES:
                raise HTTPException(413, _TOO_LARGE)
        return message

    return receive_measured


def _name(host: str) -> str:
    """Cuts the port off a Host header."""
    name, colon, port = host.rpartition(":")
    return name if colon and port.isdigit() and not name.endswith(":") else host
