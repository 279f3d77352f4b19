"""Takes shipments: each is stored whole, in one transaction with the sequences that it leads to, or not at all.

So a shipment that was stored and not answered (the server died in between) is recognised when it comes again, and one
that was answered is stored.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping

import msgspec
from sqlalchemy import Connection

from trainwatch import events, journal
from trainwatch.diagnosis.differences import differences
from trainwatch.server import liveness
from trainwatch.server.db import Database
from trainwatch.server.digest import UNKNOWN_EVENT, Digest, lost_of
from trainwatch.server.headroom import headroom_rows
from trainwatch.server.store import alerts, evidence, layers, points, records, rule_settings
from trainwatch.server.store.records import Rank, Run, Source
from trainwatch.shipment import Acknowledgement, Batch, Shipment

LOST_IN_JOURNAL = "journal"


class Ingest:
    """Stores shipments.

    Args:
        database: Where to.
        publish: Told the id and the new version of every run that changed, after the commit.
        clock: The server's clock, in Unix seconds.
    """

    def __init__(self, database: Database, publish: Callable[[str, int], None], clock: Callable[[], float]) -> None:
        self._database = database
        self._publish = publish
        self._clock = clock

    def accept(self, shipment: Shipment) -> Acknowledgement:
        """Stores a shipment.

        Returns:
            How far each of its sources is stored now, the commands for its runs, and their projects' rules.
        """
        batches: defaultdict[str, list[Batch]] = defaultdict(list)
        for batch in shipment.batches:
            batches[batch.run].append(batch)
        named = {*batches, *shipment.runs}
        if not named:
            return Acknowledgement(next={})
        now = self._clock()
        following: dict[str, dict[str, int]] = {}
        changed: list[tuple[str, int]] = []
        with self._database.write() as connection:
            runs = _lock(connection, batches, named, now)
            for run in runs.values():
                before, heard_at = run.state, run.heard_at
                run.heard_at = now
                if run.id in batches:
                    run.version += 1
                    following[run.id] = _store(connection, run, batches[run.id])
                    changed.append((run.id, run.version))
                elif run.state == liveness.LOST:
                    run.version += 1
                    _decide(connection, run)
                    records.save_run(connection, run, described=False)
                    changed.append((run.id, run.version))
                if before == liveness.LOST != run.state:
                    liveness.tell_lost(connection, run, now=now, silent_since=heard_at, state="resolved")
                if run.state != before and run.state != liveness.RUNNING:
                    records.close_commands(connection, run.id)
                if run.state not in (before, liveness.RUNNING, liveness.LOST):
                    alerts.drop_pending(connection, run.id, run.ended_at or now)
            quiet = [run.id for run in runs.values() if all(run.id != known for known, _ in changed)]
            if quiet:
                records.touch(connection, quiet, now)
            commands = evidence.open_commands(connection, named)
            rules = rule_settings.of_runs(connection, named)
        for run_id, version in changed:
            self._publish(run_id, version)
        return Acknowledgement(next=following, commands=commands, rules=rules)


def _lock(connection: Connection, batches: dict[str, list[Batch]], named: set[str], now: float) -> dict[str, Run]:
    """Locks the runs named, and makes those that have events and are not there yet."""
    runs = records.lock_runs(connection, named)
    missing = sorted(set(batches) - set(runs))
    for name in missing:
        first = batches[name][0]
        records.make_run(
            connection,
            Run(id=name, project=first.project, node=first.node, started_at=now, last_event_at=0.0, heard_at=now),
        )
    return runs | records.lock_runs(connection, missing) if missing else runs


def _store(connection: Connection, run: Run, batches: list[Batch]) -> dict[str, int]:
    """Stores a run's batches; returns the sequence wanted next of each of their sources."""
    sources = records.sources_of(connection, run.id, {batch.source for batch in batches})
    digest = Digest(run, records.ranks_of(connection, run.id))
    for batch in sorted(batches, key=_order):
        source = sources.get(batch.source)
        if source is None:
            source = sources[batch.source] = Source(run=run.id, source=batch.source, node=batch.node, rank=batch.rank)
        _take(batch, source, digest)
    if digest.points:
        last = points.append(connection, run.id, digest.points)
        touched = {(key.rank, key.device) for key in digest.points}
        rows = headroom_rows(run.id, {key: newest.value for key, newest in last.items()})
        records.save_devices(connection, [row for row in rows if (row["rank"], row["device"]) in touched])
        digest.summarize(last)
    evidence.add_phases(connection, digest.phases)
    evidence.add_checkpoints(connection, digest.checkpoints)
    evidence.add_nonfinite(connection, digest.nonfinite)
    evidence.add_phase_totals(connection, run.id, digest.phase_totals)
    evidence.add_autopsies(connection, digest.autopsies)
    evidence.add_out_of_memory(connection, digest.out_of_memory)
    if digest.restarted:
        alerts.supersede(connection, run.id, run.superseded_until, now=run.heard_at)
    alerts.raise_alerts(connection, run.id, digest.findings, now=run.heard_at, superseded_until=run.superseded_until)
    layers.append(connection, run.id, digest.layers)
    records.save_ranks(connection, (digest.ranks[number] for number in sorted(digest.changed_ranks)))
    records.save_sources(connection, sources.values())
    records.describe_ranks(connection, run.id, "setup", digest.setups)
    records.describe_ranks(connection, run.id, "signals", digest.signals)
    if digest.restarted:
        records.close_commands(connection, run.id)
    if digest.lives_changed or run.state == liveness.LOST:
        liveness.settle(run, liveness.judge(run, digest.ranks.values()))
    records.save_run(connection, run, described=digest.described)
    if digest.setups:
        _compare(connection, run, digest.ranks)
    return {source.source: source.next for source in sources.values()}


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


def _decide(connection: Connection, run: Run) -> None:
    liveness.settle(run, liveness.judge(run, records.ranks_of(connection, run.id).values()))
