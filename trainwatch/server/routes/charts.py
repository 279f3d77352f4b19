"""Charts as Plotly figures."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, HTTPException, Query, Request, Response

from trainwatch.charts import chart_for
from trainwatch.server import drawing
from trainwatch.server.schemas import Axis, Figure, Theme
from trainwatch.server.services import NO_SUCH_RUN, ServicesDep, known_run

router = APIRouter(tags=["runs"])

Low = Annotated[
    float | None, Query(alias="from", allow_inf_nan=False, description="Left end: a step, or Unix seconds.")
]
High = Annotated[float | None, Query(alias="to", allow_inf_nan=False, description="Right end.")]


@router.get("/runs/{run}/charts/{chart:path}", response_model=Figure, responses=NO_SUCH_RUN)
async def chart(
    request: Request,
    services: ServicesDep,
    run: str,
    chart: str,
    x: Axis = "step",
    low: Low = None,
    high: High = None,
    width: Annotated[int, Query(ge=50, le=8000, description="Of the plot, in pixels.")] = 1200,
    theme: Theme = "light",
    rank: Annotated[int | None, Query(ge=0, le=2**31 - 1, description="Only this rank's readings.")] = None,
) -> Response:
    """Draws a chart; ``metric:NAME`` draws any recorded metric."""
    if low is not None and high is not None and low > high:
        raise HTTPException(422, "'from' is greater than 'to'.")
    try:
        wanted = chart_for(chart)
    except KeyError as error:
        raise HTTPException(404, f"There is no chart {chart[:100]!r}.") from error

    def draw() -> bytes:
        with services.database.read() as connection:
            known_run(connection, run)
            figure = drawing.draw(
                connection, run, wanted, axis=x, low=low, high=high, width=width, theme=theme, rank=rank
            )
        return figure.encode()

    return await services.shared.answer(request, run, draw)
