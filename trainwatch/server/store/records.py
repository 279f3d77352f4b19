"""A run and its ranks as the ingest changes them: read at the begin of its transaction, written back at its end."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, fields
from functools import cache
from operator import attrgetter
from typing import Any, Final

from sqlalchemy import Connection, Table, bindparam, func, select, tuple_, update
from sqlalchemy.dialects.sqlite import Insert

from trainwatch.charts import Attempt
from trainwatch.server.db import insert_for
from trainwatch.server.models import commands, devices, ranks, runs, sources
from trainwatch.server.store import news
from trainwatch.server.store.bulk import Update

Sketch = tuple[Any, ...]
"""What a record was before, but for what changes with every batch."""


@dataclass(slots=True)
class Run:
    """The row of a run; the columns are explained in :mod:`trainwatch.server.models`."""

    id: str
    project: str
    node: str
    started_at: float
    last_event_at: float
    heard_at: float
    name: str = ""
    state: str = "running"
    ended_at: float | None = None
    superseded_until: float = 0.0
    step: int = 0
    max_steps: int = 0
    world_size: int = 1
    described_by: int | None = None
    policy: str = "record"
    loss_source: str = ""
    output_dir: str = ""
    arguments: dict[str, Any] = field(default_factory=dict)
    environment: dict[str, Any] = field(default_factory=dict)
    model: dict[str, Any] = field(default_factory=dict)
    dataset: dict[str, Any] = field(default_factory=dict)
    loss_rank: int | None = None
    last_loss: float = math.nan
    eval_rank: int | None = None
    last_eval_loss: float = math.nan
    sparkline: bytes | None = None
    ending: dict[str, Any] = field(default_factory=dict)
    version: int = 0


@dataclass(slots=True)
class Rank:
    """The row of a rank; ``waiting`` is one of which no process said yet that it began."""

    run: str
    rank: int
    node: str
    source: str = ""
    started_at: float | None = None
    pid: int = 0
    state: str = "waiting"
    step: int = 0
    phase: str = ""
    last_event_at: float = 0.0
    ended_at: float | None = None
    reason: str = ""
    parameters: dict[str, Any] = field(default_factory=dict)
    error: str = ""
    traceback: str = ""
    oom_kills: int = 0

    def is_newest(self, source: str) -> bool:
        """Tells whether a source is of the rank's newest process, as far as is known."""
        return self.source in ("", source)

    def takes_part(self, superseded_until: float) -> bool:
        """Tells whether the rank's newest process is of the run's newest launch.

        It is not if it ran beside a process that was replaced since: its own successor is on the way, or the run has
        fewer ranks now.

        Args:
            superseded_until: Last sign of the processes that were replaced; the run's.
        """
        return self.started_at is None or self.started_at >= superseded_until

    def sketch(self) -> Sketch:
        """Returns what every step leaves as it is, to compare; what is in it is replaced, never changed in place."""
        return _rank_sketch(self)


@dataclass(slots=True)
class Source:
    """The row of a source: how far it is stored and what was lost of it."""

    run: str
    source: str
    node: str
    rank: int | None
    next: int = 0
    lost: dict[str, int] = field(default_factory=dict)
    reported_errors: dict[str, int] = field(default_factory=dict)
    reported_lost: dict[str, int] = field(default_factory=dict)
    message: str = ""
    started_at: float | None = None
    first_step: int | None = None
    world_size: int | None = None

    def sketch(self) -> Sketch:
        """Returns what every batch leaves as it is, to compare; what is in it is replaced, never changed in place."""
        return _source_sketch(self)


# Written only when a run is described anew: they are large, and a shipment comes every second.
_DESCRIPTION: Final = frozenset({"arguments", "environment", "model", "dataset"})
_RUN_COLUMNS: Final = [runs.c[f.name] for f in fields(Run) if f.name not in _DESCRIPTION]
_RANK_COLUMNS: Final = [ranks.c[f.name] for f in fields(Rank)]
_SOURCE_COLUMNS: Final = [sources.c[f.name] for f in fields(Source)]


# What changes with every batch is written by itself, without the rest.
_RANK_MOVES: Final = ("step", "last_event_at")
_SOURCE_MOVES: Final = ("next",)
_rank_sketch: Final = attrgetter(*(f.name for f in fields(Rank) if f.name not in _RANK_MOVES))
_source_sketch: Final = attrgetter(*(f.name for f in fields(Source) if f.name not in _SOURCE_MOVES))
_move_ranks: Final = Update(ranks, _RANK_MOVES, ("run", "rank"))
_move_sources: Final = Update(sources, _SOURCE_MOVES, ("run", "source"))

_LOCKED: Final = (
    select(*_RUN_COLUMNS).where(runs.c.id.in_(bindparam("ids", expanding=True))).order_by(runs.c.id).with_for_update()
)


def lock_runs(connection: Connection, ids: Collection[str]) -> dict[str, Run]:
    """Reads runs and keeps other servers from changing them until the transaction ends.

    In the order of their ids, so that two shipments with the same runs wait for each other and do not deadlock. The
    descriptions are left empty.
    """
    found = connection.execute(_LOCKED, {"ids": sorted(ids)})
    return {row.id: Run(**row._mapping) for row in found}


