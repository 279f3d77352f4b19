"""Answers about a run that many ask for at once: made once, for all who follow the run.

An answer is shared while it is surely not older than the newest news of the run that this server heard, and for a
second at most, so that also what nobody told of is seen. Two hundred browsers that are told of a change and ask for the
same page cost the database what one costs.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from hashlib import blake2b
from typing import Final

from anyio import to_thread
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from trainwatch.server.http import compress

OLDEST: Final = 1.0
"""Seconds for which an answer is shared when nothing is heard of its run."""
_JSON: Final = "application/json"


class _Answer:
    """An answer in the making, or made."""

    __slots__ = ("_smaller", "begun_at", "body")

    def __init__(self, body: asyncio.Task[tuple[bytes, str]], begun_at: float) -> None:
        self.body = body
        self.begun_at = begun_at
        self._smaller: dict[str, asyncio.Task[bytes]] = {}

    async def compressed(self, body: bytes, encoding: str) -> bytes:
        """Returns the body as a client takes it; compressed once for all of them."""
        task = self._smaller.get(encoding)
        if task is None:
            task = self._smaller[encoding] = asyncio.ensure_future(
                to_thread.run_sync(compress.compress, body, encoding)
            )
        return await asyncio.shield(task)


class Shared:
    """Keeps answers for as long as they may be shared.

    Args:
        changed_at: When it was heard last that a run changed, by the monotonic clock.
        count: Told of every answer whether it had to be made.
    """

    def __init__(self, changed_at: Callable[[str], float], count: Callable[[bool], None] = lambda _made: None) -> None:
        self._changed_at = changed_at
        self._count = count
        self._answers: dict[tuple[str, ...], _Answer] = {}
        self._swept_at = 0.0

    async def answer(self, request: Request, run: str, make: Callable[[], bytes], *also: str) -> Response:
        """Answers a GET with JSON; 304 when the client has it already.

        Args:
            request: The request; who sent it may see the run. Its path and query say what is asked for.
            run: The run that the answer is about.
            make: Makes the answer, in a worker thread; what it raises all get who wait for it.
            also: What else the answer depends on, such as the language.
        """
        key = (request.url.path, request.url.query, *also)
        now = time.monotonic()
        self._sweep(now)
        known = self._answers.get(key)
        made = known is None or not self._is_good(known, run, now)
        self._count(made)
        if known is None or made:
            known = self._answers[key] = _Answer(asyncio.ensure_future(to_thread.run_sync(_made, make)), now)
        # One who goes away must not take the answer from the others.
        body, tag = await asyncio.shield(known.body)
        headers = {"Cache-Control": "private, no-cache", "ETag": tag, "Vary": "Accept-Encoding, Accept-Language"}
        if _has(request.headers.get("if-none-match", ""), tag):
            return Response(status_code=304, headers=headers)
        encoding = compress.wanted(request.headers.get("accept-encoding", ""))
        if encoding and len(body) >= compress.LEAST:
            body = await known.compressed(body, encoding)
            headers["Content-Encoding"] = encoding
        return Response(body, media_type=_JSON, headers=headers)

    def forget(self) -> None:
        """Forgets all answers: somebody changed something through this server, and is to see it."""
        self._answers.clear()

    def _is_good(self, known: _Answer, run: str, now: float) -> bool:
        if known.body.done() and (known.body.cancelled() or known.body.exception() is not None):
            return False
        return known.begun_at > self._changed_at(run) and now - known.begun_at < OLDEST

    def _sweep(self, now: float) -> None:
        if now - self._swept_at > OLDEST:
            self._swept_at = now
            self._answers = {key: one for key, one in self._answers.items() if now - one.begun_at < OLDEST}


class Forget:
    """Forgets shared answers before somebody hears that what they changed is changed.

    Args:
        app: The application.
        shared: What to forget.
    """

    def __init__(self, app: ASGIApp, shared: Shared) -> None:
        self._app = app
        self._shared = shared

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handles one request."""
        # What agents ship is told of as news of its run.
        if scope["type"] != "http" or scope["method"] in ("GET", "HEAD") or scope["path"] == "/api/ingest":
            await self._app(scope, receive, send)
            return

        async def send_afterwards(message: Message) -> None:
            if message["type"] == "http.response.start":
                self._shared.forget()
            await send(message)

        await self._app(scope, receive, send_afterwards)


def _made(make: Callable[[], bytes]) -> tuple[bytes, str]:
    """Returns an answer and its tag; a weak one, as it is the same whether compressed or not."""
    body = make()
    return body, f'W/"{blake2b(body, digest_size=12).hexdigest()}"'


def _has(shown: str, tag: str) -> bool:
    return bool(shown) and (shown.strip() == "*" or tag in (part.strip() for part in shown.split(",")))
