from __future__ import annotations

import math
import sqlite3
import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from sqlalchemy import delete, select, text, update

from tests.server.shipping import batch, ended, shipment, started, step
from trainwatch import events
from trainwatch.cli import main
from trainwatch.server import archive, migrate, upkeep
from trainwatch.server.db import Database
from trainwatch.server.ingest.shipments import Ingest
from trainwatch.server.jobs import rolling
from trainwatch.server.models import chunks, rollups, series
from trainwatch.server.models import points as rows
from trainwatch.server.settings import Refused
from trainwatch.server.store import archiving, checking, copying, points, removal
from trainwatch.server.store.reading import read


def fill(database: Database, *, runs: int = 2, steps: int = 20_000) -> None:
    ingest = Ingest(database, lambda _run, _version: None, lambda: 100.0)
    for number in range(runs):
        content: list[events.Event] = [
            started(name=f"Lauf {number} ü", model={"loss": math.nan}),
            *(
                step(
                    n,
                    math.nan if n % 777 == 0 else 1 / n,
                    values={
                        "train/loss": -math.inf if n == 5 else 1 / n,
                        "eval/loss": math.nan if n % 777 == 0 else n / 3,
                    },
                )
                for n in range(1, steps + 1)
            ),
            events.LayersMeasured(
                time=1.7e9, step=3, layers=["a", "b"], norms=[1.0, None], zeros=[0.5, 0.25], updates=[]
            ),
            ended(steps),
        ]
        ingest.accept(shipment(batch(content, run=f"run{number}")))
        for at in (0, 25):  # so few at once that they are rows
            content = [step(n) for n in range(at, at + 25)]
            ingest.accept(shipment(batch(content, first=at, run=f"run{number}", source="rank1", rank=1)))
    rolling.catch_up(database)


def problems(database: Database, *, deep: bool = True) -> list[str]:
    return upkeep.check(database, deep=deep)[0]


def test_a_sound_database_has_no_problems_and_a_damaged_one_is_found_out(database: Database) -> None:
    fill(database, runs=1)
    assert problems(database) == []
    with database.read() as connection:
        damaged, other = list(connection.scalars(select(series.c.id).order_by(series.c.points.desc()).limit(2)))
        fresh = connection.scalar(select(series.c.id).where(series.c.fresh > 0).limit(1))
        first, second = list(
            connection.scalars(
                select(chunks.c.position).where(chunks.c.series == damaged).order_by(chunks.c.position).limit(2)
            )
        )
    with database.write() as connection:
        connection.execute(delete(chunks).where(chunks.c.series == damaged, chunks.c.position == first))
        connection.execute(
            update(chunks).where(chunks.c.series == damaged, chunks.c.position == second).values(data=b"no zstd")
        )
        connection.execute(delete(rows).where(rows.c.series == fresh, rows.c.position == 0))
        connection.execute(delete(rollups).where(rollups.c.series == other, rollups.c.level == 1))
        connection.execute(rows.insert().values(series=987654, position=0, step=1, time=1.0, value=1.0))
    found = "\n".join(problems(database))
    for said in (
        f"series {damaged} ",
        "counts 20000 points",
        f"series {damaged}: a chunk begins at {second}, where 0 was expected",
        f"chunk {second} of series {damaged} cannot be unpacked",
        "50 of its points should be rows, 49 are",
        "its rows begin at 1, not at 0",
        "1 rows of points belong to no series",
    ):
        assert said in found
    assert len(found.splitlines()) <= 8


@pytest.mark.parametrize("changes", [{"rolled": 20_001, "dropped": 20_001}, {"dropped": 20_000}])
def test_more_rolled_up_or_dropped_than_there_can_be_is_found_out(sqlite: Database, changes: dict[str, int]) -> None:
    fill(sqlite, runs=1)
    with sqlite.write() as connection:
        connection.execute(update(series).where(series.c.metric == "eval/loss").values(changes))
    assert "of 20000 packed points" in "\n".join(problems(sqlite, deep=False))


