"""Many agents at once: prepared shipments, sent over a connection each by the threads of one process of their own."""

from __future__ import annotations

import http.client
import multiprocessing
import random
import threading
import time
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from typing import Final
from urllib.parse import urlsplit

import msgspec
import zstandard

from benchmarks.support.shipments import NODE, PROJECT, encode, pieces, step
from trainwatch import events
from trainwatch.shipment import Acknowledgement, Batch, Shipment

POINTS_A_STEP: Final = 14
_HEADERS: Final = {"content-type": "application/msgpack", "content-encoding": "zstd"}


@dataclass(frozen=True)
class Plan:
    """What the agents do.

    Attributes:
        url: The server.
        name: The runs are called after it.
        agents: How many there are; each has a run of its own.
        shipments: How many each of them sends.
        steps: Steps of a shipment.
        interval: Seconds from one shipment of an agent to the next; 0: as soon as the one before is acknowledged.
        token: What the agents show; empty: none.
    """

    url: str
    name: str
    agents: int
    shipments: int
    steps: int
    interval: float = 0.0
    token: str = ""

    @property
    def points(self) -> int:
        """How many points are sent in all."""
        return self.agents * self.shipments * self.steps * POINTS_A_STEP


@dataclass
class Outcome:
    """What came of it.

    Attributes:
        seconds: From the first shipment to the last acknowledgement.
        took: Seconds from when a shipment was due to its acknowledgement.
        problems: What was not acknowledged as it should have been.
    """

    seconds: float = 0.0
    took: list[float] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)


class Load:
    """The agents, in a process of their own, ready to send.

    Args:
        plan: What they do.
    """

    def __init__(self, plan: Plan) -> None:
        context = multiprocessing.get_context("spawn")
        self._ours, theirs = context.Pipe()
        self._process = context.Process(target=_work, args=(plan, theirs), daemon=True)
        self._process.start()
        theirs.close()
        self._ours.recv()

    def go(self) -> Outcome:
        """Sends everything, and returns what came of it.

        Raises:
            RuntimeError: Something was not acknowledged.
        """
        self._ours.send("go")
        outcome: Outcome = self._ours.recv()
        self._process.join(30)
        if outcome.problems:
            raise RuntimeError(outcome.problems[0])
        return outcome


def _work(plan: Plan, pipe: Connection) -> None:
    chance = random.Random(plan.name)
    content = [
        encode(step(number, chance) for number in numbers)
        for numbers in pieces(plan.shipments * plan.steps, plan.steps)
    ]
    agents = [_Agent(plan, number, content) for number in range(plan.agents)]
    pipe.send("ready")
    pipe.recv()
    began = time.perf_counter()
    threads = [threading.Thread(target=agent.work, args=(began,)) for agent in agents]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    outcome = Outcome(time.perf_counter() - began)
    for agent in agents:
        outcome.took += agent.took
        outcome.problems += agent.problems
    pipe.send(outcome)


class _Agent:
    def __init__(self, plan: Plan, number: int, content: list[list[bytes]]) -> None:
        self._plan = plan
        self._number = number
        self._run = f"{plan.name}-{number}"
        self._headers = _HEADERS | ({"authorization": f"Bearer {plan.token}"} if plan.token else {})
        address = urlsplit(plan.url)
        self._connection = http.client.HTTPConnection(address.hostname or "", address.port, timeout=300)
        self._bodies: list[tuple[int, bytes]] = []
        self.took: list[float] = []
        self.problems: list[str] = []
        start = events.RunStarted(time=time.time(), name=self._run, pid=number + 1, max_steps=10**6)
        self._send(1, self._body(0, [events.encode(start)]))
        self._connection.close()  # the server would, while the rest is prepared
        first = 1
        for encoded in content:
            self._bodies.append((first + len(encoded), self._body(first, encoded)))
            first += len(encoded)

    def work(self, began: float) -> None:
        interval = self._plan.interval
        due = began + interval * self._number / self._plan.agents
        for following, body in self._bodies:
            if interval:
                time.sleep(max(0.0, due - time.perf_counter()))
            else:
                due = time.perf_counter()
            try:
                self._send(following, body)
            except (OSError, http.client.HTTPException, RuntimeError, msgspec.MsgspecError) as error:
                self.problems.append(f"{type(error).__name__}: {error}")
                return
            self.took.append(time.perf_counter() - due)
            due += interval

    def _body(self, first: int, encoded: list[bytes]) -> bytes:
        batch = Batch(
            run=self._run,
            project=PROJECT,
            node=NODE,
            source="rank0",
            rank=0,
            first=first,
            events=[msgspec.Raw(one) for one in encoded],
        )
        shipment = Shipment(batches=[batch], node=NODE, sent_at=time.time(), runs=[self._run])
        return zstandard.compress(msgspec.msgpack.encode(shipment), 3)

    def _send(self, following: int, body: bytes) -> None:
        self._connection.request("POST", "/api/ingest", body, self._headers)
        answer = self._connection.getresponse()
        content = answer.read()
        if answer.status != 200:
            raise RuntimeError(f"the server answered {answer.status}: {content[:200]!r}")
        stored = msgspec.msgpack.decode(content, type=Acknowledgement).next[self._run]["rank0"]
        if stored != following:
            raise RuntimeError(f"{following} events were sent, {stored} are stored")
