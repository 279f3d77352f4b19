"""Silencing alerts."""

from __future__ import annotations

import math

from fastapi import APIRouter, HTTPException

from trainwatch.server.schemas import SilenceRequest
from trainwatch.server.services import NO_SUCH_RUN, Id, Services, ServicesDep, known_run
from trainwatch.server.store import alerts, records

router = APIRouter(tags=["alerts"])


@router.put("/runs/{run}/alerts/{alert}/silence", status_code=204, responses=NO_SUCH_RUN)
def silence(services: ServicesDep, run: str, alert: Id, wanted: SilenceRequest) -> None:
    """Silences an alert: it is still shown, but not counted, and nobody is notified."""
    until = math.inf if wanted.hours is None else services.clock() + wanted.hours * 3600
    _change(services, run, alert, until)


@router.delete("/runs/{run}/alerts/{alert}/silence", status_code=204, responses=NO_SUCH_RUN)
def end_silence(services: ServicesDep, run: str, alert: Id) -> None:
    """Makes a silenced alert heard again."""
    _change(services, run, alert, None)


def _change(services: Services, run: str, alert: int, until: float | None) -> None:
    with services.database.write() as connection:
        known_run(connection, run)
        # Before the alert, as the ingest does: in the other order the two could wait for each other for ever.
        records.lock_runs(connection, [run])
        if not alerts.silence(connection, run, alert, until):
            raise HTTPException(404, f"The run has no alert {alert}.")
        version = records.touch_version(connection, run)
    services.live.publish(run, version)
