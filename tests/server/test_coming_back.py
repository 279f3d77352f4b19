"""Runs that are heard again after they were found to be old, and before something of them is taken away."""

from __future__ import annotations

import sqlite3
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, cast

import pytest
from fastapi import HTTPException
from sqlalchemy import event, exc, func, select, text, update

from tests.patience import PATIENCE
from tests.server.shipping import RUN, batch, ended, shipment, started, step
from trainwatch.cli import main
from trainwatch.server import archive
from trainwatch.server.db import Database
from trainwatch.server.ingest.shipments import Ingest
from trainwatch.server.jobs import retention, rolling, silence
from trainwatch.server.jobs.one_by_one import Incomplete
from trainwatch.server.models import chunks, rollups, runs, series
from trainwatch.server.models import points as rows
from trainwatch.server.routes import retention as routes
from trainwatch.server.services import Services
from trainwatch.server.store import fresh, points, records, removal
from trainwatch.server.store import rollups as prepared
from trainwatch.server.store.checking import problems
from trainwatch.server.store.leases import Outdated
from trainwatch.server.store.reading import read
from trainwatch.server.store.removal import InUse, Kept

DAY = 86_400.0
STEPS = 3000
FRESH = 20
"""Steps at the end that come by themselves, and whose points are rows."""


def accept(database: Database, *content: Any, first: int, run: str = RUN, now: float = 0.0) -> None:
    Ingest(database, lambda _run, _version: None, lambda: now).accept(shipment(batch(content, first=first, run=run)))


def make_run(database: Database, run: str = RUN, *, lost: bool = True) -> None:
    """Makes a run that is over: lost, so that it runs again when it is heard, or finished, so that it does not."""
    accept(database, started(), *(step(n, n / 3) for n in range(1, STEPS - FRESH + 1)), first=0, run=run)
    last = [step(n, n / 3) for n in range(STEPS - FRESH + 1, STEPS + 1)]
    accept(database, *last, *([] if lost else [ended(STEPS)]), first=STEPS - FRESH + 1, run=run)
    if lost:
        silence.mark_silent(database, now=100.0, late_after=20, lost_after=60)


def come_back(database: Database, now: float, *, lost: bool = True, run: str = RUN) -> None:
    accept(database, step(STEPS + 1), first=STEPS + (1 if lost else 2), run=run, now=now)


def afterwards(patch: pytest.MonkeyPatch, of: ModuleType, name: str, do: Callable[[], None]) -> None:
    """Has something done as soon as a function has returned for the first time."""
    inner = getattr(of, name)
    done: list[bool] = []

    def outer(*arguments: Any, **named: Any) -> Any:
        found = inner(*arguments, **named)
        if not done:
            done.append(True)
            do()
        return found

    patch.setattr(of, name, outer)


def kept_by(database: Database, kept: Kept) -> None:
    with database.write() as connection:
        removal.keep(connection, "default", kept, 0.0)


def count_of(database: Database, table: Any) -> int:
    with database.read() as connection:
        return connection.scalar(select(func.count()).select_from(table)) or 0


def assert_whole(database: Database, *, lost: bool) -> None:
    """Makes sure that a run that came back has all its points as they were."""
    with database.read() as connection:
        standing = removal.standing_of(connection, RUN)
        assert standing is not None
        assert standing.state == ("running" if lost else "finished")
        [one] = points.listed(connection, RUN)
        assert read(connection, one.id).step.tolist() == list(range(1, STEPS + 2))
        assert connection.scalar(select(series.c.dropped)) is None
        assert list(problems(connection, deep=True)) == []


@pytest.fixture(params=[True, False], ids=["lost", "finished"])
def lost(request: pytest.FixtureRequest) -> bool:
    found: bool = request.param
    return found


def test_a_run_that_comes_back_is_not_deleted(database: Database, monkeypatch: pytest.MonkeyPatch, lost: bool) -> None:
    make_run(database, lost=lost)
    kept_by(database, Kept(runs=30))
    afterwards(monkeypatch, removal, "silent_since", lambda: come_back(database, 40 * DAY, lost=lost))
    retention.work(database, 40 * DAY)
    assert_whole(database, lost=lost)
    monkeypatch.undo()
    if not lost:
        retention.work(database, 80 * DAY)
        assert count_of(database, runs) == 0


