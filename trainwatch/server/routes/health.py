"""Health, for load balancers and for agents that wait for the server; anybody may ask."""

from __future__ import annotations

from fastapi import APIRouter

from trainwatch import __version__
from trainwatch.server.schemas import Health
from trainwatch.server.services import ServicesDep

router = APIRouter(tags=["server"])


@router.get("/health")
def health(services: ServicesDep) -> Health:
    """Says that the server is up and reaches its database."""
    with services.database.read() as connection:
        connection.exec_driver_sql("SELECT 1")
    return Health(status="ok", version=__version__, database=services.database.kind)