def make_run(connection: Connection, run: Run) -> None:
    """Inserts a run unless another server did just now."""
    connection.execute(insert_for(connection.dialect.name, runs).values(_row(run)).on_conflict_do_nothing())


def save_run(connection: Connection, run: Run, *, described: bool) -> None:
    """Writes a run back; its description only when it is new."""
    save_runs(connection, [run], described=described)


def save_runs(connection: Connection, changed: Collection[Run], *, described: bool) -> None:
    """Writes runs back; their descriptions only when they are new."""
    if changed:
        left_out = frozenset[str]() if described else _DESCRIPTION
        rows = [{name: value for name, value in _row(run).items() if name not in left_out} for run in changed]
        connection.execute(_update_runs(described), [row | {"key": row.pop("id")} for row in rows])
        news.tell(connection, [(run.id, run.version) for run in changed])


def ranks_among(connection: Connection, wanted: Collection[tuple[str, int]]) -> dict[str, dict[int, Rank]]:
    """Returns the ranks named by run and number, as far as there are any."""
    found: dict[str, dict[int, Rank]] = {}
    if wanted:
        query = select(*_RANK_COLUMNS).where(tuple_(ranks.c.run, ranks.c.rank).in_(sorted(wanted)))
        for row in connection.execute(query):
            found.setdefault(row.run, {})[row.rank] = Rank(**row._mapping)
    return found


def ranks_of(connection: Connection, run: str) -> dict[int, Rank]:
    """Returns the ranks of a run."""
    found = connection.execute(select(*_RANK_COLUMNS).where(ranks.c.run == run).order_by(ranks.c.rank))
    return {row.rank: Rank(**row._mapping) for row in found}


def save_ranks(connection: Connection, changed: Iterable[tuple[Rank, Sketch | None]]) -> None:
    """Writes ranks, each with what it was before; None for new ones."""
    moved, others = [], []
    for rank, before in changed:
        if before == rank.sketch():
            moved.append((rank.step, rank.last_event_at, rank.run, rank.rank))
        else:
            others.append(_row(rank))
    _move_ranks(connection, moved)
    _save(connection, ranks, ("run", "rank"), others)


def describe_ranks(connection: Connection, run: str, column: str, documents: Mapping[int, dict[str, Any]]) -> None:
    """Writes what ranks said of themselves: their ``setup`` or their ``signals``."""
    if documents:
        connection.execute(
            update(ranks)
            .where(ranks.c.run == run, ranks.c.rank == bindparam("number"))
            .values({column: bindparam("document")}),
            [{"number": number, "document": document} for number, document in documents.items()],
        )


def name_of(connection: Connection, run: str) -> str | None:
    """Returns a run's name; None when there is no such run."""
    found: str | None = connection.scalar(select(runs.c.name).where(runs.c.id == run))
    return found


def setups_of(connection: Connection, run: str) -> dict[int, dict[str, Any]]:
    """Returns what each rank said of itself when it began, by section."""
    query = select(ranks.c.rank, ranks.c.setup).where(ranks.c.run == run).order_by(ranks.c.rank)
    return {row.rank: row.setup for row in connection.execute(query)}


def signals_of(connection: Connection, run: str) -> dict[int, dict[str, Any]]:
    """Returns each rank's newest word on what can be read; empty when it said none."""
    query = select(ranks.c.rank, ranks.c.signals).where(ranks.c.run == run).order_by(ranks.c.rank)
    return {row.rank: row.signals for row in connection.execute(query)}


def save_differences(connection: Connection, run: str, found: list[dict[str, Any]]) -> None:
    """Writes in what the run's ranks differ."""
    connection.execute(update(runs).where(runs.c.id == run).values(differences={"differences": found}))


def sources_of(connection: Connection, run: str, names: Collection[str] | None = None) -> dict[str, Source]:
    """Returns the sources of a run, all or those named."""
    query = select(*_SOURCE_COLUMNS).where(sources.c.run == run)
    if names is not None:
        query = query.where(sources.c.source.in_(list(names)))
    return {row.source: Source(**row._mapping) for row in connection.execute(query)}


def sources_among(connection: Connection, wanted: Collection[tuple[str, str]]) -> dict[str, dict[str, Source]]:
    """Returns the sources named by run and name, as far as there are any."""
    found: dict[str, dict[str, Source]] = {}
    if wanted:
        query = select(*_SOURCE_COLUMNS).where(tuple_(sources.c.run, sources.c.source).in_(sorted(wanted)))
        for row in connection.execute(query):
            found.setdefault(row.run, {})[row.source] = Source(**row._mapping)
    return found


def agents_of(connection: Connection, run: str) -> set[tuple[str, str]]:
    """Returns the sources of a run that are agents', each with its node."""
    query = select(sources.c.source, sources.c.node).where(sources.c.run == run, sources.c.rank.is_(None))
    return {(row.source, row.node) for row in connection.execute(query)}


