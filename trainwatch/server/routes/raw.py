"""All points of a series, as they were stored; for programs that calculate with them."""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

import msgspec
import numpy as np
from fastapi import APIRouter, HTTPException, Query, Response

from trainwatch.server.models import NO_RANK
from trainwatch.server.schemas.series import RawPoints
from trainwatch.server.services import NO_SUCH_RUN, ServicesDep, known_run
from trainwatch.server.store import points, raw

router = APIRouter(tags=["series"])
MSGPACK: Final = "application/msgpack"
_MOST: Final = 1_000_000  # 24 MB: what a page takes of the server's memory, whatever the series' length
_MOST_JSON: Final = 100_000
_FARTHEST: Final = 2**53
_ANSWERS: Final[dict[int | str, dict[str, Any]]] = {
    200: {
        "description": "A page of points. As MessagePack it has the same fields, and the columns are bytes:"
        " step as int64, time and value as float64, all little-endian.",
        "content": {MSGPACK: {}},
    },
    **NO_SUCH_RUN,
}


@router.get("/runs/{run}/series/points", response_model=RawPoints, responses=_ANSWERS)
def raw_points(
    services: ServicesDep,
    run: str,
    metric: Annotated[str, Query(examples=["train/loss"])],
    rank: Annotated[int | None, Query(ge=0, le=2**31 - 1, description="Absent: the series of no rank.")] = None,
    device: Annotated[str, Query(description="Empty: the series of no device.")] = "",
    first: Annotated[int, Query(ge=0, le=_FARTHEST, description="Position of the first point wanted.")] = 0,
    limit: Annotated[int, Query(ge=1, le=_MOST, description="How many at most; as JSON, at most 100,000.")] = _MOST,
    form: Annotated[Literal["json", "msgpack"], Query(alias="format")] = "json",
) -> Response:
    """Returns a series' points at full resolution, in the order of their arrival, a page at a time.

    Nothing is thinned out or left out: a step that was done again after a restart is there as often as it was done.
    `next` is the `first` of the page after this one. A series that grows meanwhile keeps the positions of its points.
    """
    wanted = (NO_RANK if rank is None else rank, device)
    most = limit if form == "msgpack" else min(limit, _MOST_JSON)
    with services.database.read() as connection:
        known_run(connection, run)
        found = next(
            (one for one in points.listed(connection, run, [metric]) if (one.rank, one.device) == wanted), None
        )
        if found is None:
            raise HTTPException(404, f"The run has no series {metric[:100]!r} for this rank and device.")
        page = raw.read_page(connection, found.id, first=first, limit=most)
    count = len(page.columns.step)
    end = page.first + count
    head: dict[str, Any] = {
        "metric": metric,
        "rank": rank,
        "device": device,
        "total": found.points,
        "first": page.first,
        "next": end if count and end < found.points else None,
    }
    if form == "msgpack":
        head |= {
            "step": np.ascontiguousarray(page.columns.step, dtype="<i8").data.cast("B"),
            "time": np.ascontiguousarray(page.columns.time, dtype="<f8").data.cast("B"),
            "value": np.ascontiguousarray(page.columns.value, dtype="<f8").data.cast("B"),
        }
        return Response(msgspec.msgpack.encode(head), media_type=MSGPACK)
    answer = RawPoints.model_construct(
        **head,
        step=page.columns.step.tolist(),
        time=page.columns.time.tolist(),
        value=page.columns.value.tolist(),
    )
    return Response(answer.model_dump_json(), media_type="application/json")
