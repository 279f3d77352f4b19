"""Ships journals to the server.

The files are the queue: what is not acknowledged is read again for the next attempt, so memory stays bounded however
long the server is away. A source's place is moved only by the server's answer, forward or (it lost its database) back.
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import Final

import msgspec

from trainwatch import journal
from trainwatch.agent.clock import SYSTEM, Clock
from trainwatch.agent.control import ControlFile
from trainwatch.agent.link import Link, Meaning, Reply, backoff, judge
from trainwatch.agent.tail import find_sources
from trainwatch.agent.trouble import Trouble
from trainwatch.events import RuleSettings
from trainwatch.journal import Reader, Record, Source
from trainwatch.shipment import Acknowledgement, Batch, Shipment

SHIP_SECONDS: Final = 0.5
HEARTBEAT_SECONDS: Final = 5.0
SHIPMENT_BYTES: Final = 1024 * 1024
SLOW_RETRY_SECONDS: Final = 30.0
# While the run has ended and somebody waits for the agent to go.
HURRY_SECONDS: Final = 1.0
# After so many failures in a row one source's content may be to blame, and the sources are shipped one by one.
_SUSPICIOUS_FAILURES: Final = 3
# A shipment that was too large makes all later ones smaller; after so many good ones a larger one is tried again.
_GROW_AFTER: Final = 50
_SMALLEST_BYTES: Final = 16 * 1024

_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Acknowledgement)


class _Load(msgspec.Struct):
    """A part of a shipment: what was read of one source."""

    follower: _Follower
    records: list[Record]


class _Follower:
    """How far one source has been shipped."""

    def __init__(self, source: Source) -> None:
        self.source = source
        self.position = journal.acknowledged(source.directory)
        self.refused = 0  # sequences directly before the position that the server will never take
        self.most: int | None = None  # ship alone, and at most so many events, to find the one that is refused
        self.failures = 0
        self.not_before = 0.0
        self.is_foreign = False

    def read(self, limit: int) -> list[Record]:
        reader = Reader(self.source.directory, self.position)
        records: list[Record] = []
        size = 0
        while size < limit and (more := reader.read(limit - size)):
            records += more
            size += sum(len(record.payload) for record in more)
        return records[: self.most]

    def batches(self, records: list[Record], project: str) -> list[Batch]:
        """Makes batches: one, and another after each gap."""
        batches: list[Batch] = []
        lost = self.refused
        begin = 0
        for at, record in enumerate(records):
            if at > begin and record.lost:
                batches.append(self._batch(records[begin:at], project, lost))
                begin, lost = at, 0
            lost += record.lost
        batches.append(self._batch(records[begin:], project, lost))
        return batches

    def _batch(self, records: list[Record], project: str, lost: int) -> Batch:
        return Batch(
            run=self.source.run,
            project=project,
            node=self.source.node,
            source=self.source.name,
            rank=self.source.rank,
            first=records[0].sequence,
            lost=lost,
            events=[msgspec.Raw(record.payload) for record in records],
        )


class Shipper:
    """Ships all sources of one node folder.

    Args:
        node_directory: ``journals/RUN/NODE``.
        link: The way to the server.
        trouble: Counts what the server refuses.
        clock: The clock.

    Attributes:
        rules: The project's settings of rules, as the server told them last; None when it did not.
    """

    def __init__(self, node_directory: Path, link: Link, trouble: Trouble, clock: Clock = SYSTEM) -> None:
        self._node_directory = node_directory
        self._run, self._node = node_directory.parent.name, node_directory.name
        self._link = link
        self._trouble = trouble
        self._clock = clock
        self._control = ControlFile(node_directory)
        self._project = ""
        self._followers: dict[str, _Follower] = {}
        self._turn = 0
        self._failures = 0
        self._retry_at = 0.0
        self._asked_to_wait_until = 0.0
        self._good_ones = 0
        self._bytes = SHIPMENT_BYTES
        self.hurry = False
        self.events = 0
        self.problem = ""
        self.rules: RuleSettings | None = None
        started = clock.monotonic()
        self._last_sent = started
        self.last_progress = started
        self.empty_at = -1.0

    def step(self) -> float:
        """Sends one shipment or heartbeat, if it is time for one and there is something to send.

        Returns:
            Seconds until the next call is of use; 0 when more is waiting.

        Raises:
            OSError: The journals cannot be read; FileNotFoundError when the folder is gone.
        """
        now = self._clock.monotonic()
        until = self._asked_to_wait_until if self.hurry else max(self._retry_at, self._asked_to_wait_until)
        if now < until:
            return min(until - now, HURRY_SECONDS) if self.hurry else until - now
        loads = self._collect(now)
        waiting = any(follower.not_before > now for follower in self._followers.values())
        if not loads and not waiting:
            self.empty_at = now
        if not loads and (self.hurry or now - self._last_sent < HEARTBEAT_SECONDS):
            return HURRY_SECONDS if self.hurry else SHIP_SECONDS
        reply = self._link.post(self._encode(loads))
        self._last_sent = now
        return self._settle(loads, reply)

    def _collect(self, now: float) -> list[_Load]:
        for source in find_sources(self._node_directory, self._followers):
            self._followers[source.name] = _Follower(source)
        followers = list(self._followers.values())
        self._turn += 1
        loads: list[_Load] = []
        room = self._bytes
        for at in range(len(followers)):
            follower = followers[(self._turn + at) % len(followers)]
            alone = follower.most is not None
            if follower.not_before > now or room <= 0 or (alone and loads):
                continue
            records = follower.read(room)
            if not records:
                continue
            loads.append(_Load(follower, records))
            room -= sum(len(record.payload) for record in records)
            if alone:
                break
        return loads

    def _encode(self, loads: list[_Load]) -> bytes:
        batches = [b for load in loads for b in load.follower.batches(load.records, self._project_name())]
        return _encoder.encode(
            Shipment(batches=batches, node=self._node, sent_at=self._clock.time(), runs=[self._run]),
        )

    def _project_name(self) -> str:
        if not self._project:
            try:
                self._project = (self._node_directory / "project").read_text().strip()
            except OSError:
                return "default"
        return self._project or "default"

    def _settle(self, loads: list[_Load], reply: Reply) -> float:
        meaning = judge(reply.status)
        if meaning is Meaning.ACCEPTED:
            try:
                answer = _decoder.decode(reply.body)
            except msgspec.MsgspecError as error:
                return self._failed(Reply(0, f"an answer that is none of ours: {error}".encode()))
            return self._accepted(loads, answer)
        if meaning is Meaning.OTHER_ENCODING:
            if self._link.next_encoding():
                return 0.0
            meaning = Meaning.REFUSED
        if meaning is Meaning.TOO_LARGE and loads:
            return self._too_large(loads, reply)
        if meaning is Meaning.REFUSED and loads:
            return self._split(loads, reply, f"refused by the server ({reply.status})")
        if meaning is Meaning.NOT_ALLOWED or not loads:
            return self._failed(reply, first=SLOW_RETRY_SECONDS if meaning is Meaning.NOT_ALLOWED else 0.5)
        suspicious = self._failures + 1 >= _SUSPICIOUS_FAILURES or loads[0].follower.failures
        if meaning is Meaning.FAULT and suspicious and len(self._followers) > 1:
            return self._suspect(loads, reply)
        return self._failed(reply)

    def _accepted(self, loads: list[_Load], answer: Acknowledgement) -> float:
        with self._trouble.guard("writing the control file"):
            self._control.put(answer.commands)
        self.rules = answer.rules.get(self._run, self.rules)
        wanted = answer.next.get(self._run, {})
        forward = [self._move(load, wanted.get(load.follower.source.name)) for load in loads]
        now = self._clock.monotonic()
        if loads and not any(forward):
            self._failures += 1
            if self._failures > 1:  # once is a server that lost its database and wants the beginning first
                return self._wait(backoff(self._failures), f"{self._link.server} takes nothing of what is sent to it")
            return 0.0
        if self.problem:
            self._trouble.say("server back", f"{self._link.server} answers again")
        self._failures, self._retry_at, self._asked_to_wait_until, self.problem = 0, 0.0, 0.0, ""
        self._good_ones += 1
        if self._good_ones % _GROW_AFTER == 0:
            self._bytes = min(self._bytes * 2, SHIPMENT_BYTES)
        if not loads:
            return SHIP_SECONDS
        self.last_progress = now
        size = sum(len(record.payload) for load in loads for record in load.records)
        is_more = self.hurry or not all(forward) or 2 * size > self._bytes or loads[0].follower.most is not None
        return 0.0 if is_more else SHIP_SECONDS

    def _move(self, load: _Load, wanted: int | None) -> bool:
        """Moves a source's place to where the server wants it; tells whether that is forward."""
        follower, last = load.follower, load.records[-1]
        if wanted is None:
            return False
        before = follower.position
        if wanted >= last.after.sequence:
            follower.position = last.after
            if wanted > last.after.sequence and not follower.is_foreign:
                self._skip_known(follower, wanted, len(load.records))
        elif wanted <= load.records[0].sequence - load.records[0].lost - follower.refused:
            self._seek(follower, wanted)
        else:
            kept = [record for record in load.records if record.sequence < wanted]
            follower.position = kept[-1].after if kept else before
        if follower.position.sequence > before.sequence:
            self.events += sum(record.sequence < wanted for record in load.records)
            follower.refused, follower.failures, follower.not_before = 0, 0, 0.0
            if follower.most is not None:
                follower.most = follower.most * 2 if follower.most < 4096 else None
        if follower.position != before:
            self._remember(follower)
        return follower.position.sequence > before.sequence

    def _skip_known(self, follower: _Follower, wanted: int, sent: int) -> None:
        """The server has more of this source than was sent: it was shipped before, and only the note of it is gone."""
        self._seek(follower, wanted)
        if follower.position.sequence >= wanted:
            return
        # It has even more than there is. The journal's folder was deleted under a run id that is used again.
        follower.is_foreign = True
        self._trouble.lose("the server has another journal of this name", sent)
        self._trouble.say(
            f"foreign {follower.source.name}",
            f"the server knows run {self._run}, {follower.source.name} up to {wanted} from a journal that is not on "
            "this disk, and drops what has the same numbers; use a new run id",
        )

    def _seek(self, follower: _Follower, sequence: int) -> None:
        reader = Reader(follower.source.directory)
        reader.seek(sequence)
        follower.position, follower.refused = reader.position, 0

    def _remember(self, follower: _Follower) -> None:
        # When the disk does not take it, the next agent ships a little twice, which the server sorts out.
        with self._trouble.guard("noting what is acknowledged"):
            journal.acknowledge(follower.source.directory, follower.position)

    def _too_large(self, loads: list[_Load], reply: Reply) -> float:
        if sum(len(load.records) for load in loads) > 1 and self._bytes > _SMALLEST_BYTES:
            self._bytes //= 2
            return 0.0
        return self._split(loads, reply, "too large for the server")

    def _split(self, loads: list[_Load], reply: Reply, reason: str) -> float:
        """Closes in on the event that the server does not take."""
        now = self._clock.monotonic()
        for load in loads:
            follower = load.follower
            if len(loads) > 1:
                follower.most = len(load.records)
            elif len(load.records) > 1:
                follower.most = len(load.records) // 2
            else:
                record = load.records[0]
                follower.position = record.after
                follower.refused += record.lost + 1
                self._trouble.lose(reason)
                self._trouble.say("refused", f"an event of {follower.source.name} was {reason}: {reply}")
                self._remember(follower)
        self.last_progress = now
        return 0.0

    def _suspect(self, loads: list[_Load], reply: Reply) -> float:
        """The server fails again and again: from now on each source waits for itself only."""
        now = self._clock.monotonic()
        for load in loads:
            follower = load.follower
            if len(loads) > 1:
                follower.most = len(load.records)
            else:
                follower.failures += 1
                follower.most = max(len(load.records) // 2, 1)
                follower.not_before = now + backoff(follower.failures)
        self._note(f"{self._link.server} fails: {reply}")
        return HURRY_SECONDS

    def _failed(self, reply: Reply, first: float = 0.5) -> float:
        self._failures += 1
        wait = backoff(self._failures, first=first, most=max(first, 10.0))
        if reply.retry_after is not None:
            wait = reply.retry_after + random.random()
            self._asked_to_wait_until = self._clock.monotonic() + wait
        problem = f"cannot ship to {self._link.server} ({reply}); the journal keeps everything"
        # A token or an address stays wrong until a person has put it right; once said, it is in the log.
        is_known = judge(reply.status) is Meaning.NOT_ALLOWED and problem == self.problem
        return self._wait(wait, problem, say=not is_known)

    def _wait(self, seconds: float, problem: str, *, say: bool = True) -> float:
        self._note(problem, say=say)
        self._retry_at = self._clock.monotonic() + seconds
        return min(seconds, HURRY_SECONDS) if self.hurry else seconds

    def _note(self, problem: str, *, say: bool = True) -> None:
        self.problem = problem
        if say:
            self._trouble.say("shipping", problem)
