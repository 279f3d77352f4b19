"""Runs: the list, one run, and the metric catalogue that explains their series."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, HTTPException, Query, Request, Response

from trainwatch.metrics import CATALOGUE
from trainwatch.rules.wording import Language
from trainwatch.server import comparing, drawing
from trainwatch.server.access import PrincipalDep, clipped
from trainwatch.server.http.language import LanguageDep
from trainwatch.server.schemas import MetricInfo, RunDetail, RunList, State
from trainwatch.server.schemas.comparison import Comparison
from trainwatch.server.services import NO_SUCH_RUN, Services, ServicesDep
from trainwatch.server.store import layers, points, records
from trainwatch.server.store import runs as store

router = APIRouter(tags=["runs"])


@router.get("/metrics")
@clipped
def metrics() -> list[MetricInfo]:
    """Returns the metric catalogue."""
    return [
        MetricInfo(name=m.name, unit=m.unit, title=m.title, meaning=m.meaning, source=m.source)
        for m in CATALOGUE.values()
    ]


@router.get("/runs")
@clipped
def runs(
    services: ServicesDep,
    principal: PrincipalDep,
    language: LanguageDep,
    project: str | None = None,
    state: State | None = None,
    limit: Annotated[int, Query(ge=1, le=1000)] = 100,
    offset: Annotated[int, Query(ge=0, le=2**31)] = 0,
) -> RunList:
    """Returns runs, newest first."""
    with services.database.read() as connection:
        found = store.listing(
            connection,
            project=principal.project or project,
            state=state,
            limit=limit,
            offset=offset,
            now=services.clock(),
            language=language,
        )
    return found.model_copy(update={"projects": [principal.project]}) if principal.project else found


@router.get("/runs/{run}", response_model=RunDetail, responses=NO_SUCH_RUN)
async def run(request: Request, services: ServicesDep, language: LanguageDep, run: str) -> Response:
    """Returns one run with all that is known of it."""
    return await services.shared.answer(request, run, lambda: _detail(services, run, language), language)


def _detail(services: Services, run: str, language: Language) -> bytes:
    with services.database.read() as connection:
        charts = drawing.available(points.listed(connection, run), layers.measured(connection, run))
        found = store.detail(connection, run, charts=charts, now=services.clock(), language=language)
    if found is None:
        raise HTTPException(404, f"There is no run {run[:100]!r}.")
    return found.model_dump_json(by_alias=True).encode()


@router.get("/runs/{run}/compare/{other}", responses=NO_SUCH_RUN)
def compare(services: ServicesDep, run: str, other: str) -> Comparison:
    """Compares a run with another one: what they were started with, and from which step on their curves part."""
    with services.database.read() as connection:
        names = {one: records.name_of(connection, one) for one in (run, other)}
        for one, name in names.items():
            if name is None:
                raise HTTPException(404, f"There is no run {one[:100]!r}.")
        return comparing.compare(connection, run, other, names[other] or "")
