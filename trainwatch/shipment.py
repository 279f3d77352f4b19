"""What an agent and the server send each other: batches of events one way, acknowledgement and commands the other.

The same rules for changes as in :mod:`trainwatch.events` hold.
"""

from __future__ import annotations

import hashlib
from typing import Any, Final, Literal

import msgspec

from trainwatch.events import SCHEMA_VERSION, RuleSettings

LOCAL: Final = 1 << 51
"""Ids from here on are those of commands made on a training machine; the server's begin at 1.

Ranks tell each other an id and its action as one float64, which holds whole numbers up to 2^53.
"""


class Batch(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Consecutive events of one source.

    Attributes:
        run: The run's id.
        source: The source's name, unique in the run for ever: ``"rank0~7c1e5a04"``, ``"rank0.1~9ab20f31"`` (the same
            rank started again on the same disk), ``"agent@node7~44d0be92"``; :func:`trainwatch.journal.create_source`.
        rank: The global rank, or None for an agent.
        first: Sequence of the first event.
        lost: How many sequences directly before `first` could not be read from the journal, and never will be.
        events: The events, each still encoded, so that one that the server does not know spoils no other.
    """

    run: str
    project: str
    node: str
    source: str
    first: int
    events: list[msgspec.Raw]
    rank: int | None = None
    lost: int = 0


class Shipment(msgspec.Struct, frozen=True, kw_only=True):
    """The body of ``POST /api/ingest``. Without batches it is a heartbeat.

    Attributes:
        sent_at: The sender's clock, so that the server can tell how far it is off.
        runs: The runs that the sender watches; the answer carries their commands.
    """

    batches: list[Batch]
    node: str
    sent_at: float
    runs: list[str] = []
    schema: int = SCHEMA_VERSION


class Command(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a person or a rule wants of a run.

    Attributes:
        id: Unique within the run; ranks obey each once. See :data:`LOCAL`.
        action: ``"say"`` asks for nothing but a line in the training's own log.
        reason: The sentence to show for it; a rule's is made from its evidence instead.
        rule: The rule that wants it; empty for a person.
        parameters: The rule's evidence, as in :class:`~trainwatch.events.FindingRaised`.
        rank: The rank that the finding names.
        step: The step that the finding names.
        time: When the finding was made, in Unix seconds; 0 for the server's commands. It was not meant for a training
            that began later.
    """

    id: int
    run: str
    action: Literal["halt", "checkpoint", "say"]
    reason: str = ""
    rule: str = ""
    parameters: dict[str, Any] = {}
    rank: int | None = None
    step: int | None = None
    time: float = 0.0


def local_id(*parts: object) -> int:
    """Returns an id for a command that is made on a training machine: the same parts give the same id.

    Args:
        parts: What tells the command from all others of the run.
    """
    digest = hashlib.sha256(repr(parts).encode()).digest()
    return LOCAL | int.from_bytes(digest[:8], "big") % LOCAL


def encode_commands(commands: list[Command]) -> bytes:
    """Returns what a control file holds: MessagePack, since evidence may be NaN or Inf."""
    return msgspec.msgpack.encode(commands)


def decode_commands(content: bytes) -> list[Command]:
    """Reads what a control file holds; nothing when it is of another version."""
    try:
        return msgspec.msgpack.decode(content, type=list[Command])
    except msgspec.MsgspecError:
        return []


class Acknowledgement(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to a shipment.

    Attributes:
        next: Run id, then source, to the sequence that the server wants next; all before it are stored. It may lie
            before what was sent (the server lost its database): the agent then goes back to it.
        commands: Commands for the runs named in the shipment, until the run has ended.
        rules: Run id to its project's settings of rules, all of them; a run whose project never had any is missing.
    """

    next: dict[str, dict[str, int]]
    commands: list[Command] = []
    rules: dict[str, RuleSettings] = {}
