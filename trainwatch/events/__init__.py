"""The wire schema: every event that a training process or an agent records.

One event is one thing that happened, seen by one *source* (a rank's process, or the agent of a node). A source appends
its events to a journal of its own; an event's place in that journal is its *sequence*, counted from 0. The pair
(run, source, sequence) therefore names an event for ever, and the server uses it to take each event once.

Events travel as MessagePack, because JSON has no NaN and no Infinity and these are the values that matter most here.

Rules for changing this file: fields are only ever added, always with a default; a field's meaning never changes; a type
that is no longer written stays readable. A reader skips (and counts) what it does not know.

Times are Unix seconds by the clock of the machine that saw the event. Sizes are bytes, durations seconds.
"""

from __future__ import annotations

import msgspec

from trainwatch.events.base import (
    SCHEMA_VERSION,
    Action,
    AlertState,
    Cause,
    CheckpointReason,
    DeviceValues,
    Event,
    Outcome,
    Phase,
    Policy,
    RuleSettings,
    Severity,
    Values,
)
from trainwatch.events.faults import Autopsied, NonFiniteSeen, OutOfMemorySeen, TensorSummary
from trainwatch.events.findings import FindingRaised, RulesSet
from trainwatch.events.lives import CheckpointSaved, ProcessGone, RunEnded, RunStarted, SignalsFound, TroubleCounted
from trainwatch.events.readings import Evaluated, LayersMeasured, Logged, OtherProcess, PhaseEntered, Sampled, StepEnded

__all__ = [
    "SCHEMA_VERSION",
    "Action",
    "AlertState",
    "AnyEvent",
    "Autopsied",
    "Cause",
    "CheckpointReason",
    "CheckpointSaved",
    "DeviceValues",
    "Evaluated",
    "Event",
    "FindingRaised",
    "LayersMeasured",
    "Logged",
    "NonFiniteSeen",
    "OtherProcess",
    "OutOfMemorySeen",
    "Outcome",
    "Phase",
    "PhaseEntered",
    "Policy",
    "ProcessGone",
    "RuleSettings",
    "RulesSet",
    "RunEnded",
    "RunStarted",
    "Sampled",
    "Severity",
    "SignalsFound",
    "StepEnded",
    "TensorSummary",
    "TroubleCounted",
    "Values",
    "decode",
    "encode",
]

AnyEvent = (
    RunStarted
    | StepEnded
    | Logged
    | Evaluated
    | SignalsFound
    | LayersMeasured
    | Autopsied
    | OutOfMemorySeen
    | PhaseEntered
    | Sampled
    | NonFiniteSeen
    | CheckpointSaved
    | FindingRaised
    | RulesSet
    | RunEnded
    | ProcessGone
    | TroubleCounted
)


_encoder = msgspec.msgpack.Encoder()
_decoder: msgspec.msgpack.Decoder[AnyEvent] = msgspec.msgpack.Decoder(AnyEvent)


def encode(event: Event) -> bytes:
    """Encodes an event as MessagePack.

    Raises:
        TypeError: A value in it has no MessagePack form.
    """
    return _encoder.encode(event)


def decode(payload: bytes | memoryview | msgspec.Raw) -> AnyEvent:
    """Decodes an event.

    Raises:
        msgspec.MsgspecError: It is not MessagePack, of an unknown type, or does not fit the type's fields.
    """
    return _decoder.decode(payload)