@pytest.mark.parametrize(
    ("module", "name"), [(removal, "with_raw"), (removal, "raw_series"), (prepared, "prepare"), (rolling, "roll")]
)
def test_a_run_that_comes_back_keeps_its_points(
    database: Database, monkeypatch: pytest.MonkeyPatch, lost: bool, module: ModuleType, name: str
) -> None:
    make_run(database, lost=lost)
    kept_by(database, Kept(raw=30))
    monkeypatch.setattr(retention, "SEAL_AFTER", 50 * DAY)  # what is packed here is what is dropped next
    afterwards(monkeypatch, module, name, lambda: come_back(database, 40 * DAY, lost=lost))
    retention.work(database, 40 * DAY)
    assert_whole(database, lost=lost)
    if name != "roll":
        assert count_of(database, rollups) == 0, "less than a stretch is rolled up of what is over only"
    if name == "with_raw":
        assert count_of(database, rows) == FRESH + 1, "nothing was packed, either"


def test_points_of_a_run_that_comes_back_are_not_packed(
    database: Database, monkeypatch: pytest.MonkeyPatch, lost: bool
) -> None:
    make_run(database, lost=lost)
    afterwards(monkeypatch, removal, "unsealed", lambda: come_back(database, 700.0, lost=lost))
    retention.seal(database, 700.0)
    assert count_of(database, rows) == FRESH + 1
    assert_whole(database, lost=lost)


def test_a_run_that_comes_back_keeps_its_curves(
    database: Database, monkeypatch: pytest.MonkeyPatch, lost: bool
) -> None:
    make_run(database, lost=lost)
    kept_by(database, Kept(raw=1))
    retention.work(database, 2 * DAY)
    assert (count_of(database, chunks), count_of(database, rollups)) == (0, 1)
    kept_by(database, Kept(raw=1, rollups=1))
    # Nothing but what it has: with a point more it would have a single one, and its rollups would stay for that.
    heard = update(runs).values(heard_at=2.5 * DAY, state="running" if lost else "finished")

    def hear() -> None:
        with database.write() as connection:
            connection.execute(heard)

    afterwards(monkeypatch, removal, "with_curves", hear)
    retention.work(database, 3 * DAY)
    assert count_of(database, rollups) == 1
    if not lost:
        retention.work(database, 4 * DAY)
        assert count_of(database, rollups) == 0


def test_a_run_is_not_deleted_by_hand_while_a_shipment_for_it_is_stored(database: Database) -> None:
    make_run(database)
    services = cast(Services, SimpleNamespace(database=database, clock=lambda: 200.0))
    answers: list[int] = []

    def delete() -> None:
        try:
            routes.delete_run(services, RUN)
        except HTTPException as error:
            answers.append(error.status_code)
        else:
            answers.append(204)

    deleting = threading.Thread(target=delete)
    with database.write() as connection:  # as another server's ingest does
        run = records.lock_runs(connection, [RUN])[RUN]
        deleting.start()
        wait_for_waiting(database, deleting)
        run.state, run.heard_at, run.version = "running", 200.0, run.version + 1
        records.save_run(connection, run, described=False)
    deleting.join(PATIENCE)
    assert answers == [409]
    assert count_of(database, runs) == 1
    silence.mark_silent(database, now=400.0, late_after=20, lost_after=60)
    delete()
    delete()
    assert answers == [409, 204, 404]


def wait_for_waiting(database: Database, thread: threading.Thread) -> None:
    """Waits until the thread waits for a lock; on SQLite it waits for the only writer, and nobody can tell."""
    end = time.monotonic() + PATIENCE
    waiting = text("SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'")
    while database.kind == "postgresql":
        with database.read() as connection:
            if connection.scalar(waiting):
                return
        assert thread.is_alive()
        assert time.monotonic() < end
        time.sleep(0.02)


def test_a_run_is_deleted_only_as_it_was_seen(database: Database) -> None:
    make_run(database, lost=False)
    with database.write() as connection:
        seen = removal.standing_of(connection, RUN)
        records.touch_version(connection, RUN)
    with pytest.raises(InUse), database.write() as connection:
        removal.delete_run(connection, RUN, 5.0, unchanged=seen)
    with pytest.raises(InUse), database.write() as connection:
        removal.delete_run(connection, RUN, 5.0, moment=0.0)
    with database.write() as connection:
        assert removal.delete_run(connection, RUN, 5.0, unchanged=removal.standing_of(connection, RUN))


