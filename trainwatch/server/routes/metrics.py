"""What Prometheus scrapes."""

from __future__ import annotations

from fastapi import APIRouter, Depends, Request, Response

from trainwatch.server import access
from trainwatch.server.services import ServicesDep

router = APIRouter(include_in_schema=False)


async def _admitted(request: Request, services: ServicesDep) -> None:
    if not services.settings.metrics_public:
        await access.require(request)


@router.get("/metrics", dependencies=[Depends(_admitted)])
def metrics(request: Request, services: ServicesDep) -> Response:
    """Returns the server's counters in Prometheus' text format or, asked for it, as OpenMetrics."""
    body, kind = services.telemetry.exposition(request.headers.get("accept", ""))
    return Response(body, headers={"Content-Type": kind, "Cache-Control": "no-store"})
