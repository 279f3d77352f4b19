"""Where agents ship to."""

from __future__ import annotations

import time
from typing import Any, Final

import msgspec
from anyio import to_thread
from fastapi import APIRouter, HTTPException, Request, Response

from trainwatch.server.access import Principal, PrincipalDep
from trainwatch.server.access.shipping import NotYours, own_part
from trainwatch.server.ingest import body
from trainwatch.server.schemas import Problem
from trainwatch.server.services import Services, ServicesDep

router = APIRouter(tags=["ingest"])
_MSGPACK: Final = "application/msgpack"
_ANSWERS: Final[dict[int | str, dict[str, Any]]] = {
    200: {"description": "shipment.Acknowledgement as MessagePack.", "content": {_MSGPACK: {}}},
    400: {"model": Problem, "description": "The body is no shipment."},
    413: {"model": Problem, "description": "The body is too large."},
    415: {"model": Problem, "description": "The content type or encoding is not known."},
}
_BODY: Final[dict[str, Any]] = {
    "requestBody": {
        "required": True,
        "description": "shipment.Shipment as MessagePack; Content-Encoding zstd, gzip or identity.",
        "content": {_MSGPACK: {"schema": {"type": "string", "format": "binary"}}},
    }
}


@router.post("/ingest", response_class=Response, responses=_ANSWERS, openapi_extra=_BODY)
async def ingest(request: Request, services: ServicesDep, principal: PrincipalDep) -> Response:
    """Stores a shipment and answers how far each of its sources is stored, and what the runs are to do."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    try:
        if kind != _MSGPACK:
            raise body.Unacceptable(415, f"A shipment is {_MSGPACK}, not {kind[:50] or 'of no type'}.")
        received = await body.receive(
            request.stream(), request.headers.get("content-length"), services.settings.ingest_bytes
        )
        answer = await to_thread.run_sync(
            _accept,
            services,
            principal,
            received,
            request.headers.get("content-encoding", ""),
            limiter=services.ingest_threads,
        )
    except body.Unacceptable as problem:
        raise HTTPException(problem.status, str(problem)) from problem
    except NotYours as problem:
        raise HTTPException(403, str(problem)) from problem
    return Response(answer, media_type=_MSGPACK)


def _accept(services: Services, principal: Principal, received: bytes, encoding: str) -> bytes:
    expanded = body.expand(received, encoding, services.settings.ingest_expanded_bytes)
    services.limits.shipped(principal, len(expanded), time.monotonic())
    shipment = body.decode(expanded)
    if principal.project:
        with services.database.read() as connection:
            shipment = own_part(connection, principal, shipment)
    answer = msgspec.msgpack.encode(services.ingest.accept(shipment))
    services.telemetry.shipped(len(received), sum(len(batch.events) for batch in shipment.batches))
    return answer
