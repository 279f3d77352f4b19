"""Who is let in, and what every response says about how it may be used.

Without a token the server listens on loopback only, and whoever is on the machine is let in. A web page on the internet
is not: the browser that shows it is on the machine too, so the Host and Origin of a request are checked.
"""

from __future__ import annotations

import hmac
import time
from hashlib import sha256
from typing import Annotated, Final
from urllib.parse import urlsplit

from fastapi import Depends, HTTPException, Request
from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from trainwatch.server.settings import Settings, is_loopback

COOKIE: Final = "trainwatch_session"
SESSION_SECONDS: Final = 30 * 24 * 3600
_SAFE: Final = frozenset({"GET", "HEAD", "OPTIONS"})
_HEADERS: Final = {
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


def session(token: str, now: float) -> str:
    """Makes a session cookie's value. It proves that the token was known, without holding it."""
    issued = str(int(now))
    return f"{issued}.{_signature(token, issued)}"


def is_session(value: str, token: str, now: float) -> bool:
    """Tells whether a cookie's value was made for this token, and not too long ago."""
    issued, _, signature = value.partition(".")
    if not (issued.isascii() and issued.isdigit() and len(issued) < 15):
        return False
    fresh = -60 <= now - int(issued) <= SESSION_SECONDS
    return _same(signature, _signature(token, issued)) and fresh


def is_token(shown: str, token: str) -> bool:
    """Compares a shown token, in a time that tells nothing."""
    return bool(token) and _same(shown, token)


def require(request: Request) -> None:
    """Lets a request pass or refuses it.

    Raises:
        HTTPException: 401; the server has a token and the request shows neither it nor a session.
    """
    settings: Settings = request.app.state.services.settings
    token = settings.secret
    if not token:
        return
    scheme, _, shown = request.headers.get("authorization", "").partition(" ")
    if scheme.lower() == "bearer" and is_token(shown.strip(), token):
        return
    if is_session(request.cookies.get(COOKIE, ""), token, time.time()):
        return
    raise HTTPException(
        401,
        "This server wants its token: log in, or send it as 'Authorization: Bearer …' (TRAINWATCH_TOKEN).",
        headers={"WWW-Authenticate": "Bearer"},
    )


Allowed: Final = Depends(require)
Admitted = Annotated[None, Allowed]


class Gate:
    """Refuses requests that a foreign web page made a browser send; sets the security headers of all responses.

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

        async def send_secured(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in _HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        problem = self._problem(scope["method"], Headers(scope=scope))
        if problem is None:
            await self._app(scope, receive, send_secured)
        else:
            await JSONResponse({"detail": problem}, status_code=403)(scope, receive, send_secured)

    def _problem(self, method: str, headers: Headers) -> str | None:
        host = headers.get("host", "")
        if self._open and not is_loopback(_name(host)):
            # DNS rebinding: a foreign name that was made to point at this machine.
            return (
                f"A TrainWatch server without a token answers only to localhost, not to {host[:100]!r}:"
                " set TRAINWATCH_TOKEN to use another name."
            )
        origin = headers.get("origin")
        if method not in _SAFE and origin is not None and urlsplit(origin).netloc.lower() != host.lower():
            return "The request comes from a web page of another site."
        return None


def _name(host: str) -> str:
    """Cuts the port off a Host header."""
    name, colon, port = host.rpartition(":")
    return name if colon and port.isdigit() and not name.endswith(":") else host


def _signature(token: str, issued: str) -> str:
    return hmac.new(token.encode(), f"trainwatch session {issued}".encode(), sha256).hexdigest()


def _same(left: str, right: str) -> bool:
    return hmac.compare_digest(left.encode(), right.encode())
