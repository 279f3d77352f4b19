"""A run whose agent tells findings, and a sender that delivers them: on a real database, with a clock of the test's."""

from __future__ import annotations

import uuid
from typing import Any

from sqlalchemy import select

from tests.server.shipping import RUN, T0, batch, shipment, started, step
from trainwatch.events import FindingRaised
from trainwatch.server.db import Database
from trainwatch.server.delivery.addresses import Guard
from trainwatch.server.delivery.sender import Sender
from trainwatch.server.ingest.shipments import Ingest
from trainwatch.server.models import deliveries
from trainwatch.server.store import channels
from trainwatch.server.store import deliveries as store

KEY = "a key that both of us know"
NOON = 1_700_049_600.0
"""Wednesday, 2023-11-15, 12:00 UTC."""


def finding(moment: float, state: Any = "firing", **changes: Any) -> FindingRaised:
    """A finding at a moment of the run."""
    fields: dict[str, Any] = {"rule": "nonfinite_eval_loss", "severity": "warning", "step": int(moment), "rank": 0}
    fields["parameters"] = {"value": "NaN", "nonfinite": 7, "batches": 10, "since": 1, "reported": None}
    return FindingRaised(time=T0 + moment, state=state, **{**fields, **changes})


class Telling:
    """The whole way from a finding to a message, step by step."""

    def __init__(self, database: Database) -> None:
        self.database = database
        self.now = NOON
        self.ingest = Ingest(database, lambda _run, _version: None, lambda: self.now)
        self.sender = Sender(
            database, lambda: self.now, guard=Guard(["127.0.0.1"]), public_url="https://watch.example.org"
        )
        self.told = 0
        self.ingest.accept(shipment(batch([started(), *(step(n, 1 / n) for n in range(1, 20))])))

    def channel(self, url: str, **changes: Any) -> int:
        """Adds a channel; a webhook unless told otherwise."""
        values: dict[str, Any] = {
            "project": "default",
            "name": f"channel {uuid.uuid4().hex[:6]}",
            "kind": "webhook",
            "secret": {"url": url, "key": KEY},
            "least": "warning",
            "rules": "",
            "send_resolved": True,
            "language": "en",
            "quiet": {},
            "digest_most": 1000,
            "digest_seconds": 300.0,
            "enabled": True,
        }
        with self.database.write() as connection:
            return channels.add(connection, {**values, **changes}, self.now)

    def tell(self, *found: FindingRaised, run: str = RUN) -> None:
        """The agent tells findings."""
        self.ingest.accept(shipment(batch(found, rank=None, first=self.told, run=run)))
        self.told += len(found)

    def send(self, seconds: float = 0.0) -> int:
        """Lets time pass, and sends what is due; returns how many attempts were made."""
        self.now += seconds
        with self.database.read() as connection:
            due = store.due_channels(connection, self.now)
        return sum(self.sender.drain(channel) for channel in due)

    def rows(self) -> list[Any]:
        """Returns all deliveries, the oldest first."""
        with self.database.read() as connection:
            return list(connection.execute(select(deliveries).order_by(deliveries.c.id)).all())

    def states(self) -> list[str]:
        """Returns what became of all deliveries, the oldest first."""
        return [row.state for row in self.rows()]

    def row_of(self, channel: int) -> Any:
        """Returns a channel's row."""
        with self.database.read() as connection:
            return channels.get(connection, "default", channel)
