"""How long a project keeps its data, and runs that are deleted by hand."""

from __future__ import annotations

from typing import Any, Final

from fastapi import APIRouter, HTTPException

from trainwatch.server.schemas import Problem
from trainwatch.server.schemas.growth import Retention, RetentionRequest
from trainwatch.server.services import NO_SUCH_RUN, ServicesDep
from trainwatch.server.store import removal
from trainwatch.server.store.removal import Kept
from trainwatch.settings import is_name

router = APIRouter()
_STILL_RUNS: Final[dict[int | str, dict[str, Any]]] = {
    409: {"model": Problem, "description": "The run is not over."},
    **NO_SUCH_RUN,
}


@router.get("/projects/{project}/retention", tags=["projects"])
def retention(services: ServicesDep, project: str) -> Retention:
    """Returns how long the project keeps its data."""
    _check_name(project)
    with services.database.read() as connection:
        kept, changed_at = removal.kept_of(connection, project)
    return Retention(project=project, changed_at=changed_at, **kept._asdict())


@router.put("/projects/{project}/retention", tags=["projects"])
def set_retention(services: ServicesDep, project: str, wanted: RetentionRequest) -> Retention:
    """Sets how long the project keeps its data. What is too old is dropped within minutes, and cannot be had back."""
    _check_name(project)
    now = services.clock()
    kept = Kept(wanted.raw, wanted.rollups, wanted.runs)
    with services.database.write() as connection:
        removal.keep(connection, project, kept, now)
    services.wake("retention")
    return Retention(project=project, changed_at=now, **kept._asdict())


@router.delete("/runs/{run}", status_code=204, tags=["runs"], responses=_STILL_RUNS)
def delete_run(services: ServicesDep, run: str) -> None:
    """Deletes a run with all that is known of it. What its agents still ship is not stored any more."""
    with services.database.write() as connection:
        try:
            found = removal.delete_run(connection, run, services.clock())
        except removal.InUse:
            message = "The run is not over: halt it first, or wait until it has ended or is lost."
            raise HTTPException(409, message) from None
    if not found:
        raise HTTPException(404, f"There is no run {run[:100]!r}.")


def _check_name(project: str) -> None:
    if not is_name(project):
        raise HTTPException(404, f"There can be no project {project[:100]!r}.")
