"""Whether the server is up, and whether it can serve; for load balancers, and for agents that wait. Anybody may ask."""

from __future__ import annotations

from typing import Any, Final

from fastapi import APIRouter, HTTPException

from trainwatch import __version__
from trainwatch.server import migrate
from trainwatch.server.schemas import Health, Problem
from trainwatch.server.services import ServicesDep

router = APIRouter(tags=["server"])
_LATER: Final = {"Retry-After": "2"}
_NOT_READY: Final[dict[int | str, dict[str, Any]]] = {
    503: {"model": Problem, "description": "The database cannot be reached, or its schema is too old."}
}


@router.get("/health")
def health(services: ServicesDep) -> Health:
    """Says that the server is up. It does not ask the database: starting a server again would not bring that back."""
    return Health(status="ok", version=__version__, database=services.database.kind)


@router.get("/ready", responses=_NOT_READY)
def ready(services: ServicesDep) -> Health:
    """Says that the server reaches its database, and that the database has the schema that this version needs."""
    if migrate.is_behind(services.database):
        raise HTTPException(
            503, "The database has an older schema than this server needs: run trainwatch db upgrade.", _LATER
        )
    return Health(status="ok", version=__version__, database=services.database.kind)
