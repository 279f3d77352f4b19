"""Work that is done again and again beside the answering of requests, each piece by one server at a time.

A :class:`Job` is listed in :func:`trainwatch.server.app.jobs`. Its function is called in a thread of its own, now and
then and when something woke it; what it raises is logged and does not end it.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from anyio import CapacityLimiter, to_thread

from trainwatch.server.settings import Settings

if TYPE_CHECKING:
    from trainwatch.server.services import Services

logger = logging.getLogger(__name__)


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

    Raises:
        ValueError: Two jobs have the same name.
    """

    def __init__(self, jobs: Sequence[Job] = ()) -> None:
        self._jobs: Final = {job.name: job for job in jobs}
        if len(self._jobs) != len(jobs):
            raise ValueError("two jobs have the same name")
        self._status: Final = {job.name: JobStatus(job.name, held=not job.alone) for job in jobs}
        self._bells: Final = {job.name: asyncio.Event() for job in jobs}
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
        limiter = CapacityLimiter(max(1, len(self._jobs)))
        for job in self._jobs.values():
            self._tasks.append(asyncio.create_task(self._repeat(job, services, limiter)))

    async def close(self) -> None:
        """Ends when the runs in progress have ended."""
        with self._lock:
            self._loop = None
        for task in self._tasks:
            task.cancel()
        for task in self._tasks:
            with suppress(asyncio.CancelledError):
                await task
        self._tasks.clear()

    async def _repeat(self, job: Job, services: Services, limiter: CapacityLimiter) -> None:
        every = job.every if isinstance(job.every, int | float) else job.every(services.settings)
        bell, status = self._bells[job.name], self._status[job.name]
        status.held = True
        while True:
            with suppress(asyncio.TimeoutError):
                await asyncio.wait_for(bell.wait(), every)
            bell.clear()
            status.last_at, begun = services.clock(), time.monotonic()
            try:
                await to_thread.run_sync(job.work, services, limiter=limiter)
            except Exception:
                # The database may be away for a while. To stop would be worse than to try in vain.
                status.errors += 1
                logger.exception("the job %r failed; it is tried again", job.name)
            status.runs += 1
            status.last_seconds = time.monotonic() - begun
