"""What an agent with a token of one project may ship, and what it is answered."""

from __future__ import annotations

import msgspec
from sqlalchemy import Connection

from trainwatch.server.access.principal import Principal
from trainwatch.server.ingest.shipments import NotYours
from trainwatch.server.store import access as store
from trainwatch.shipment import Shipment


def own_part(connection: Connection, principal: Principal, shipment: Shipment) -> Shipment:
    """Returns a shipment without the runs of other projects that it asks after.

    A run belongs to the project that it was made with, whatever a later batch says, also when it was deleted.

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
    found = store.owners_of(connection, named)
    for batch in shipment.batches:
        if not principal.sees(found.get(batch.run, batch.project)):
            raise NotYours(batch.run, principal.project)
    asked = [run for run in shipment.runs if principal.sees(found.get(run, principal.project))]
    return msgspec.structs.replace(shipment, runs=asked)
