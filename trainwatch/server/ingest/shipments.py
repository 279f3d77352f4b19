"""Takes shipments: each is stored whole, in one transaction with the sequences that it leads to, or not at all.

So a shipment that was stored and not answered (the server died in between) is recognised when it comes again, and one
that was answered is stored.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

from sqlalchemy import Connection, exc

from trainwatch.events import RuleSettings
from trainwatch.server import liveness
from trainwatch.server.db import Database
from trainwatch.server.ingest.remembered import Remembered
from trainwatch.server.ingest.storing import store
from trainwatch.server.ingest.together import Together
from trainwatch.server.store import alerts, evidence, records, removal, rule_settings
from trainwatch.server.store.records import Run
from trainwatch.shipment import Acknowledgement, Batch, Command, Shipment

_AT_ONCE: Final = 8000
"""Events stored in one transaction, unless one shipment has more. One transaction at a time: what waits meanwhile goes
into the next one together, which costs less than two that take turns in the interpreter."""


class NotYours(Exception):
    """A shipment is for a run of a project that its token may not ship to. The message is for who runs the agent.

    Args:
        run: The run's id.
        project: The only project that may be shipped to.
    """

    def __init__(self, run: str, project: str) -> None:
        # Not of which project the run is: a token shows nothing of the others.
        super().__init__(
            f"Run {run!r} is not of project {project!r}, the only one that this token may ship to:"
            f" set TRAINWATCH_PROJECT={project} where you train, or take another run id if it is set."
        )


class _Sent(NamedTuple):
    shipment: Shipment
    project: str
    """The only one that it may be for; empty: any."""


class Ingest:
    """Stores shipments.

    Args:
        database: Where to.
        publish: Told the id and the new version of every run that changed, after the commit.
        clock: The server's clock, in Unix seconds.
        count: Told how many points were stored, after the commit.
    """

    def __init__(
        self,
        database: Database,
        publish: Callable[[str, int], None],
        clock: Callable[[], float],
        count: Callable[[int], None] = lambda _points: None,
    ) -> None:
        self._database = database
        self._publish = publish
        self._clock = clock
        self._count = count
        self._remembered = Remembered()
        self._together = Together(
            self._accept,
            weigh=lambda sent: sum(len(batch.events) for batch in sent.shipment.batches),
            most=_AT_ONCE,
            hopeless=(exc.OperationalError, exc.InterfaceError, exc.InternalError, exc.TimeoutError),
        )

    def accept(self, shipment: Shipment, project: str = "") -> Acknowledgement:
        """Stores a shipment, in one transaction with those that come at the same time.

        Args:
            shipment: What came.
            project: The only project that it may be for; empty: any.

        Returns:
            How far each of its sources is stored now, the commands for its runs, and their projects' rules.

        Raises:
            NotYours: One of its runs is of another project.
        """
        if not shipment.batches and not shipment.runs:
            return Acknowledgement(next={})
        return self._together(_Sent(shipment, project))

    def _accept(self, sent: list[_Sent]) -> list[Acknowledgement]:
        shipments = [one.shipment for one in sent]
        batches: defaultdict[str, list[Batch]] = defaultdict(list)
        named: set[str] = set()
        for shipment in shipments:
            named.update(shipment.runs)
            for batch in shipment.batches:
                batches[batch.run].append(batch)
        named.update(batches)
        now = self._clock()
        changed: list[Run] = []
        with self._database.write() as connection:
            runs, deleted = _lock(connection, batches, named, now)
            _stay_inside(sent, runs)
            before = {run.id: (run.state, run.heard_at) for run in runs.values()}
            known = self._remembered.take(runs.values())
            for run in runs.values():
                run.heard_at = now
                if run.id in batches or run.state in liveness.SILENT:
                    run.version += 1
                    changed.append(run)
            following, stored = store(connection, {run.id: run for run in changed}, batches, known)
            following |= _refuse(connection, {name: batches[name] for name in deleted})
            for run in changed:
                state, heard_at = before[run.id]
                if state == liveness.LOST != run.state:
                    liveness.tell_lost(connection, run, now=now, silent_since=heard_at, state="resolved")
                if run.state != state and run.state != liveness.RUNNING:
                    records.close_commands(connection, run.id)
                if run.state not in (state, liveness.RUNNING, liveness.LOST):
                    alerts.drop_pending(connection, run.id, run.ended_at or now)
            quiet = set(runs).difference(run.id for run in changed)
            if quiet:
                records.touch(connection, quiet, now)
            commands = evidence.open_commands(connection, named)
            rules = rule_settings.of_runs(connection, named)
        self._remembered.keep(runs, known)
        self._count(stored)
        for run in changed:
            self._publish(run.id, run.version)
        return [_answer(shipment, following, commands, rules) for shipment in shipments]


def _stay_inside(sent: list[_Sent], runs: Mapping[str, Run]) -> None:
    """Looks once more whose the runs are, now that they are locked: another project may just have made one of them.

    Raises:
        NotYours: Somebody else's. Each of those that came together is then tried alone.
    """
    for shipment, project in sent:
        for name in {*shipment.runs, *(batch.run for batch in shipment.batches)} if project else ():
            if name in runs and runs[name].project != project:
                raise NotYours(name, project)


def _answer(
    shipment: Shipment,
    following: Mapping[str, Mapping[str, int]],
    commands: list[Command],
    rules: Mapping[str, RuleSettings],
) -> Acknowledgement:
    """Picks what concerns one of the shipments."""
    reached: defaultdict[str, dict[str, int]] = defaultdict(dict)
    for batch in shipment.batches:
        reached[batch.run][batch.source] = following[batch.run][batch.source]
    named = {*reached, *shipment.runs}
    return Acknowledgement(
        next=dict(reached),
        commands=[one for one in commands if one.run in named],
        rules={run: found for run, found in rules.items() if run in named},
    )


def _lock(
    connection: Connection, batches: Mapping[str, list[Batch]], named: set[str], now: float
) -> tuple[dict[str, Run], set[str]]:
    """Locks the runs named, and makes those that have events and are not there yet, unless they were deleted.

    Returns:
        The runs by id, and the ids of those that were deleted.
    """
    runs = records.lock_runs(connection, named)
    missing = set(batches) - set(runs)
    deleted = removal.deleted_among(connection, missing)
    new = sorted(missing - deleted)
    for name in new:
        first = batches[name][0]
        records.make_run(
            connection,
            Run(id=name, project=first.project, node=first.node, started_at=now, last_event_at=0.0, heard_at=now),
        )
    return runs | records.lock_runs(connection, new) if new else runs, deleted


def _refuse(connection: Connection, batches: Mapping[str, list[Batch]]) -> dict[str, dict[str, int]]:
    """Takes what came for runs that were deleted without storing it, so that their agents do not send it for ever."""
    removal.count_refused(connection, {run: sum(len(one.events) for one in same) for run, same in batches.items()})
    return {
        run: {
            source: max(one.first + len(one.events) for one in same if one.source == source)
            for source in {one.source for one in same}
        }
        for run, same in batches.items()
    }
