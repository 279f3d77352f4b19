"""Live updates as server-sent events."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any, Final

from anyio import to_thread
from fastapi import APIRouter, HTTPException
from starlette.responses import StreamingResponse

from trainwatch.server.access import Principal, PrincipalDep, clipped
from trainwatch.server.access.watching import seen_by
from trainwatch.server.schemas import Changed
from trainwatch.server.services import NO_SUCH_RUN, Services, ServicesDep, known_run

router = APIRouter(tags=["runs"])
_HEADERS: Final = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
_ANSWERS: Final[dict[int | str, dict[str, Any]]] = {
    200: {"model": Changed, "description": "A stream of events 'changed'; this is the data of each."},
    **NO_SUCH_RUN,
}


@router.get("/events", response_class=StreamingResponse, responses=_ANSWERS)
@clipped
async def events(services: ServicesDep, principal: PrincipalDep, run: str | None = None) -> StreamingResponse:
    """Tells what changed, as it changes: of one run, or of all.

    A stream for one run begins with its present version, so that nothing is missed between loading and listening.
    """
    if not services.limits.may_stream(principal):
        raise HTTPException(429, "With this token too many live streams are open: close some.")
    version = None if run is None else await to_thread.run_sync(_version, services, run)
    return StreamingResponse(
        _stream(services, principal, run, version), media_type="text/event-stream", headers=_HEADERS
    )


async def _stream(services: Services, principal: Principal, run: str | None, version: int | None) -> AsyncIterator[str]:
    with services.limits.streaming(principal):
        yield ": listening\n\n" if run is None or version is None else _event(run, version)
        async for change in seen_by(services, principal, services.live.changes(run)):
            yield ": ping\n\n" if change is None else _event(*change)


def _event(run: str, version: int) -> str:
    return f"event: changed\ndata: {json.dumps({'run': run, 'version': version})}\n\n"


def _version(services: Services, run: str) -> int:
    with services.database.read() as connection:
        return known_run(connection, run)
