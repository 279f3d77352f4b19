"""Live updates: who waits for news of which run, and how often they are told."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from typing import Final

INTERVAL: Final = 0.25
"""Seconds between two tellings of one listener: what came in between is told as one."""


class _Listener:
    """One open connection. Holds the newest version of each changed run, so that a slow one costs nothing."""

    __slots__ = ("news", "pending", "run")

    def __init__(self, run: str | None) -> None:
        self.run = run
        self.pending: dict[str, int] = {}
        self.news = asyncio.Event()


class Live:
    """Tells listeners on the event loop what other threads stored."""

    def __init__(self) -> None:
        self._listeners: set[_Listener] = set()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._closed = asyncio.Event()
        # Guards the loop: a thread may publish while the server stops.
        self._lock = threading.Lock()

    def open(self) -> None:
        """Binds to the running event loop."""
        with self._lock:
            self._loop = asyncio.get_running_loop()

    def close(self) -> None:
        """Ends all subscriptions, so that the server can stop while browsers are connected."""
        with self._lock:
            loop, self._loop = self._loop, None
        if loop is not None and not loop.is_closed():
            loop.call_soon_threadsafe(self._close)

    def publish(self, run: str, version: int) -> None:
        """Says that a run changed; from any thread, and without waiting."""
        with self._lock:
            if self._loop is not None and not self._loop.is_closed():
                self._loop.call_soon_threadsafe(self._deliver, run, version)

    async def changes(self, run: str | None = None, *, idle: float = 15.0) -> AsyncIterator[tuple[str, int] | None]:
        """Yields (run, version) of what changed, a run at most every :data:`INTERVAL` seconds, until the server stops.

        Args:
            run: Only this run; None for all.
            idle: After so many seconds without news a None comes, for the caller to show that the line is alive.
        """
        listener = _Listener(run)
        self._listeners.add(listener)
        try:
            while not self._closed.is_set():
                try:
                    await asyncio.wait_for(listener.news.wait(), idle)
                except asyncio.TimeoutError:
                    yield None
                    continue
                listener.news.clear()
                pending, listener.pending = listener.pending, {}
                for item in pending.items():
                    yield item
                if await self._pause():
                    return
        finally:
            self._listeners.discard(listener)

    async def _pause(self) -> bool:
        """Waits for the interval; returns early, and True, when the server stops."""
        try:
            await asyncio.wait_for(self._closed.wait(), INTERVAL)
        except asyncio.TimeoutError:
            return False
        return True

    def _deliver(self, run: str, version: int) -> None:
        for listener in self._listeners:
            if listener.run in (None, run):
                listener.pending[run] = max(version, listener.pending.get(run, 0))
                listener.news.set()

    def _close(self) -> None:
        self._closed.set()
        for listener in self._listeners:
            listener.news.set()
