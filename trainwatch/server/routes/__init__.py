"""The HTTP API, one file a resource; thin: what is decided or stored is decided and stored elsewhere."""

from __future__ import annotations

from typing import Any, Final

from fastapi import APIRouter

from trainwatch.server.access import Allowed
from trainwatch.server.routes import (
    alerts,
    backtests,
    channels,
    charts,
    commands,
    events,
    health,
    ingest,
    login,
    raw,
    retention,
    rules,
    runs,
    series,
    sessions,
    tokens,
)
from trainwatch.server.schemas import Problem

_PROBLEMS: Final[dict[int | str, dict[str, Any]]] = {
    400: {"model": Problem, "description": "The body is none of what is wanted."},
    401: {"model": Problem, "description": "A token is needed, or the one shown is not valid."},
    403: {"model": Problem, "description": "The token may not do that; or the Host or Origin is not this server's."},
    404: {"model": Problem, "description": "There is no such thing; or not for this token."},
    413: {"model": Problem, "description": "The body is too large."},
    422: {"model": Problem, "description": "A parameter makes no sense."},
    429: {"model": Problem, "description": "Too much was asked for; Retry-After says when to try again."},
    503: {"model": Problem, "description": "The database cannot be reached."},
}


def api() -> APIRouter:
    """Returns all routes under ``/api``; each asks for access except health and login."""
    router = APIRouter(prefix="/api", responses=_PROBLEMS)
    for public in (health, login):
        router.include_router(public.router)
    for private in (
        ingest,
        runs,
        charts,
        series,
        events,
        commands,
        alerts,
        channels,
        rules,
        backtests,
        tokens,
        sessions,
        raw,
        retention,
    ):
        router.include_router(private.router, dependencies=[Allowed])
    return router
