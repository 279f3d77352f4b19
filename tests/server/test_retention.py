from __future__ import annotations

import math

import httpx2
import numpy as np
import pytest
from sqlalchemy import func, select

from tests.server.shipping import RUN, batch, ended, send, shipment, started, step
from trainwatch import events
from trainwatch.server.db import Database, metadata
from trainwatch.server.ingest.shipments import Ingest
from trainwatch.server.jobs import retention
from trainwatch.server.models import chunks, deleted_runs, rollups, series
from trainwatch.server.models import points as rows
from trainwatch.server.store import points, removal
from trainwatch.server.store import runs as run_store
from trainwatch.server.store.reading import read, read_thinned
from trainwatch.server.store.removal import Kept

DAY = 86_400.0
FRESH = 20
"""Events at the end of a run that come by themselves, and whose points are rows."""


def ingest_into(database: Database, now: float = 0.0) -> Ingest:
    return Ingest(database, lambda _run, _version: None, lambda: now)


def make_run(database: Database, run: str, *, steps: int = 500, over: bool = True, project: str = "default") -> None:
    content: list[events.Event] = [started(), *(step(n, math.nan if n == 7 else n / 3) for n in range(1, steps + 1))]
    if over:
        content.append(ended(steps))
    rows_from = len(content) - FRESH  # what comes before is packed at once
    ingest_into(database).accept(shipment(batch(content[:rows_from], run=run, project=project)))
    ingest_into(database).accept(shipment(batch(content[rows_from:], first=rows_from, run=run, project=project)))


def left_of(database: Database, run: str) -> dict[str, int]:
    """Counts the rows of every table that names a run, and of those that hang on its series."""
    with database.read() as connection:
        found = {
            table.name: connection.scalar(select(func.count()).select_from(table).where(table.c.run == run)) or 0
            for table in metadata.sorted_tables
            if "run" in table.c and table is not deleted_runs
        }
        mine = select(series.c.id).where(series.c.run == run)
        for table in (rows, chunks, rollups):
            found[table.name] = (
                connection.scalar(select(func.count()).select_from(table).where(table.c.series.in_(mine))) or 0
            )
        for table in (rows, chunks, rollups):
            known = select(series.c.id)
            orphans = select(func.count()).select_from(table).where(table.c.series.not_in(known))
            assert connection.scalar(orphans) == 0, f"orphans in {table.name}"
    return {name: count for name, count in found.items() if count}


def test_a_deleted_run_leaves_nothing_and_does_not_come_back(database: Database) -> None:
    make_run(database, "gone", steps=3000)
    make_run(database, "stays")
    assert left_of(database, "gone")["chunks"]
    with database.write() as connection:
        assert removal.delete_run(connection, "gone", 5.0)
        assert not removal.delete_run(connection, "never", 5.0)
    assert left_of(database, "gone") == {}
    assert left_of(database, "stays")["points"] == FRESH - 1
    ingest = ingest_into(database)
    late = shipment(batch([step(9000), step(9001)], run="gone", first=3002), batch([step(501)], run="stays", first=502))
    answer = ingest.accept(late)
    assert answer.next == {"gone": {"rank0": 3004}, "stays": {"rank0": 503}}
    assert ingest.accept(shipment(runs=["gone"])).next == {}
    assert left_of(database, "gone") == {}
    with database.read() as connection:
        assert connection.execute(select(deleted_runs)).one() == ("gone", "default", 5.0, 2)
    with database.write() as connection:
        removal.undelete(connection, "gone")
    assert ingest.accept(shipment(batch([started()], run="gone"))).next == {"gone": {"rank0": 1}}


def test_points_of_runs_that_are_over_are_packed(database: Database) -> None:
    make_run(database, "over")
    make_run(database, "runs", over=False)
    with database.read() as connection:
        [one] = points.listed(connection, "over")
        before = read(connection, one.id)
    assert retention.seal(database, 300.0) == 0
    assert retention.seal(database, 700.0) == 1
    assert left_of(database, "over").get("points") is None
    assert left_of(database, "runs")["points"] == FRESH
    with database.read() as connection:
        after = read(connection, one.id)
    assert [column.tobytes() for column in after] == [column.tobytes() for column in before]
    ingest_into(database).accept(shipment(batch([step(501)], run="over", first=502)))  # it goes on all the same
    with database.read() as connection:
        assert len(read(connection, one.id).step) == 501


