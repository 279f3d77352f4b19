"""A sender that dies at a chosen point of its cycle: ``python -m tests.server.dying DATABASE POINT NUMBER``.

It dies by SIGKILL, so that nothing of it can tidy up, at the given point of the NUMBER-th delivery (from 1). With the
point ``never`` it sends all there is, and so it does at a point at which its receiver kills it.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from typing import Any

from sqlalchemy import event, func, select

from trainwatch.server.db import Database
from trainwatch.server.delivery.addresses import Guard
from trainwatch.server.delivery.retry import Answer
from trainwatch.server.delivery.sender import Sender
from trainwatch.server.models import deliveries
from trainwatch.server.store.deliveries import Leased, due_channels

LEASE_SECONDS = 1.0
POINTS = ("leasing", "lease committing", "leased", "resolving", "sent", "recording", "record committing", "recorded")


class Dying(Sender):
    """Counts its deliveries, and dies."""

    def __init__(self, database: Database, point: str, number: int) -> None:
        super().__init__(database, time.time, guard=DyingGuard(["127.0.0.1"], self), lease_seconds=LEASE_SECONDS)
        self._point = point
        self._number = number
        self._count = 0
        self._part = ""
        event.listen(database.engine, "commit", lambda _connection: self.at(f"{self._part} committing"))

    def at(self, point: str) -> None:
        """Dies if this is the point."""
        if point == self._point and self._count == self._number:
            os.kill(os.getpid(), signal.SIGKILL)

    def lease(self, channel: int) -> Leased | None:
        self._count += 1
        self.at("leasing")
        self._part = "lease"
        leased = super().lease(channel)
        self._part = ""
        self.at("leased")
        return leased

    def send(self, leased: Leased, now: float) -> Answer:
        answer = super().send(leased, now)
        self.at("sent")
        return answer

    def record(self, leased: Leased, answer: Answer, **times: Any) -> None:
        self.at("recording")
        self._part = "record"
        super().record(leased, answer, **times)
        self._part = ""
        self.at("recorded")


class DyingGuard(Guard):
    """Tells the sender when an address is looked up."""

    def __init__(self, allowed: list[str], sender: Dying) -> None:
        super().__init__(allowed)
        self._sender = sender

    def resolve(self, host: str, port: int) -> list[str]:
        self._sender.at("resolving")
        return super().resolve(host, port)


def main() -> None:
    """Sends until nothing waits any more, or dies."""
    url, point, number = sys.argv[1:]
    database = Database(url)
    sender = Dying(database, point, int(number))
    waiting = 1
    deadline = time.monotonic() + 60
    while waiting and time.monotonic() < deadline:
        with database.read() as connection:
            due = due_channels(connection, time.time())
        for channel in due:
            sender.drain(channel)
        with database.read() as connection:
            waiting = connection.scalar(select(func.count()).where(deliveries.c.state == "waiting")) or 0
        time.sleep(0.02)
    database.close()


if __name__ == "__main__":
    main()
