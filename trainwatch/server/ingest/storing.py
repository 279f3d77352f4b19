"""Stores the batches of several runs: read what they change, digest their events, write what came of it.

Each table is read and written once for all runs, because a statement costs more than the rows in it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any, Final

import msgspec
from sqlalchemy import Connection

from trainwatch import events, journal
from trainwatch.diagnosis.differences import differences
from trainwatch.server import liveness
from trainwatch.server.ingest.digest import UNKNOWN_EVENT, Digest, lost_of
from trainwatch.server.ingest.headroom import headroom_rows
from trainwatch.server.store import alerts, evidence, layers, points, records
from trainwatch.server.store.records import Rank, Run, Source
from trainwatch.shipment import Batch

LOST_IN_JOURNAL: Final = "journal"


class _Ranks(dict[int, Rank]):
    """The ranks of a run as they are asked for: a run may have thousands, and a shipment is of a few."""

    def __init__(self, connection: Connection, run: str, found: Mapping[int, Rank], looked_up: set[int]) -> None:
        super().__init__(found)
        self._connection = connection
        self._run = run
        self._looked_up = looked_up

    def get(self, number: int, default: Any = None) -> Any:
        """Returns a rank, read when it has to be."""
        if number not in self and number not in self._looked_up:
            self._looked_up.add(number)
            self.update(records.ranks_among(self._connection, [(self._run, number)]).get(self._run, {}))
        return super().get(number, default)

    def whole(self) -> dict[int, Rank]:
        """Returns all ranks of the run, with what was changed."""
        stored = records.ranks_of(self._connection, self._run)
        return dict(sorted({**stored, **self}.items()))


def store(
    connection: Connection, runs: Mapping[str, Run], batches: Mapping[str, list[Batch]]
) -> tuple[dict[str, dict[str, int]], int]:
    """Stores the batches of runs. The caller holds the runs' row locks.

    Args:
        connection: A write transaction.
        runs: By id; changed in place and written back, also those without batches.
        batches: By run.

    Returns:
        By run and source the sequence wanted next, and how many points were stored.
    """
    wanted = {(batch.run, batch.source) for run in runs for batch in batches.get(run, ())}
    sources = records.sources_among(connection, wanted)
    speaking = {(batch.run, batch.rank) for run in runs for batch in batches.get(run, ()) if batch.rank is not None}
    known = records.ranks_among(connection, speaking)
    digests: dict[str, tuple[Digest, _Ranks]] = {}
    for name, run in runs.items():
        numbers = {rank for its, rank in speaking if its == name}
        ranks = _Ranks(connection, name, known.get(name, {}), numbers)
        digests[name] = Digest(run, ranks), ranks
        of_run = sources.setdefault(name, {})
        for batch in sorted(batches.get(name, ()), key=_order):
            source = of_run.get(batch.source)
            if source is None:
                source = Source(run=name, source=batch.source, node=batch.node, rank=batch.rank)
                of_run[batch.source] = source
            _take(batch, source, digests[name][0])
    stored = _store_points(connection, {name: digest for name, (digest, _) in digests.items()})
    _store_rows(connection, [digest for digest, _ in digests.values()])
    for digest, _ in digests.values():
        _store_rare(connection, digest)
    records.save_ranks(connection, (d.ranks[number] for d, _ in digests.values() for number in sorted(d.changed_ranks)))
    records.save_sources(connection, (source for of_run in sources.values() for source in of_run.values()))
    for digest, ranks in digests.values():
        _conclude(connection, digest, ranks)
    for described in (False, True):
        changed = [digest.run for digest, _ in digests.values() if digest.described is described]
        records.save_runs(connection, changed, described=described)
    for digest, ranks in digests.values():
        if digest.setups:
            _compare(connection, digest.run, ranks.whole())
    return {name: {one.source: one.next for one in of_run.values()} for name, of_run in sources.items()}, stored


def _store_points(connection: Connection, digests: Mapping[str, Digest]) -> int:
    """Stores the points, and what is last known of the devices; returns how many points there were."""
    newest = points.append_all(connection, {name: digest.points for name, digest in digests.items()})
    rows: list[dict[str, Any]] = []
    for name, last in newest.items():
        digest = digests[name]
        touched = {(key.rank, key.device) for key in digest.points}
        found = headroom_rows(name, {key: one.value for key, one in last.items()})
        rows += [row for row in found if (row["rank"], row["device"]) in touched]
        digest.summarize(last)
    records.save_devices(connection, rows)
    return sum(len(new.value) for digest in digests.values() for new in digest.points.values())


def _store_rows(connection: Connection, digests: list[Digest]) -> None:
    evidence.add_phases(connection, [row for digest in digests for row in digest.phases])
    evidence.add_checkpoints(connection, [row for digest in digests for row in digest.checkpoints])
    evidence.add_nonfinite(connection, [row for digest in digests for row in digest.nonfinite])
    evidence.add_autopsies(connection, [row for digest in digests for row in digest.autopsies])
    evidence.add_out_of_memory(connection, [row for digest in digests for row in digest.out_of_memory])


def _store_rare(connection: Connection, digest: Digest) -> None:
    run = digest.run
    evidence.add_phase_totals(connection, run.id, digest.phase_totals)
    if digest.restarted:
        alerts.supersede(connection, run.id, run.superseded_until, now=run.heard_at)
    alerts.raise_alerts(connection, run.id, digest.findings, now=run.heard_at, superseded_until=run.superseded_until)
    layers.append(connection, run.id, digest.layers)


def _conclude(connection: Connection, digest: Digest, ranks: _Ranks) -> None:
    run = digest.run
    records.describe_ranks(connection, run.id, "setup", digest.setups)
    records.describe_ranks(connection, run.id, "signals", digest.signals)
    if digest.restarted:
        records.close_commands(connection, run.id)
    if digest.lives_changed or run.state in liveness.SILENT:
        liveness.settle(run, liveness.judge(run, ranks.whole().values()))


def _compare(connection: Connection, run: Run, ranks: Mapping[int, Rank]) -> None:
    """Compares the ranks of the newest launch. When they come, not when a page is asked for, which is often."""
    setups = {
        number: setup
        for number, setup in records.setups_of(connection, run.id).items()
        if setup and number < run.world_size and ranks[number].takes_part(run.superseded_until)
    }
    found = [msgspec.to_builtins(one) for one in differences(setups)]
    records.save_differences(connection, run.id, found)


def _order(batch: Batch) -> tuple[bool, int, str, int]:
    """Puts a process before the one that replaced it, and an agent's word on a process after the process's own."""
    return batch.rank is None, journal.attempt_of(batch.source), batch.source, batch.first


def _take(batch: Batch, source: Source, digest: Digest) -> None:
    """Takes the events of a batch that are not stored yet, and moves the source's sequence behind them."""
    if batch.first - batch.lost > source.next:
        return  # something between is missing here (the database was lost?): the agent is to go back
    reasons: Counter[str] = Counter()
    if batch.first > source.next:
        reasons[LOST_IN_JOURNAL] = batch.first - source.next
    for payload in _new(batch, source.next):
        try:
            event = events.decode(payload)
        except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError):
            reasons[UNKNOWN_EVENT] += 1
            continue
        reason = digest.take(event, source)
        if reason is not None:
            reasons[reason] += 1
    lost_of(source, reasons)
    source.next = max(source.next, batch.first + len(batch.events))


def _new(batch: Batch, wanted: int) -> Iterable[msgspec.Raw]:
    return batch.events[max(0, wanted - batch.first) :]
