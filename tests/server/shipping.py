"""Makes shipments as an agent does, and sends them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import httpx2
import msgspec
import zstandard

from trainwatch import events
from trainwatch.events import Event
from trainwatch.shipment import Acknowledgement, Batch, Shipment

RUN = "0123456789abcdef"
NODE = "node1"
T0 = 1_700_000_000.0


def batch(content: Iterable[Event], *, first: int = 0, rank: int | None = 0, **changes: Any) -> Batch:
    """Makes a batch of rank 0 (or of the agent, for rank None); any field can be changed."""
    fields: dict[str, Any] = {
        "run": RUN,
        "project": "default",
        "node": NODE,
        "source": f"agent@{NODE}" if rank is None else f"rank{rank}",
        "rank": rank,
        "first": first,
        "events": [msgspec.Raw(events.encode(event)) for event in content],
    }
    return Batch(**fields | changes)


def shipment(*batches: Batch, runs: Sequence[str] = ()) -> Shipment:
    """Makes a shipment."""
    return Shipment(batches=list(batches), node=NODE, sent_at=T0, runs=list(runs))


def send(client: httpx2.Client, *batches: Batch, runs: Sequence[str] = ()) -> Acknowledgement:
    """Ships batches and returns the answer."""
    body = zstandard.compress(msgspec.msgpack.encode(shipment(*batches, runs=runs)))
    answer = client.post(
        "/api/ingest", content=body, headers={"content-type": "application/msgpack", "content-encoding": "zstd"}
    )
    assert answer.status_code == 200, answer.text
    return msgspec.msgpack.decode(answer.content, type=Acknowledgement)


def started(**changes: Any) -> events.RunStarted:
    """A rank's first event."""
    fields: dict[str, Any] = {"time": T0, "name": "tiny", "pid": 100, "max_steps": 1000, "policy": "protect"}
    return events.RunStarted(**fields | changes)


def step(number: int, loss: float = 1.0, **changes: Any) -> events.StepEnded:
    """A finished step."""
    fields: dict[str, Any] = {"time": T0 + number, "step": number, "values": {"train/loss": loss}}
    return events.StepEnded(**fields | changes)


def ended(number: int, outcome: events.Outcome = "finished", **changes: Any) -> events.RunEnded:
    """A rank's last event."""
    fields: dict[str, Any] = {"time": T0 + number + 0.5, "step": number, "outcome": outcome}
    return events.RunEnded(**fields | changes)