def test_a_copy_has_every_row_and_goes_on(
    database: Database, postgres: str, tmp_path: Path, new_url: Callable[[], str]
) -> None:
    fill(database)
    if database.kind == "sqlite":
        _empty(postgres)
        target = Database(postgres)
    else:
        target = Database(f"sqlite:///{tmp_path / 'copy.db'}")
    try:
        told: dict[str, int] = {}
        total = upkeep.copy(database, target, told.__setitem__)
        assert total == sum(told.values()) > 100
        assert told["runs"] == 2
        with database.read() as connection:
            before = checking.counted(connection)
        with target.read() as connection:
            assert {name: count for name, count in checking.counted(connection).items() if name != "leases"} == {
                name: count for name, count in before.items() if name != "leases"
            }
            run = archiving.rows_of(connection, "run1")["runs"][0]
            assert (run["name"], math.isnan(run["model"]["loss"])) == ("Lauf 1 ü", True)
        assert problems(target) == []
        for one in (database, target):  # new series and layers get numbers that nobody has
            fill(one, runs=3, steps=30)
        assert problems(target) == []
        with pytest.raises(Refused, match="rows already"):
            upkeep.copy(database, target, told.__setitem__)
    finally:
        target.close()
        if database.kind == "sqlite":
            _empty(postgres)


def _empty(url: str) -> None:
    database = Database(url)
    with database.write() as connection:
        connection.execute(text("DROP SCHEMA public CASCADE"))
        connection.execute(text("CREATE SCHEMA public"))
    database.close()


def test_a_copy_that_is_not_the_same_is_not_kept(sqlite: Database, tmp_path: Path) -> None:
    fill(sqlite, runs=1, steps=3000)
    target = Database(f"sqlite:///{tmp_path / 'copy.db'}")
    migrate.upgrade(target)
    with target.write() as connection:
        # As if the disk wrote something else than it was given.
        connection.execute(
            text("CREATE TRIGGER spoil AFTER INSERT ON ranks BEGIN UPDATE ranks SET step = step + 1; END")
        )
    with pytest.raises(Refused, match="ranks"):
        upkeep.copy(sqlite, target, lambda _name, _rows: None)
    with target.read() as connection:
        assert checking.counted(connection)["runs"] == 0
    with target.read() as connection, pytest.raises(copying.NotEmpty), sqlite.read() as source:
        copying.copy(target, source, lambda _name, _rows: None)
    target.close()


def test_a_backup_is_of_one_moment_while_a_server_writes(sqlite: Database, tmp_path: Path) -> None:
    fill(sqlite, runs=1, steps=3000)
    stop, shipped = threading.Event(), threading.Event()

    def write() -> None:
        ingest = Ingest(sqlite, lambda _run, _version: None, lambda: 100.0)
        first = 0
        while not stop.is_set():
            content = [step(n) for n in range(first, first + 400)]
            ingest.accept(shipment(batch(content, run="busy", first=first)))
            first += 400
            shipped.set()

    writer = threading.Thread(target=write)
    writer.start()
    try:
        assert shipped.wait(20)
        copies = [tmp_path / f"backup{number}.db" for number in range(3)]
        assert all(upkeep.backup(sqlite, copy) > 10_000 for copy in copies)
    finally:
        stop.set()
        writer.join(20)
    for copy in copies:
        found = Database(f"sqlite:///{copy}")
        assert problems(found) == []
        with found.read() as connection:
            [busy] = points.listed(connection, "busy")
            assert busy.points % 400 == 0
            assert len(read(connection, busy.id).step) == busy.points > 0
        found.close()
    with pytest.raises(Refused, match="there already"):
        upkeep.backup(sqlite, copies[0])
    assert not list(tmp_path.glob(".*.part*"))


