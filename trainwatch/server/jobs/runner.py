"""Work that is done again and again beside the answering of requests, each piece by one server at a time.

A :class:`Job` is listed in :mod:`trainwatch.server.jobs.registry`. Its function is called in a thread of its own, now
and then and when something woke it; what it raises is logged and does not end it. Of several servers the one that holds
a job's lease does it. Each of its write transactions makes sure of that first, so that a server that was frozen in the
middle of it changes nothing when it wakes up and another has taken over.
"""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import socket
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final

from anyio import CapacityLimiter, to_thread

from trainwatch.server.db import Database, guarded
from trainwatch.server.settings import Settings
from trainwatch.server.store import leases
from trainwatch.server.store.leases import Hold, Lease, Outdated

if TYPE_CHECKING:
    from trainwatch.server.services import Services

logger = logging.getLogger(__name__)

_LOOKS: Final = 3
"""How often a lease is renewed before it would end."""


@dataclass(frozen=True, slots=True)
class Job:
    """Something to do again and again.

    Attributes:
        name: Its name, unique; also of its lease.
        every: Seconds between two runs, or where to read them.
        work: What to do; called in a worker thread. A run that still goes on when the next one is due delays it.
        alone: Only the server that holds the lease of this name does it.
    """

    name: str
    every: float | Callable[[Settings], float]
    work: Callable[[Services], None]
    alone: bool = True


@dataclass(slots=True)
class JobStatus:
    """What became of a job on this server.

    Attributes:
        name: The job's name.
        held: Whether this server is the one to do it.
        runs: How often it was done here.
        errors: How often it raised something.
        last_at: When it was begun last, in Unix seconds by the server's clock; None: never.
        last_seconds: How long that took.
    """

    name: str
    held: bool
    runs: int = 0
    errors: int = 0
    last_at: float | None = None
    last_seconds: float = 0.0


class Runner:
    """Runs jobs while the server runs.

    Args:
        jobs: What to run.

    Attributes:
        owner: This server's name in the leases.

    Raises:
        ValueError: Two jobs have the same name.
    """

    def __init__(self, jobs: Sequence[Job] = ()) -> None:
        self._jobs: Final = {job.name: job for job in jobs}
        if len(self._jobs) != len(jobs):
            raise ValueError("two jobs have the same name")
        self.owner: Final = f"{socket.gethostname()}:{os.getpid()}:{secrets.token_hex(4)}"
        self._status: Final = {job.name: JobStatus(job.name, held=not job.alone) for job in jobs}
        self._bells: Final = {job.name: asyncio.Event() for job in jobs}
        self._leases: dict[str, Lease] = {}
        self._held_until = 0.0
        self._tasks: list[asyncio.Task[None]] = []
        self._loop: asyncio.AbstractEventLoop | None = None
        # Guards the loop: a thread may wake a job while the server stops.
        self._lock = threading.Lock()

    def wake(self, name: str) -> None:
        """Runs a job at once on this server, if it is this server's to do; from any thread, and without waiting.

        Args:
            name: The job's name.

        Raises:
            KeyError: There is no such job.
        """
        bell = self._bells[name]
        with self._lock:
            if self._loop is not None and not self._loop.is_closed():
                self._loop.call_soon_threadsafe(bell.set)

    def status(self) -> list[JobStatus]:
        """Returns what became of each job on this server."""
        return list(self._status.values())

    def open(self, services: Services) -> None:
        """Begins, on the running event loop."""
        with self._lock:
            self._loop = asyncio.get_running_loop()
        # Threads of their own: a job that waits for the database keeps no page waiting.
        limiter = CapacityLimiter(len(self._jobs) + 1)
        if any(job.alone for job in self._jobs.values()):
            self._tasks.append(asyncio.create_task(self._keep(services, limiter)))
        for job in self._jobs.values():
            self._tasks.append(asyncio.create_task(self._repeat(job, services, limiter)))

    async def close(self, database: Database) -> None:
        """Ends when the runs in progress have ended, and lets other servers go on.

        Args:
            database: Where the leases are.
        """
        with self._lock:
            self._loop = None
        for task in self._tasks:
            task.cancel()
        for task in self._tasks:
            with suppress(asyncio.CancelledError):
                await task
        self._tasks.clear()
        if self._leases:
            self._leases = {}
            with suppress(Exception):  # they end by themselves, a few seconds later
                await to_thread.run_sync(_release, database, self.owner)

    def _held(self, name: str) -> Lease | None:
        """Returns the lease of a job while it is surely this server's."""
        return self._leases.get(name) if time.monotonic() < self._held_until else None

    async def _keep(self, services: Services, limiter: CapacityLimiter) -> None:
        """Renews the leases, and takes those that another server left."""
        seconds = services.settings.lease_seconds
        names = [job.name for job in self._jobs.values() if job.alone]
        while True:
            try:
                hold = await to_thread.run_sync(
                    _keep, services.database, names, self.owner, seconds, limiter=limiter, abandon_on_cancel=True
                )
            except Exception:
                logger.warning("cannot renew the leases of this server; it is tried again", exc_info=True)
            else:
                services.set_clock(hold.now, hold.asked_at)
                fresh = [name for name, lease in hold.leases.items() if self._held(name) != lease]
                # From the question on, which was before the database counted.
                self._leases, self._held_until = hold.leases, hold.asked_at + seconds * (1 - 1 / _LOOKS / 2)
                # On SQLite there is no other, and it goes without saying.
                level = logging.DEBUG if services.database.kind == "sqlite" else logging.INFO
                for name in fresh:
                    logger.log(level, "this server does the job %r now", name)
                    self._bells[name].set()
            for name in names:
                self._status[name].held = self._held(name) is not None
            await asyncio.sleep(seconds / _LOOKS)

    async def _repeat(self, job: Job, services: Services, limiter: CapacityLimiter) -> None:
        every = job.every if isinstance(job.every, int | float) else job.every(services.settings)
        bell, status = self._bells[job.name], self._status[job.name]
        while True:
            with suppress(asyncio.TimeoutError):
                await asyncio.wait_for(bell.wait(), every)
            bell.clear()
            lease = self._held(job.name)
            if job.alone and lease is None:
                continue
            status.last_at, begun = services.clock(), time.monotonic()
            try:
                await to_thread.run_sync(partial(_work, job, services, lease), limiter=limiter)
            except Outdated:
                logger.warning("another server does the job %r now; this one changed nothing", job.name)
                self._leases.pop(job.name, None)
            except Exception:
                # The database may be away for a while. To stop would be worse than to try in vain.
                status.errors += 1
                logger.exception("the job %r failed; it is tried again", job.name)
            status.runs += 1
            status.last_seconds = time.monotonic() - begun


def _work(job: Job, services: Services, lease: Lease | None) -> None:
    with guarded(partial(leases.check, lease=lease)) if lease else nullcontext():
        job.work(services)


def _keep(database: Database, names: Sequence[str], owner: str, seconds: float) -> Hold:
    with database.write() as connection:
        return leases.keep(connection, names, owner, seconds)


def _release(database: Database, owner: str) -> None:
    with database.write() as connection:
        leases.release(connection, owner)
