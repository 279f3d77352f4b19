"""What only a run's own page shows: signals, differences, autopsies, out-of-memory, phases."""

from __future__ import annotations

from collections import defaultdict
from typing import Any, Final

import msgspec
from sqlalchemy import Connection, Row

from trainwatch import events
from trainwatch.diagnosis.differences import span_of
from trainwatch.rules.autopsy import autopsy_sentence
from trainwatch.rules.wording import sentence
from trainwatch.server import schemas
from trainwatch.server.store import evidence, records

SHOWN: Final = 10
"""Autopsies, and out-of-memory errors, that a page shows: each is some KiB, and pages are asked for often."""

_SHOWN_DIFFERENCES: Final = 200


def signals(connection: Connection, run: str) -> list[schemas.Signal]:
    """Returns what can be read and what cannot, merged over the ranks that said something of it."""
    found = {rank: known for rank, known in records.signals_of(connection, run).items() if known}
    told: defaultdict[tuple[str, str, str], list[int]] = defaultdict(list)
    for rank, known in found.items():
        for signal in {**known["sources"], **known["missing"]}:
            told[signal, known["sources"].get(signal, ""), known["missing"].get(signal, "")].append(rank)
    order = {signal: place for place, (signal, _, _) in reversed(list(enumerate(told)))}
    return [
        schemas.Signal(
            signal=signal,
            source=source,
            missing=missing,
            ranks="" if len(ranks) == len(found) else span_of(ranks),
        )
        for (signal, source, missing), ranks in sorted(told.items(), key=lambda item: (order[item[0][0]], item[1]))
    ]


def differences(stored: dict[str, Any]) -> list[schemas.Difference]:
    """Returns in what the ranks differ, from what is stored of it."""
    return [
        schemas.Difference(
            key=one["key"],
            severity=one["severity"],
            holders=[schemas.Holder(value=holder["value"], ranks=holder["span"]) for holder in one["holders"]],
            more=one["more"],
        )
        for one in stored.get("differences", [])[:_SHOWN_DIFFERENCES]
    ]


def autopsies(connection: Connection, run: str, world_size: int) -> tuple[list[schemas.Autopsy], int]:
    """Returns the newest autopsies, and how many there are in all."""
    rows, count = evidence.autopsies_of(connection, run, SHOWN)
    return [_autopsy(row, world_size) for row in rows], count


def out_of_memory(connection: Connection, run: str, world_size: int) -> tuple[list[schemas.OutOfMemory], int]:
    """Returns the newest requests that an allocator could not serve, and how many there were in all."""
    rows, count = evidence.out_of_memory_of(connection, run, SHOWN)
    return [_out_of_memory(row, world_size) for row in rows], count


def phases(connection: Connection, run: str) -> list[schemas.PhaseTotal]:
    """Returns the totals of each rank's phases."""
    return [
        schemas.PhaseTotal(rank=rank, phase=phase, entered=one.entered, seconds=one.seconds, peak=one.peak)
        for (rank, phase), one in evidence.phase_totals_of(connection, run).items()
    ]


def _autopsy(row: Row[Any], world_size: int) -> schemas.Autopsy:
    event = msgspec.convert(row.content, events.Autopsied)
    return schemas.Autopsy(
        id=row.id,
        rank=row.rank,
        step=row.step,
        time=row.time,
        sentence=autopsy_sentence(event),
        cause=event.cause,
        parameters=event.parameters,
        micro_batch=event.micro_batch,
        samples=event.samples,
        reproduced=event.reproduced,
        module=event.module,
        module_kind=event.module_kind,
        inputs=[_tensor(one) for one in event.inputs],
        outputs=[_tensor(one) for one in event.outputs],
        weights=[_tensor(one) for one in event.weights],
        tokens=event.tokens,
        padded_tokens=event.padded_tokens,
        supervised_tokens=event.supervised_tokens,
        loss=event.loss,
        loss_scale=event.loss_scale,
        learning_rate=event.learning_rate,
        seconds=event.seconds,
        note=event.note,
    )


def _tensor(one: events.TensorSummary) -> schemas.TensorInfo:
    return schemas.TensorInfo(
        name=one.name,
        shape=one.shape,
        dtype=one.dtype,
        device=one.device,
        low=one.low,
        high=one.high,
        nan=one.nan,
        inf=one.inf,
    )


def _out_of_memory(row: Row[Any], world_size: int) -> schemas.OutOfMemory:
    evidence_of = {
        "device": row.device,
        "requested": row.requested,
        "allocated": row.allocated,
        "free": row.free,
        "phase": row.phase,
    }
    # The only rank there is goes without saying.
    rank = row.rank if world_size > 1 else None
    return schemas.OutOfMemory(
        id=row.id,
        rank=row.rank,
        step=row.step,
        time=row.time,
        sentence=sentence("out_of_memory", evidence_of, step=row.step, rank=rank),
        summary=row.summary,
        **evidence_of,
    )
