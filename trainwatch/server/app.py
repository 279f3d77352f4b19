"""Puts the application together."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from anyio import CapacityLimiter
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from sqlalchemy import exc
from starlette.responses import JSONResponse

from trainwatch import __version__
from trainwatch.server import liveness, migrate, nodes, ui
from trainwatch.server.access import Gate
from trainwatch.server.compress import Compress
from trainwatch.server.db import Database
from trainwatch.server.ingest import Ingest
from trainwatch.server.live import Live
from trainwatch.server.periodic import Job, Runner
from trainwatch.server.routes import api
from trainwatch.server.services import Services
from trainwatch.server.settings import Settings

_INGEST_THREADS = 4


def jobs() -> tuple[Job, ...]:
    """Returns what a server does now and then, anew: some jobs remember something."""
    return (
        Job("liveness", lambda settings: settings.liveness_seconds, liveness.run),
        Job("nodes", nodes.EVERY_SECONDS, nodes.Comparing()),
    )


def create_app(settings: Settings, *, clock: Callable[[], float] = time.time) -> FastAPI:
    """Makes the application. It touches the database only when it is started.

    Args:
        settings: The server's settings.
        clock: The server's clock, in Unix seconds.
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
    database = Database(settings.database_url)
    live = Live()
    app.state.services = Services(
        settings=settings,
        database=database,
        live=live,
        ingest=Ingest(database, live.publish, clock),
        ingest_threads=CapacityLimiter(_INGEST_THREADS),
        clock=clock,
        jobs=Runner(jobs()),
    )
    app.include_router(api())
    app.include_router(ui.router())
    app.add_exception_handler(RequestValidationError, _senseless)
    for kind in (exc.OperationalError, exc.InterfaceError, exc.TimeoutError):
        app.add_exception_handler(kind, _unreachable)
    app.add_exception_handler(Exception, _broken)
    app.add_middleware(Compress)
    app.add_middleware(Gate, settings=settings)
    return app


@asynccontextmanager
async def _lifespan(app: FastAPI) -> AsyncIterator[None]:
    services: Services = app.state.services
    await asyncio.to_thread(migrate.upgrade, services.database)
    services.live.open()
    services.jobs.open(services)
    try:
        yield
    finally:
        services.live.close()
        await services.jobs.close()
        services.database.close()


async def _senseless(_request: Request, error: Exception) -> JSONResponse:
    """Says what is wrong with a parameter, in the same shape as every other refusal."""
    if not isinstance(error, RequestValidationError):
        raise error
    problems = "; ".join(
        f"{'.'.join(str(part) for part in problem['loc'][1:]) or 'body'}: {problem['msg']}"
        for problem in error.errors()[:5]
    )
    return JSONResponse({"detail": problems[:2000]}, status_code=422)


async def _unreachable(_request: Request, _error: Exception) -> JSONResponse:
    # The driver's own message may hold the database's address, and with it a password.
    return JSONResponse(
        {"detail": "The database cannot be reached or takes nothing; nothing was stored."},
        status_code=503,
        headers={"Retry-After": "2"},
    )


async def _broken(_request: Request, _error: Exception) -> JSONResponse:
    return JSONResponse({"detail": "Something is wrong with the server; its log says what."}, status_code=500)


def _operation(route: APIRoute) -> str:
    """Names an operation in the OpenAPI document after its function."""
    return route.name
