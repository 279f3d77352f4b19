"""A run's series: what there is, and their points."""

from __future__ import annotations

from typing import Annotated, Final

from fastapi import APIRouter, HTTPException, Query, Request, Response
from pydantic import TypeAdapter

from trainwatch.metrics import describe
from trainwatch.server import drawing
from trainwatch.server.models import NO_RANK
from trainwatch.server.routes.charts import High, Low
from trainwatch.server.schemas import Axis
from trainwatch.server.schemas.series import SeriesData, SeriesInfo
from trainwatch.server.services import NO_SUCH_RUN, Services, ServicesDep, known_run
from trainwatch.server.store import points

router = APIRouter(tags=["series"])


_LIST: Final = TypeAdapter(list[SeriesInfo])


@router.get("/runs/{run}/series", response_model=list[SeriesInfo], responses=NO_SUCH_RUN)
async def series(request: Request, services: ServicesDep, run: str) -> Response:
    """Returns the run's series."""
    return await services.shared.answer(request, run, lambda: _LIST.dump_json(_listed(services, run), by_alias=True))


def _listed(services: Services, run: str) -> list[SeriesInfo]:
    with services.database.read() as connection:
        known_run(connection, run)
        return [
            SeriesInfo(
                metric=one.metric,
                rank=None if one.rank == NO_RANK else one.rank,
                device=one.device,
                unit=describe(one.metric).unit,
                points=one.points,
                nonfinite=one.nonfinite,
                last=one.last_value,
                last_step=one.last_step,
            )
            for one in points.listed(connection, run)
        ]


@router.get("/runs/{run}/series/data", response_model=SeriesData, responses=NO_SUCH_RUN)
async def data(
    request: Request,
    services: ServicesDep,
    run: str,
    metric: str,
    rank: Annotated[int | None, Query(ge=0, le=2**31 - 1)] = None,
    device: str = "",
    x: Axis = "step",
    low: Low = None,
    high: High = None,
    limit: Annotated[int, Query(alias="points", ge=4, le=1_000_000, description="About how many at most.")] = 4000,
) -> Response:
    """Returns a series' points, thinned so that minima, maxima and non-finite points survive.

    By steps, one that was done again after the run was taken up from a checkpoint is there once, as it was done last;
    by time, all that happened is there.
    """
    if low is not None and high is not None and low > high:
        raise HTTPException(422, "'from' is greater than 'to'.")

    def read() -> bytes:
        found = _data(services, run, metric, rank, device, x, low, high, limit)
        return found.model_dump_json(by_alias=True).encode()

    return await services.shared.answer(request, run, read)


def _data(
    services: Services,
    run: str,
    metric: str,
    rank: int | None,
    device: str,
    x: Axis,
    low: float | None,
    high: float | None,
    limit: int,
) -> SeriesData:
    with services.database.read() as connection:
        known_run(connection, run)
        wanted = (NO_RANK if rank is None else rank, device)
        for one in points.listed(connection, run, [metric]):
            if (one.rank, one.device) == wanted:
                found = drawing.column(connection, run, one, axis=x, low=low, high=high, width=max(1, limit // 4))
                return SeriesData(
                    metric=metric,
                    rank=rank,
                    device=device,
                    step=found.step.tolist(),
                    time=found.time.tolist(),
                    value=found.value.tolist(),
                )
    raise HTTPException(404, f"The run has no series {metric[:100]!r} for this rank and device.")