def save_sources(connection: Connection, changed: Iterable[tuple[Source, Sketch | None]]) -> None:
    """Writes sources, each with what it was before; None for new ones."""
    moved, others = [], []
    for source, before in changed:
        if before == source.sketch():
            moved.append((source.next, source.run, source.source))
        else:
            others.append(_row(source))
    _move_sources(connection, moved)
    _save(connection, sources, ("run", "source"), others)


def attempts_of(connection: Connection, run: str) -> list[Attempt]:
    """Returns the processes that finished a step, by rank and time."""
    columns = (sources.c.rank, sources.c.started_at, sources.c.first_step, sources.c.world_size)
    query = select(*columns).where(
        sources.c.run == run,
        sources.c.rank.is_not(None),
        sources.c.started_at.is_not(None),
        sources.c.first_step.is_not(None),
    )
    rows = connection.execute(query.order_by(sources.c.rank, sources.c.started_at))
    return [Attempt(row.rank, row.started_at, row.first_step, row.world_size or 0) for row in rows]


def save_devices(connection: Connection, changed: list[dict[str, Any]]) -> None:
    """Writes the last known use and capacity of devices."""
    _save(connection, devices, ("run", "rank", "device"), changed)


def close_commands(connection: Connection, run: str) -> None:
    """Withdraws a run's commands: the processes that they were meant for are over."""
    connection.execute(update(commands).where(commands.c.run == run, commands.c.open).values(open=False))


def silent_since(connection: Connection, states: Collection[str], moment: float) -> list[str]:
    """Returns the runs in one of `states` of which nothing was heard since `moment`, by the database's clock."""
    return list(connection.scalars(select(runs.c.id).where(runs.c.state.in_(list(states)), runs.c.heard_at < moment)))


def last_known(connection: Connection, ids: Collection[str]) -> dict[str, dict[str, Any]]:
    """Returns what was last known of runs: phase, and the device with the least memory left.

    Returns:
        Run id to ``phase`` (of the rank that was heard last), ``device``, ``used`` and ``capacity`` in bytes; each only
        where it is known.
    """
    result: dict[str, dict[str, Any]] = {}
    newest = select(ranks.c.run, ranks.c.phase).where(ranks.c.run.in_(list(ids)), ranks.c.phase != "")
    for run, phase in connection.execute(newest.order_by(ranks.c.run, ranks.c.last_event_at)):
        result.setdefault(run, {})["phase"] = phase
    full = select(devices.c.run, devices.c.device, devices.c.used, devices.c.capacity).where(
        devices.c.run.in_(list(ids)), devices.c.used.is_not(None), devices.c.capacity.is_not(None)
    )
    left = devices.c.capacity - devices.c.used
    for row in connection.execute(full.order_by(devices.c.run, left.desc(), devices.c.rank, devices.c.device)):
        result.setdefault(row.run, {}).update(device=row.device, used=row.used, capacity=row.capacity)
    return result


def running_on_several_nodes(connection: Connection) -> dict[str, int]:
    """Returns the running runs whose ranks are on more than one node, and the last step of each."""
    query = (
        select(runs.c.id, runs.c.step)
        .join(ranks, ranks.c.run == runs.c.id)
        .where(runs.c.state == "running")
        .group_by(runs.c.id, runs.c.step)
        .having(func.count(ranks.c.node.distinct()) > 1)
    )
    return {row.id: row.step for row in connection.execute(query)}


def touch(connection: Connection, ids: Collection[str], heard_at: float) -> None:
    """Notes that the runs' agent was heard."""
    connection.execute(
        update(runs).where(runs.c.id == bindparam("key")).values(heard_at=bindparam("heard")),
        [{"key": key, "heard": heard_at} for key in sorted(ids)],
    )


def touch_version(connection: Connection, run: str) -> int:
    """Notes that something of a run changed that is not in its own row; returns the new version."""
    changed = update(runs).where(runs.c.id == run).values(version=runs.c.version + 1).returning(runs.c.version)
    version = int(connection.execute(changed).scalar_one())
    news.tell(connection, [(run, version)])
    return version


def _row(record: Run | Rank | Source) -> dict[str, Any]:
    """A record as a row. Not ``asdict``, which copies its documents through and through."""
    return {one.name: getattr(record, one.name) for one in fields(record)}


def _save(connection: Connection, table: Table, key: tuple[str, ...], rows: list[dict[str, Any]]) -> None:
    if rows:
        connection.execute(_upsert(connection.dialect.name, table, key, tuple(rows[0])), rows)


@cache
def _update_runs(described: bool) -> Any:
    names = [one.name for one in fields(Run) if one.name != "id" and (described or one.name not in _DESCRIPTION)]
    return update(runs).where(runs.c.id == bindparam("key")).values({name: bindparam(name) for name in names})


@cache
def _upsert(dialect: str, table: Table, key: tuple[str, ...], columns: tuple[str, ...]) -> Insert:
    """Builds the statement that inserts a row or overwrites these columns of the one with its key; it is not cheap."""
    statement = insert_for(dialect, table)
    changes = {name: statement.excluded[name] for name in columns if name not in key}
    return statement.on_conflict_do_update(index_elements=list(key), set_=changes)
