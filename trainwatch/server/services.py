"""What the routes work with, made once when the server starts."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Annotated, Any, Final

from anyio import CapacityLimiter
from fastapi import Depends, HTTPException, Path, Request
from sqlalchemy import Connection

from trainwatch.server.access import Keyring, Limits
from trainwatch.server.access.limits import Newest
from trainwatch.server.access.oidc import Sso
from trainwatch.server.clock import DatabaseClock
from trainwatch.server.db import Database
from trainwatch.server.delivery.sender import Sender
from trainwatch.server.ingest.shipments import Ingest
from trainwatch.server.jobs.runner import Runner
from trainwatch.server.live.shared import Shared
from trainwatch.server.live.updates import Live
from trainwatch.server.schemas import Problem
from trainwatch.server.settings import Settings
from trainwatch.server.store import runs
from trainwatch.server.telemetry.counting import Telemetry


@dataclass(frozen=True)
class Services:
    """The parts of a running server."""

    settings: Settings
    database: Database
    live: Live
    ingest: Ingest
    keyring: Keyring
    limits: Limits
    sso: Sso | None
    delivery: Sender
    # Shipments wait for the writer. In threads of their own, so that pages are answered meanwhile.
    ingest_threads: CapacityLimiter
    shared: Shared
    # Held while a shipment that expands to much is in memory.
    large_bodies: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(2))
    clock: Callable[[], float] = time.time
    jobs: Runner = field(default_factory=Runner)
    telemetry: Telemetry = field(default_factory=Telemetry)
    # Run to its project, and until when that is known.
    projects: Newest[tuple[str, float]] = field(default_factory=lambda: Newest(10_000))

    def wake(self, name: str) -> None:
        """Runs a periodic job at once on this server; from any thread, after the commit that made it necessary."""
        self.jobs.wake(name)

    def set_clock(self, now: float, monotonic: float) -> None:
        """Sets the server's clock by the database's, where several servers may share it.

        Args:
            now: The database's clock, in Unix seconds.
            monotonic: This process's monotonic clock at the same moment.
        """
        if isinstance(self.clock, DatabaseClock):
            self.clock.set(now, monotonic)


async def services(request: Request) -> Services:
    """Returns the server's parts, for a route. Not a plain function: FastAPI would run it in a thread of its own."""
    found: Services = request.app.state.services
    return found


NO_SUCH_RUN: Final[dict[int | str, dict[str, Any]]] = {404: {"model": Problem, "description": "There is no such run."}}
ServicesDep = Annotated[Services, Depends(services)]
Id = Annotated[int, Path(ge=0, le=2**62)]
"""The number of a row; what no column could hold is refused before a database sees it."""


def known_run(connection: Connection, run: str) -> int:
    """Returns a run's version.

    Raises:
        HTTPException: 404; there is no such run.
    """
    version = runs.version(connection, run)
    if version is None:
        raise HTTPException(404, f"There is no run {run[:100]!r}.")
    return version
