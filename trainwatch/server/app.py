"""Puts the application together."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from functools import cache, partial

from anyio import CapacityLimiter
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from sqlalchemy import exc
from starlette.responses import JSONResponse

from trainwatch import __version__
from trainwatch.server import migrate
from trainwatch.server.access import HEADERS, Gate, Keyring, Limits
from trainwatch.server.access.oidc import Sso
from trainwatch.server.clock import DatabaseClock
from trainwatch.server.db import Database
from trainwatch.server.delivery import sender
from trainwatch.server.http import apidoc, methods, ui
from trainwatch.server.http.compress import Compress
from trainwatch.server.http.observe import REQUEST_ID, Observe
from trainwatch.server.http.version import Versioned
from trainwatch.server.ingest.shipments import Ingest
from trainwatch.server.jobs.registry import all_jobs
from trainwatch.server.jobs.runner import Runner
from trainwatch.server.live.shared import Forget, Shared
from trainwatch.server.live.updates import Live
from trainwatch.server.routes import api, metrics
from trainwatch.server.services import Services
from trainwatch.server.settings import Settings
from trainwatch.server.store import leases
from trainwatch.server.telemetry.counting import Telemetry
from trainwatch.server.telemetry.gauges import Gauges
from trainwatch.server.telemetry.logs import request_id

logger = logging.getLogger(__name__)

_INGEST_THREADS = 64  # they wait for each other more than they work: as many are stored at once; see together.py


def create_app(settings: Settings, *, clock: Callable[[], float] | None = None) -> FastAPI:
    """Makes the application. It touches the database only when it is started.

    Args:
        settings: The server's settings.
        clock: The server's clock, in Unix seconds; None: the database's, which on SQLite is this machine's.
    """
    app = FastAPI(
        title="TrainWatch",
        version=__version__,
        lifespan=_lifespan,
        docs_url=None,  # both load scripts from elsewhere, which the content security policy forbids
        redoc_url=None,
        openapi_url=None,
        generate_unique_id_function=_operation,
    )
    telemetry = Telemetry()
    database = Database(settings.database_url)
    telemetry.watch(database.engine)
    live = Live()
    shared = Shared(live.changed_at, telemetry.answered)
    runner = Runner(all_jobs())
    database.wake = runner.wake
    if clock is None:
        clock = time.time if database.kind == "sqlite" else DatabaseClock()
    app.state.services = Services(
        settings=settings,
        database=database,
        live=live,
        shared=shared,
        ingest=Ingest(database, live.publish, clock, telemetry.stored),
        keyring=Keyring(settings, database, clock, time.monotonic),
        limits=Limits(settings),
        sso=Sso(settings) if settings.oidc_issuer else None,
        delivery=sender.make_sender(settings, database, clock),
        ingest_threads=CapacityLimiter(_INGEST_THREADS),
        clock=clock,
        jobs=runner,
        telemetry=telemetry,
    )
    telemetry.registry.register(Gauges(database, runner.status, most_series=settings.metrics_series, clock=clock))
    app.include_router(api())
    app.include_router(metrics.router)
    app.include_router(apidoc.router())
    app.include_router(ui.router())
    methods.install(app)
    app.add_exception_handler(RequestValidationError, _senseless)
    # An internal one too: so come a Postgres that takes no more writes after a failover, and a session that it ended
    # because this server stood still in the middle of a transaction.
    for kind in (exc.OperationalError, exc.InterfaceError, exc.InternalError, exc.TimeoutError):
        app.add_exception_handler(kind, _unreachable)
    app.add_exception_handler(Exception, _broken)
    app.add_middleware(Forget, shared=shared)
    app.add_middleware(Compress)
    app.add_middleware(Gate, settings=settings)
    app.add_middleware(Observe, telemetry=telemetry, log_all=settings.access_log)
    app.add_middleware(Versioned)  # the last one added is the outermost
    described = cache(partial(apidoc.describe, app))
    app.openapi = described  # type: ignore[method-assign]
    return app


@asynccontextmanager
async def _lifespan(app: FastAPI) -> AsyncIterator[None]:
    services: Services = app.state.services
    if services.settings.migrate_on_start:
        await asyncio.to_thread(migrate.upgrade, services.database)
    services.live.open()
    if isinstance(services.clock, DatabaseClock):
        with suppress(exc.SQLAlchemyError):  # it is away just now; the jobs ask again
            await asyncio.to_thread(_set_clock, services)
    following = asyncio.create_task(services.live.follow(services.database))
    beginning = asyncio.create_task(_begin_jobs(services))
    try:
        yield
    finally:
        services.live.close()
        beginning.cancel()
        with suppress(asyncio.CancelledError):
            await beginning
        following.cancel()
        with suppress(asyncio.CancelledError):
            await following
        await services.jobs.close(services.database)
        await asyncio.to_thread(services.delivery.close)
        services.database.close()


async def _begin_jobs(services: Services) -> None:
    """Begins the periodic work, as soon as the database has the schema for it; another process may see to that."""
    while not services.settings.migrate_on_start and await asyncio.to_thread(_is_behind, services.database):
        await asyncio.sleep(1.0)
    services.jobs.open(services)


def _is_behind(database: Database) -> bool:
    try:
        return migrate.is_behind(database)
    except exc.SQLAlchemyError:
        return True


def _set_clock(services: Services) -> None:
    with services.database.read() as connection:
        services.set_clock(*leases.clock(connection))


async def _senseless(_request: Request, error: Exception) -> JSONResponse:
    """Says what is wrong with a parameter, in the same shape as every other refusal."""
    if not isinstance(error, RequestValidationError):
        raise error
    problems = "; ".join(
        f"{'.'.join(str(part) for part in problem['loc'][1:]) or 'body'}: {problem['msg']}"
        for problem in error.errors()[:5]
    )
    return JSONResponse({"detail": problems[:2000]}, status_code=422)


async def _unreachable(_request: Request, error: Exception) -> JSONResponse:
    # The driver's own message may hold the database's address, and with it a password.
    if isinstance(error, exc.InternalError):  # it may also be a fault of ours
        logger.warning("the database refused: %s", type(error.orig).__name__)
    return JSONResponse(
        {"detail": "The database cannot be reached or takes nothing; nothing was stored."},
        status_code=503,
        headers={"Retry-After": "2"},
    )


async def _broken(_request: Request, _error: Exception) -> JSONResponse:
    name = request_id()
    return JSONResponse(
        {"detail": f"Something is wrong with the server; its log says what, for request {name}."},
        status_code=500,
        headers={**HEADERS, REQUEST_ID: name},  # this answer is made outside of the Gate
    )


def _operation(route: APIRoute) -> str:
    """Names an operation in the OpenAPI document after its function."""
    return route.name