def test_each_project_keeps_its_data_as_long_as_it_says(database: Database) -> None:
    for project in ("short", "for_ever"):
        make_run(database, f"{project}-over", steps=20_000, project=project)
        make_run(database, f"{project}-runs", project=project, over=False)
    with database.write() as connection:
        removal.keep(connection, "short", Kept(raw=1, rollups=2, runs=3), 0.0)
    with database.read() as connection:
        [one] = points.listed(connection, "short-over")
        whole = read(connection, one.id)

    retention.work(database, 1.5 * DAY)
    left = left_of(database, "short-over")
    assert "chunks" not in left
    assert "points" not in left
    assert left["rollups"] == 2
    with database.read() as connection:
        for found in (read(connection, one.id), read_thinned(connection, one.id).columns):
            assert 600 < len(found.step) < 1400
            finite, every = found.value[np.isfinite(found.value)], whole.value[np.isfinite(whole.value)]
            assert (finite.min(), finite.max()) == (every.min(), every.max())
            assert found.step[~np.isfinite(found.value)].tolist() == [7]
        near = read(connection, one.id, low=10_000, high=10_100)
        assert 0 < len(near.step) <= 1100
        assert points.listed(connection, "short-over")[0].points == 20_000

    retention.work(database, 2.5 * DAY)
    assert "rollups" not in left_of(database, "short-over")
    with database.read() as connection:
        assert len(read(connection, one.id).step) == 0
        assert run_store.version(connection, "short-over") is not None

    retention.work(database, 3.5 * DAY)
    assert left_of(database, "short-over") == {}
    assert left_of(database, "short-runs")["points"] == FRESH  # nobody knows that it is over
    assert left_of(database, "for_ever-over")["chunks"]


def test_the_api_sets_retention_and_deletes_runs(client: httpx2.Client) -> None:
    path = "/api/projects/default/retention"
    assert client.get(path).json() == {
        "raw": None,
        "rollups": None,
        "runs": None,
        "project": "default",
        "changed_at": None,
    }
    set_to = client.put(path, json={"raw": 30, "runs": 365.5})
    assert set_to.status_code == 200, set_to.text
    assert client.get(path).json() == set_to.json()
    assert (set_to.json()["raw"], set_to.json()["rollups"], set_to.json()["runs"]) == (30, None, 365.5)
    for wrong in ({"raw": 30, "runs": 3}, {"raw": 0}, {"runs": "NaN"}, {"runs": -1}):
        assert client.put(path, json=wrong).status_code == 422
    assert client.get("/api/projects/no%20name/retention").status_code == 404

    send(client, batch([started(), step(1)]))
    refused = client.delete(f"/api/runs/{RUN}")
    assert refused.status_code == 409
    assert "halt it first" in refused.json()["detail"]
    send(client, batch([ended(1)], first=2))
    assert client.delete(f"/api/runs/{RUN}").status_code == 204
    assert client.get(f"/api/runs/{RUN}").status_code == 404
    assert client.delete(f"/api/runs/{RUN}").status_code == 404
    assert send(client, batch([step(2)], first=3)).next == {RUN: {"rank0": 4}}
    assert client.get(f"/api/runs/{RUN}").status_code == 404


@pytest.mark.parametrize("days", [Kept(rollups=1), Kept(raw=1)])
def test_what_is_dropped_does_not_come_back_with_the_next_look(sqlite: Database, days: Kept) -> None:
    make_run(sqlite, "over", steps=3000)
    with sqlite.write() as connection:
        removal.keep(connection, "default", days, 0.0)
    for at in (2, 3):
        retention.work(sqlite, at * DAY)
    left = left_of(sqlite, "over")
    assert "chunks" not in left
    assert left.get("rollups") == (None if days.rollups else 1)
