"""What people want of a run."""

from __future__ import annotations

from fastapi import APIRouter, HTTPException

from trainwatch.server.schemas import CommandInfo, CommandRequest, Problem
from trainwatch.server.services import NO_SUCH_RUN, ServicesDep, known_run
from trainwatch.server.store import evidence, runs

router = APIRouter(tags=["runs"])


@router.post(
    "/runs/{run}/commands",
    status_code=202,
    responses={**NO_SUCH_RUN, 409: {"model": Problem, "description": "The run is over."}},
)
def command(services: ServicesDep, run: str, wanted: CommandRequest) -> CommandInfo:
    """Takes a command; it travels to the run with the answer to its agent's next shipment."""
    now = services.clock()
    with services.database.write() as connection:
        known_run(connection, run)
        if not runs.takes_commands(connection, run):
            raise HTTPException(409, "The run is over; there is nothing to halt.")
        number = evidence.add_command(connection, run, wanted.action, wanted.reason, now)
    return CommandInfo(id=number, run=run, action=wanted.action, reason=wanted.reason, created_at=now)
