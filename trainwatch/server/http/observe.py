"""Sees every request: names it, counts it, and logs it when it was refused or failed."""

from __future__ import annotations

import logging
import time
from typing import Final

import msgspec
from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from trainwatch.server.telemetry import logs
from trainwatch.server.telemetry.counting import Telemetry

logger = logging.getLogger(__name__)

REQUEST_ID: Final = "X-Request-ID"
_METHODS: Final = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
_INGEST: Final = "/api/ingest"


class Observe:
    """The outermost layer.

    Args:
        app: The application.
        telemetry: Where to count.
        log_all: Log requests that went well, too.
    """

    def __init__(self, app: ASGIApp, telemetry: Telemetry, log_all: bool) -> None:
        self._app = app
        self._telemetry = telemetry
        self._log_all = log_all

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handles one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        name = logs.begin_request(Headers(scope=scope).get(REQUEST_ID))
        began = time.perf_counter()
        status = 0  # nothing was answered: the client went away, or something broke
        detail = b""
        streaming = False

        async def send_observed(message: Message) -> None:
            nonlocal status, detail, streaming
            if message["type"] == "http.response.start":
                status = message["status"]
                headers = MutableHeaders(scope=message)
                headers[REQUEST_ID] = name
                if headers.get("content-type", "").startswith("text/event-stream"):
                    streaming = True
                    self._telemetry.streams.inc()
                    self._count(scope, status, time.perf_counter() - began)
            elif status >= 400 and not detail:
                detail = message.get("body", b"")
            await send(message)

        try:
            await self._app(scope, receive, send_observed)
        except Exception:
            status = 500  # answered further out, where exceptions become answers
            raise
        finally:
            seconds = time.perf_counter() - began
            if streaming:
                self._telemetry.streams.dec()
            elif status:
                self._count(scope, status, seconds)
            self._log(scope, status, seconds, detail)

    def _count(self, scope: Scope, status: int, seconds: float) -> None:
        method = scope["method"] if scope["method"] in _METHODS else "other"
        self._telemetry.requested(method, route_of(scope), status, seconds)
        if scope["path"] == _INGEST and method == "POST":
            self._telemetry.acknowledged(status)

    def _log(self, scope: Scope, status: int, seconds: float, detail: bytes) -> None:
        refused = status >= 400
        if not (refused or self._log_all) or not logger.isEnabledFor(logging.INFO):
            return
        client = scope.get("client")
        fields = {
            "method": scope["method"][:20],
            "path": scope["path"][:200],
            "status": status,
            "seconds": round(seconds, 4),
            "client": client[0] if client else "",
        }
        if refused:
            fields["detail"] = _sentence(detail)
        logger.info("refused" if 400 <= status < 500 else "failed" if refused else "answered", extra=fields)


def route_of(scope: Scope) -> str:
    """Returns the pattern of the path that a handled request's route has; few and known, unlike paths."""
    path = getattr(scope.get("route"), "path", None)
    if not isinstance(path, str):
        return "none"
    if path.startswith("/{path"):
        return "ui"
    # A route knows its path within its own router, or all of it, depending on the version of FastAPI.
    whole: str = scope["path"]
    return f"/api{path}" if whole.startswith("/api/") and not path.startswith("/api/") else path


def _sentence(body: bytes) -> str:
    """Returns what a refusal said."""
    try:
        found = msgspec.json.decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return ""
    return str(found.get("detail", ""))[:500] if isinstance(found, dict) else ""
