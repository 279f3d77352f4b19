"""Shipments as an agent makes them, of steps as a training records them."""

from __future__ import annotations

import random
import time
from collections.abc import Iterable, Iterator
from typing import Final

import msgspec

from trainwatch import events
from trainwatch.agent.link import Link
from trainwatch.events import Event
from trainwatch.shipment import Acknowledgement, Batch, Shipment

NODE: Final = "node1"
PROJECT: Final = "benchmark"
BEGAN: Final = 1_700_000_000.0
_GIB: Final = float(1 << 30)
_PAGE: Final = 4096

_encoder: Final = msgspec.msgpack.Encoder()


def step(number: int, chance: random.Random) -> events.StepEnded:
    """Makes a step with all that a rank on a CPU records of one: 14 values that look like a training's."""
    resident = int(1.1 * _GIB / _PAGE + chance.gauss(0, 500)) * float(_PAGE)
    tokens = chance.randrange(600, 1024)
    return events.StepEnded(
        time=BEGAN + number * 0.25 + chance.gauss(0, 0.01),
        step=number,
        values={
            "train/samples": 4,
            "train/tokens": tokens,
            "train/padded_tokens": 1024,
            "train/batch_length": 256,
            "train/supervised_tokens": tokens - 4,
            "train/micro_batches": 1,
            "train/loss": 2.0 + 4.0 / (1 + number / 500) + chance.gauss(0, 0.1),
            "train/grad_norm": abs(chance.gauss(1.0, 0.3)),
            "train/learning_rate": 5e-5 * (1 - number / 2_000_000),
            "train/step_seconds": 0.25 + chance.gauss(0, 0.01),
            "train/epoch": number / 5000,
        },
        devices={
            "cpu": {
                "memory/capacity": 8 * _GIB,
                "memory/resident": resident,
                "memory/peak": resident + chance.randrange(20_000) * float(_PAGE),
            }
        },
    )


class Client:
    """One agent's way to the server: its own link, with zstd.

    Args:
        server: Address.
        run: Id of the run that is shipped.
    """

    def __init__(self, server: str, run: str) -> None:
        self._link = Link(server)
        self._run = run
        self._next = 0

    def ship(self, encoded: list[bytes]) -> float:
        """Ships encoded events of rank 0, and returns the seconds until they were acknowledged.

        Raises:
            RuntimeError: They were not stored.
        """
        began = time.perf_counter()
        batch = Batch(
            run=self._run,
            project=PROJECT,
            node=NODE,
            source="rank0",
            rank=0,
            first=self._next,
            events=[msgspec.Raw(one) for one in encoded],
        )
        body = _encoder.encode(Shipment(batches=[batch], node=NODE, sent_at=time.time(), runs=[self._run]))
        reply = self._link.post(body)
        took = time.perf_counter() - began
        if reply.status != 200:
            raise RuntimeError(f"the server answered {reply}")
        self._next += len(encoded)
        stored = msgspec.msgpack.decode(reply.body, type=Acknowledgement).next[self._run]["rank0"]
        if stored != self._next:
            raise RuntimeError(f"{self._next} events were sent, {stored} are stored")
        return took

    def start(self, name: str, max_steps: int) -> None:
        """Ships the run's first event."""
        self.ship([events.encode(events.RunStarted(time=BEGAN, name=name, pid=1, max_steps=max_steps))])

    def close(self) -> None:
        """Closes the connection."""
        self._link.close()


def encode(content: Iterable[Event]) -> list[bytes]:
    """Encodes events as they lie in a journal."""
    return [events.encode(event) for event in content]


def pieces(count: int, size: int) -> Iterator[range]:
    """Cuts the steps from 1 to `count` into pieces of `size`."""
    for first in range(1, count + 1, size):
        yield range(first, min(first + size, count + 1))
