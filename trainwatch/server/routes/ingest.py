"""Where agents ship to."""

from __future__ import annotations

import time
from typing import Any, Final

import msgspec
from anyio import to_thread
from fastapi import APIRouter, HTTPException, Request, Response

from trainwatch.server.access import Principal, PrincipalDep
from trainwatch.server.access.required import too_much
from trainwatch.server.access.shipping import own_part
from trainwatch.server.ingest import body
from trainwatch.server.ingest.shipments import NotYours
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
    if kind != _MSGPACK:
        raise HTTPException(415, f"A shipment is {_MSGPACK}, not {kind[:50] or 'of no type'}.")
    try:
        received = await body.receive(
            request.stream(), request.headers.get("content-length"), services.settings.ingest_bytes
        )
    except body.Unacceptable as problem:
        raise HTTPException(problem.status, str(problem)) from problem
    answer = await to_thread.run_sync(
        _accept,
        services,
        principal,
        received,
        request.headers.get("content-encoding", ""),
        limiter=services.ingest_threads,
    )
    del received
    if isinstance(answer, HTTPException):
        raise answer
    return Response(answer, media_type=_MSGPACK)


def _accept(services: Services, principal: Principal, received: bytes, encoding: str) -> bytes | HTTPException:
    """Stores a shipment; returns the acknowledgement, or why there is none.

    A refusal is not raised through the threads: until the garbage collector comes, its traceback would keep alive what
    a small body expanded to.
    """
    try:
        return _stored(services, principal, received, encoding)
    except body.Unacceptable as problem:
        return HTTPException(problem.status, str(problem))
    except NotYours as problem:
        return HTTPException(403, str(problem))
    except HTTPException as problem:
        return HTTPException(problem.status_code, problem.detail, problem.headers)


def _stored(services: Services, principal: Principal, received: bytes, encoding: str) -> bytes:
    most = services.settings.ingest_expanded_bytes
    try:
        expanded = body.expand(received, encoding, min(body.SMALL_BYTES, most))
    except body.TooLarge:
        if most <= body.SMALL_BYTES:
            raise
    else:
        return _take(services, principal, expanded, len(received))
    # A few bytes may expand to the limit: few such bodies are in memory at a time, from whomever they come.
    with services.large_bodies:
        wait = services.limits.owed(principal, time.monotonic())
        if wait:  # it was within its limit when these came, all at once
            raise too_much("This token ships more than it may: wait a little.", wait)
        try:
            expanded = body.expand(received, encoding, most)
        except body.TooLarge:
            services.limits.shipped(principal, most, time.monotonic())
            raise
        return _take(services, principal, expanded, len(received))


def _take(services: Services, principal: Principal, expanded: bytes, size: int) -> bytes:
    services.limits.shipped(principal, len(expanded), time.monotonic())
    shipment = body.decode(expanded)
    if principal.project:
        with services.database.read() as connection:
            shipment = own_part(connection, principal, shipment)
    answer = msgspec.msgpack.encode(services.ingest.accept(shipment, principal.project))
    services.telemetry.shipped(size, sum(len(batch.events) for batch in shipment.batches))
    return answer