@pytest.mark.parametrize("named", [True, False], ids=["named", "old"])
def test_what_comes_while_a_run_is_archived_is_not_deleted(
    database: Database,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    lost: bool,
    named: bool,
) -> None:
    make_run(database, lost=lost)
    afterwards(monkeypatch, archive, "write", lambda: come_back(database, 1000.0, lost=lost))
    where = ["--home", str(tmp_path), "--database", database.url, "--to", str(tmp_path)]
    which = [RUN] if named else ["--older-than", "1"]
    assert main(["db", "archive", *which, *where, "--delete"]) == 1
    said = capsys.readouterr()
    assert "changed meanwhile, and is not deleted" in said.out
    assert f"1 run not deleted: {RUN}" in said.err
    assert_whole(database, lost=lost)
    if not lost:
        assert main(["db", "archive", *which, *where, "--delete"]) == 0
        assert "the run is deleted" in capsys.readouterr().out
        assert count_of(database, runs) == 0
        archive.read(database, tmp_path / f"{RUN}.parquet")
        assert_whole(database, lost=lost)


def test_a_run_that_comes_back_before_its_turn_is_not_archived(
    sqlite: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lost: bool
) -> None:
    make_run(sqlite, lost=lost)
    afterwards(monkeypatch, removal, "silent_since", lambda: come_back(sqlite, time.time(), lost=lost))
    where = ["--home", str(tmp_path), "--database", sqlite.url, "--to", str(tmp_path / "to")]
    assert main(["db", "archive", "--older-than", "1", *where, "--delete"]) == 0
    assert list((tmp_path / "to").iterdir()) == []
    assert_whole(sqlite, lost=lost)


@pytest.fixture
def parameters(database: Database) -> int:
    """How many parameters a statement may have at most; on SQLite that depends on who built it."""
    if database.kind == "postgresql":
        return 65_535

    @event.listens_for(database.engine, "connect")
    def on_connect(connection: Any, _record: Any) -> None:
        if sys.version_info >= (3, 11):
            connection.setlimit(sqlite3.SQLITE_LIMIT_VARIABLE_NUMBER, 2000)

    database.engine.dispose()
    return 2000


def test_a_run_of_more_series_than_a_statement_takes_is_packed(database: Database, parameters: int) -> None:
    most = parameters + 10
    accept(database, started(), step(1), ended(1), first=0)
    with database.write() as connection:
        connection.execute(
            text(
                "WITH RECURSIVE numbers(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM numbers WHERE n < :most)"
                " INSERT INTO series (run, rank, metric, device, points, fresh, nonfinite, last_time, last_value)"
                " SELECT :run, n, 'x', '', 1, 1, 0, 1.0, 1.0 FROM numbers"
            ),
            {"run": RUN, "most": most},
        )
        connection.execute(
            text(
                "INSERT INTO points (series, position, step, time, value)"
                " SELECT id, 0, 1, 1.0, 1.0 FROM series WHERE metric = 'x'"
            )
        )
    with database.read() as connection:
        ids = connection.scalars(select(series.c.id).where(series.c.metric == "x")).all()
        found = fresh.read(connection, ids)
    assert len(found) == most
    assert all(one.value.tolist() == [1.0] for one in found.values())
    assert retention.seal(database, 1e9) == 1
    assert count_of(database, rows) == 0
    assert count_of(database, chunks) == most + 1
    with database.read() as connection:
        assert list(problems(connection)) == []


def test_a_run_that_nothing_can_be_done_with_keeps_no_other_waiting(
    sqlite: Database, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    for run in ("a", "b", "c"):
        make_run(sqlite, run, lost=False)
    kept_by(sqlite, Kept(raw=1))
    with sqlite.write() as connection:
        mine = select(series.c.id).where(series.c.run == "b")
        connection.execute(update(chunks).where(chunks.c.series.in_(mine)).values(data=b"no zstd"))
    with pytest.raises(Incomplete, match=": 1, among them 'b'"):
        retention.work(sqlite, 40 * DAY)
    assert "'b' cannot be dealt with" in caplog.text
    with sqlite.read() as connection:
        assert dict(connection.execute(select(series.c.run, series.c.dropped)).all()) == {
            "a": STEPS,
            "b": None,
            "c": STEPS,
        }


@pytest.mark.parametrize("error", [Outdated("retention"), exc.OperationalError("", {}, Exception("it is away"))])
def test_what_concerns_all_runs_ends_the_round(
    sqlite: Database, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    for run in ("a", "b"):
        make_run(sqlite, run, lost=False)
    tried = []

    def fail(_connection: object, run: str) -> bool:
        tried.append(run)
        raise error

    monkeypatch.setattr(points, "seal", fail)
    with pytest.raises(type(error)):
        retention.work(sqlite, 1e9)
    assert tried == ["a"]