def test_an_archive_brings_a_run_back_as_it_was(database: Database, tmp_path: Path) -> None:
    fill(database)
    file = tmp_path / "run0.parquet"
    with database.read() as connection:
        before = archiving.rows_of(connection, "run0")
        curves = list(archiving.curves_of(connection, "run0"))
    assert archive.write(database, "run0", file) == sum(len(one.points.step) for one in curves)
    table = pq.read_table(file).to_pandas()
    mine = table[(table.metric == "train/loss") & (table["rank"] == 0)]
    assert mine.step.tolist() == list(range(1, 20_001))
    assert mine.value.iloc[4] == -math.inf

    with pytest.raises(Refused, match="there already"):
        archive.read(database, file)
    with database.write() as connection:
        removal.delete_run(connection, "run0", 5.0)
    assert archive.read(database, file) == ("run0", len(table))
    rolling.catch_up(database)
    assert problems(database) == []
    with database.read() as connection:
        after = archiving.rows_of(connection, "run0")
        again = list(archiving.curves_of(connection, "run0"))
    before["runs"][0]["version"] += 1  # no server may take it for the run that it remembers
    for name, rows_before in before.items():
        assert repr([_unnumbered(row) for row in after[name]]) == repr([_unnumbered(row) for row in rows_before]), name
    for old, new in zip(curves, again, strict=True):
        assert old[:3] == new[:3]
        for one, other in zip(old.points, new.points, strict=True):
            np.testing.assert_array_equal(one, other)
    # It is a run as any other: its agent may go on.
    Ingest(database, lambda _run, _version: None, lambda: 100.0).accept(
        shipment(batch([step(n) for n in range(50, 60)], run="run0", source="rank1", rank=1, first=50))
    )
    assert problems(database) == []
    (tmp_path / "no.parquet").write_bytes(b"PAR1 something else")
    with pytest.raises(Refused, match="no archive"):
        archive.read(database, tmp_path / "no.parquet")
    with pytest.raises(Refused, match="no run"):
        archive.write(database, "never", file)


def _unnumbered(row: dict[str, object]) -> dict[str, object]:
    return {name: value for name, value in row.items() if name not in ("id", "layers")}


def test_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    home = ["--home", str(tmp_path)]

    def db(*arguments: str) -> str:
        status = main(["db", arguments[0], *home, *arguments[1:]])
        said = capsys.readouterr()
        return f"{status}: {said.out}{said.err}"

    assert "run `trainwatch db upgrade` first" in db("check")
    assert "Brought the schema from none to " in db("upgrade")
    assert " already." in db("upgrade")
    database = Database(f"sqlite:///{tmp_path / 'trainwatch.db'}")
    fill(database, steps=3000)
    database.close()
    assert db("check", "--deep").startswith("0: 2 runs, 6 series")
    assert "Everything fits together" in db("check")
    assert "MiB now" in db("vacuum")
    assert "checked" in db("backup", str(tmp_path / "backup.db"))
    assert db("backup", str(tmp_path / "backup.db")).startswith("2: ")
    copied = db("copy", f"sqlite:///{tmp_path / 'copy.db'}")
    assert "they are the same" in copied
    assert "rows already" in db("copy", f"sqlite:///{tmp_path / 'copy.db'}")
    folder = tmp_path / "archive"
    assert "the run is deleted" in db("archive", "run0", "--to", str(folder), "--delete")
    assert "No run is that old" not in db("archive", "--older-than", "1", "--to", str(folder))
    assert sorted(file.name for file in folder.iterdir()) == ["run0.parquet", "run1.parquet"]
    assert db("archive").startswith("2: ")
    assert "Run run0: " in db("restore", str(folder / "run0.parquet"))
    assert "there already" in db("restore", str(folder / "run0.parquet"))
    with sqlite3.connect(tmp_path / "trainwatch.db") as connection:
        connection.execute("UPDATE series SET points = points + 1 WHERE id = (SELECT max(id) FROM series)")
    connection.close()
    assert "1 problem found" in db("check")
