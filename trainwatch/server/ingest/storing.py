"""Stores the batches of several runs: read what they change, digest their events, write what came of it.

Each table is read and written once for all runs, because a statement costs more than the rows in it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, MutableMapping
from typing import Any, Final

import msgspec
from sqlalchemy import Connection

from trainwatch import events, journal
from trainwatch.diagnosis.differences import differences
from trainwatch.server import liveness
from trainwatch.server.ingest.digest import UNKNOWN_EVENT, Digest, lost_of
from trainwatch.server.ingest.headroom import headroom_row
from trainwatch.server.ingest.newest import has_last_word
from trainwatch.server.ingest.remembered import Known
from trainwatch.server.store import alerts, evidence, layers, points, records
from trainwatch.server.store.records import Rank, Run, Sketch, Source
from trainwatch.shipment import Batch

LOST_IN_JOURNAL: Final = "journal"


class _Ranks(MutableMapping[int, Rank]):
    """The ranks of a run as they are asked for: a run may have thousands, and a shipment is of a few.

    Args:
        connection: Where the others are read.
        run: The run.
        known: Those that are known; what is read is added.
        asked: Those that need not be looked for.
    """

    def __init__(self, connection: Connection, run: str, known: dict[int, Rank], asked: set[int]) -> None:
        self._connection = connection
        self._run = run
        self._known = known
        self._asked = asked

    def __getitem__(self, number: int) -> Rank:
        if number not in self._known and number not in self._asked:
            self._asked.add(number)
            self._known.update(records.ranks_among(self._connection, [(self._run, number)]).get(self._run, {}))
        return self._known[number]

    def __setitem__(self, number: int, rank: Rank) -> None:
        self._known[number] = rank

    def __delitem__(self, number: int) -> None:
        del self._known[number]

    def __iter__(self) -> Iterator[int]:
        return iter(self._known)

    def __len__(self) -> int:
        return len(self._known)

    def whole(self) -> dict[int, Rank]:
        """Returns all ranks of the run, with what was changed."""
        stored = records.ranks_of(self._connection, self._run)
        return dict(sorted({**stored, **self._known}.items()))


def store(
    connection: Connection, runs: Mapping[str, Run], batches: Mapping[str, list[Batch]], known: Mapping[str, Known]
) -> tuple[dict[str, dict[str, int]], int]:
    """Stores the batches of runs. The caller holds the runs' row locks.

    Args:
        connection: A write transaction.
        runs: By id; changed in place and written back, also those without batches.
        batches: By run.
        known: What is known of each run; what is missing is read and added, and what changes is changed.

    Returns:
        By run and source the sequence wanted next, and how many points were stored.
    """
    asked = _read(connection, [batch for run in runs for batch in batches.get(run, ())], known)
    digests: dict[str, tuple[Digest, _Ranks]] = {}
    sources: dict[str, dict[str, Source]] = {}
    before: dict[tuple[str, str], Sketch] = {}
    for name, run in runs.items():
        ranks = _Ranks(connection, name, known[name].ranks, asked[name])
        digests[name] = Digest(run, ranks), ranks
        of_run = sources[name] = {}
        for batch in sorted(batches.get(name, ()), key=_order):
            source = known[name].sources.get(batch.source)
            if source is None:
                source = Source(run=name, source=batch.source, node=batch.node, rank=batch.rank)
                known[name].sources[batch.source] = source
            elif batch.source not in of_run:
                before[name, batch.source] = source.sketch()
            of_run[batch.source] = source
            _take(batch, source, digests[name][0])
    stored = _store_points(connection, {name: digest for name, (digest, _) in digests.items()}, known)
    _store_rows(connection, [digest for digest, _ in digests.values()])
    for digest, _ in digests.values():
        _store_rare(connection, digest)
    records.save_ranks(
        connection,
        [
            (digest.ranks[number], sketch)
            for digest, _ in digests.values()
            for number, sketch in sorted(digest.changed_ranks.items(), key=lambda one: one[0])
        ],
    )
    records.save_sources(
        connection,
        [(one, before.get((name, one.source))) for name, of_run in sources.items() for one in of_run.values()],
    )
    for digest, ranks in digests.values():
        _conclude(connection, digest, ranks)
    for described in (False, True):
        written = [digest.run for digest, _ in digests.values() if digest.described is described]
        records.save_runs(connection, written, described=described)
    for digest, ranks in digests.values():
        if digest.setups:
            _compare(connection, digest.run, ranks.whole())
    return {name: {one.source: one.next for one in of_run.values()} for name, of_run in sources.items()}, stored


def _read(connection: Connection, arrived: list[Batch], known: Mapping[str, Known]) -> dict[str, set[int]]:
    """Reads the sources and ranks that batches are of, as far as they are not known.

    Returns:
        By run the ranks that need not be looked for again.
    """
    sources = {(one.run, one.source) for one in arrived if one.source not in known[one.run].sources}
    for name, of_run in records.sources_among(connection, sources).items():
        known[name].sources.update(of_run)
    speaking = {(one.run, one.rank) for one in arrived if one.rank is not None}
    unknown = {(name, rank) for name, rank in speaking if rank not in known[name].ranks}
    for name, found in records.ranks_among(connection, unknown).items():
        known[name].ranks.update(found)
    asked: dict[str, set[int]] = {name: set() for name in known}
    for name, rank in speaking:
        asked[name].add(rank)
    return asked


def _store_points(connection: Connection, digests: Mapping[str, Digest], known: Mapping[str, Known]) -> int:
    """Stores the points, and what is last known of the devices; returns how many points there were."""
    arrived = {name: digest.points for name, digest in digests.items() if digest.points}
    series = {name: known[name].series for name in arrived}
    points.append_all(connection, arrived, series)
    rows: list[dict[str, Any]] = []
    for name, content in arrived.items():
        for rank, device in {(key.rank, key.device) for key in content if key.device}:
            readings = {key.metric: one.last_value for key, one in series[name][rank].items() if key.device == device}
            row = headroom_row(name, rank, device, readings)
            if row is not None:
                rows.append(row)
        digests[name].summarize(series[name])
    records.save_devices(connection, sorted(rows, key=lambda row: (row["run"], row["rank"], row["device"])))
    return sum(len(new.value) for content in arrived.values() for new in content.values())


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
    if digest.findings:
        _raise_alerts(connection, digest)
    layers.append(connection, run.id, digest.layers)


def _raise_alerts(connection: Connection, digest: Digest) -> None:
    run = digest.run
    agents = records.agents_of(connection, run.id)
    agents |= {(source.source, source.node) for _, source in digest.findings if source.rank is None}
    found: dict[bool, list[events.FindingRaised]] = {True: [], False: []}
    for finding, source in digest.findings:
        found[has_last_word(finding, source, agents, digest.ranks)].append(finding)
    alerts.raise_alerts(
        connection,
        run.id,
        found[True],
        by_time=found[False],
        now=run.heard_at,
        superseded_until=run.superseded_until,
    )


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
