"""What an agent with a token of one project may ship, and what it is answered."""

from __future__ import annotations

import msgspec
from sqlalchemy import Connection

from trainwatch.server.access.principal import Principal
from trainwatch.server.store import access as store
from trainwatch.shipment import Shipment


class NotYours(Exception):
    """A shipment is for a run of a project that its token may not ship to. The message is for who runs the agent."""


def own_part(connection: Connection, principal: Principal, shipment: Shipment) -> Shipment:
    """Returns a shipment without the runs of other projects that it asks after.

    A run belongs to the project that it was made with, whatever a later batch says.

    Args:
        connection: A read transaction.
        principal: Who ships.
        shipment: What came.

    Raises:
        NotYours: A batch is for a run of another project, be it known or new.
    """
    if not principal.project:
        return shipment
    named = {*shipment.runs, *(batch.run for batch in shipment.batches)}
    found = store.projects_of(connection, named)
    for batch in shipment.batches:
        if not principal.sees(found.get(batch.run, batch.project)):
            # Not of which it is: a token shows nothing of the others.
            raise NotYours(
                f"Run {batch.run!r} is not of project {principal.project!r}, the only one that this token may ship to:"
                f" set TRAINWATCH_PROJECT={principal.project} where you train, or take another run id if it is set."
            )
    asked = [run for run in shipment.runs if principal.sees(found.get(run, principal.project))]
    return msgspec.structs.replace(shipment, runs=asked)
