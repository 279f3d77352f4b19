"""Live updates: who waits for news of which run, and how often they are told."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Final

import psycopg
from sqlalchemy.exc import SQLAlchemyError

from trainwatch.server.db import Database
from trainwatch.server.store import news

logger = logging.getLogger(__name__)

INTERVAL: Final = 0.25
"""Seconds between two tellings of one listener: what came in between is told as one."""
_AGAIN_SECONDS: Final = 1.0
_OVERLAP_SECONDS: Final = 5.0
_KNOWN: Final = 10_000


class _Listener:
    """One open connection. Holds the newest version of each changed run, so that a slow one costs nothing."""

    __slots__ = ("news", "over", "pending", "run")

    def __init__(self, run: str | None) -> None:
        self.run = run
        self.over = False
        self.pending: dict[str, int] = {}
        self.news = asyncio.Event()


class Live:
    """Tells listeners on the event loop what other threads stored, and what other servers did.

    What this server changed is told at once (:meth:`publish`). On Postgres all servers listen for each other's
    changes besides (:meth:`follow`), on one connection each.
    """

    def __init__(self) -> None:
        self._listeners: set[_Listener] = set()
        # Run to version and monotonic time of its newest news: a change of our own comes twice.
        self._known: dict[str, tuple[int, float]] = {}
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

    def changed_at(self, run: str) -> float:
        """Returns when this server heard last that a run changed, by its monotonic clock; 0: never, or long ago."""
        known = self._known.get(run)
        return 0.0 if known is None else known[1]

    async def follow(self, database: Database) -> None:
        """Tells the listeners what other servers change, for ever; to be cancelled when the server stops.

        After the connection broke it listens again, and catches up.

        Args:
            database: What the servers share; on SQLite there are no others, and this returns at once.
        """
        if database.kind != "postgresql":
            return
        behind = True  # whoever listens here already heard nothing of the others yet
        while True:
            try:
                async with aclosing(news.heard(database.url)) as line:
                    async for what in line:
                        if what is not None:
                            self._deliver(*what)
                        elif behind:
                            await self._catch_up(database)
                            behind = False
            except (psycopg.Error, SQLAlchemyError, OSError) as error:
                # The driver's message may hold the database's address, and with it a password.
                logger.warning(
                    "the line for news of other servers is down (%s); it is tried again", type(error).__name__
                )
            behind = True
            await asyncio.sleep(_AGAIN_SECONDS)

    async def _catch_up(self, database: Database) -> None:
        """Makes sure that nobody misses what was told while this server did not hear it.

        A run that somebody follows is told of as it is now. Of all runs that would be too much, and none of the rest
        could be told from it: not everything that changes a run leaves a time. So those who listen to all runs are let
        go; they come again, and ask for everything anew.
        """
        listening = list(self._listeners)
        followed = {listener.run for listener in listening if listener.run is not None}
        for run, version in await asyncio.to_thread(news.versions_of, database, followed):
            self._deliver(run, version)
        for listener in listening:
            if listener.run is None:
                listener.over = True
                listener.news.set()

    async def changes(self, run: str | None = None, *, idle: float = 15.0) -> AsyncIterator[tuple[str, int] | None]:
        """Yields (run, version) of what changed, a run at most every :data:`INTERVAL` seconds.

        It ends when the server stops, and for all runs also when news may have been missed.

        Args:
            run: Only this run; None for all.
            idle: After so many seconds without news a None comes, for the caller to show that the line is alive.
        """
        listener = _Listener(run)
        self._listeners.add(listener)
        try:
            while not self._closed.is_set() and not listener.over:
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
        now = time.monotonic()
        known = self._known.get(run)
        # Only what is fresh is taken for the same news: a run that was deleted may begin again with smaller numbers.
        if known is not None and version <= known[0] and now - known[1] < _OVERLAP_SECONDS:
            return
        if len(self._known) >= _KNOWN:
            self._known = {name: one for name, one in self._known.items() if now - one[1] < _OVERLAP_SECONDS}
        self._known[run] = (version, now)
        for listener in self._listeners:
            if listener.run in (None, run):
                listener.pending[run] = max(version, listener.pending.get(run, 0))
                listener.news.set()

    def _close(self) -> None:
        self._closed.set()
        for listener in self._listeners:
            listener.news.set()
