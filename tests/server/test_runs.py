from __future__ import annotations

from pathlib import Path

import httpx2
import pytest

from tests.patience import PATIENCE, timing
from tests.server.conftest import running
from tests.server.shipping import RUN, T0, batch, ended, send, started, step
from trainwatch.events import CheckpointSaved, RunEnded, Sampled
from trainwatch.server.db import Database
from trainwatch.server.main import Server
from trainwatch.server.settings import Settings


@pytest.fixture
def many(client: httpx2.Client) -> httpx2.Client:
    """Twelve runs of two projects; every third has finished."""
    for number in range(12):
        events = [started(time=T0 + number, name=f"run {number}"), step(1)]
        if number % 3 == 0:
            events.append(ended(1))
        send(client, batch(events, run=f"run{number}", project="even" if number % 2 == 0 else "odd"))
    return client


def ids(client: httpx2.Client, **params: str | int) -> tuple[list[str], int]:
    answer = client.get("/api/runs", params=params).json()
    return [run["id"] for run in answer["runs"]], answer["total"]


def test_the_newest_come_first_page_by_page(many: httpx2.Client) -> None:
    newest = [f"run{number}" for number in reversed(range(12))]
    assert ids(many) == (newest, 12)
    assert ids(many, limit=5) == (newest[:5], 12)
    assert ids(many, limit=5, offset=10) == (newest[10:], 12)
    assert many.get("/api/runs").json()["projects"] == ["even", "odd"]


def test_they_are_found_by_project_and_state(many: httpx2.Client) -> None:
    assert ids(many, project="odd")[1] == 6
    assert ids(many, state="finished") == (["run9", "run6", "run3", "run0"], 4)
    assert ids(many, state="finished", project="even") == (["run6", "run0"], 2)
    assert ids(many, project="none") == ([], 0)
    assert many.get("/api/runs", params={"state": "asleep"}).status_code == 422


@pytest.mark.parametrize("path", ["", "/series", "/charts/loss", "/series/data?metric=train/loss"])
def test_an_unknown_run_is_not_found(client: httpx2.Client, path: str) -> None:
    answer = client.get(f"/api/runs/nobody{path}")
    assert answer.status_code == 404
    assert "nobody" in answer.json()["detail"]


def test_a_spike_and_a_lone_nan_survive_thinning(client: httpx2.Client) -> None:
    losses = [1.0] * 20_000
    losses[7_777], losses[13_131] = 1000.0, float("nan")
    send(client, batch([step(n, loss) for n, loss in enumerate(losses)]))
    params: dict[str, str | int] = {"metric": "train/loss", "rank": 0, "points": 400}
    found = client.get(f"/api/runs/{RUN}/series/data", params=params).json()
    points = dict(zip(found["step"], found["value"], strict=True))
    assert len(points) <= 410
    assert (points[7_777], points[13_131]) == (1000.0, "NaN")
    zoomed = client.get(f"/api/runs/{RUN}/series/data", params=params | {"from": 13_100, "to": 13_150}).json()
    assert zoomed["step"] == list(range(13_099, 13_152))
    assert client.get(f"/api/runs/{RUN}/series/data", params=params | {"rank": 5}).status_code == 404


def test_a_run_that_falls_silent_is_lost_and_is_told_so(tmp_path: Path) -> None:
    quick = Settings(home=tmp_path, port=0, lost_after=0.4, liveness_seconds=0.1)
    with running(quick) as server, httpx2.Client(base_url=server.url, timeout=PATIENCE) as client:
        send(client, batch([started(), step(1)]))
        with client.stream("GET", "/api/events") as stream:
            assert any(RUN in line for line in stream.iter_lines())
        assert client.get(f"/api/runs/{RUN}").json()["state"] == "lost"
        send(client, runs=[RUN])
        assert client.get(f"/api/runs/{RUN}").json()["state"] == "running"


def test_a_broken_database_is_a_503_that_tells_no_secret(
    server: Server, client: httpx2.Client, settings: Settings
) -> None:
    send(client, batch([started(), step(1)]))
    database = Database(settings.database_url)
    with database.write() as connection:
        connection.exec_driver_sql("DROP TABLE points")
    database.close()
    answer = client.get(f"/api/runs/{RUN}/charts/loss")
    assert answer.status_code == 503
    assert answer.headers["retry-after"] == "2"
    assert "points" not in answer.text


def test_a_thousand_runs_are_listed_fast(client: httpx2.Client) -> None:
    steps = [step(n) for n in range(1, 40)]
    for at in range(0, 1000, 100):
        send(client, *(batch([started(), *steps], run=f"run{n}") for n in range(at, at + 100)))
    took = []
    for _ in range(3):
        with timing() as timed:
            answer = client.get("/api/runs", params={"limit": 1000}).json()
        took.append(timed.took)
    assert len(answer["runs"]) == 1000
    assert len(answer["runs"][0]["sparkline"]["step"]) == 39
    assert min(took) < 1.0, f"listing took {took} s (about 0.1 s on a quiet machine)"


def test_what_is_left_of_a_machine_is_what_the_machine_says(client: httpx2.Client) -> None:
    """A process counts pages of files as its own, which no limit counts."""
    gib = 2.0**30
    own = {"cpu": {"memory/resident": 1.2 * gib, "memory/peak": 1.3 * gib, "memory/capacity": 1.2 * gib}}
    send(client, batch([started(), step(1, devices=own)]))
    [run] = client.get("/api/runs").json()["runs"]
    assert (run["headroom"]["device"], run["headroom"]["rank"]) == ("cpu", 0)
    host = {"host": {"memory/device_used": 1.0 * gib, "memory/capacity": 1.2 * gib}}
    send(client, batch([Sampled(time=T0 + 1, devices=host)], rank=None))
    [run] = client.get("/api/runs").json()["runs"]
    assert (run["headroom"]["device"], run["headroom"]["rank"]) == ("host", None)
    assert run["headroom"]["bytes"] == pytest.approx(0.2 * gib)


def test_a_halted_run_whose_weights_have_suffered_goes_on_from_before(client: httpx2.Client) -> None:
    evidence = {"value": 80.0, "best": 1.0, "rise": 79.0, "since": 25, "values": 20, "found_at": 34}
    saved = [CheckpointSaved(time=T0 + n, step=n, path=f"out/checkpoint-{n}") for n in (10, 20, 30)]
    kept = CheckpointSaved(time=T0 + 35, step=35, path="out/checkpoint-35", reason="halt")
    end = RunEnded(
        time=T0 + 36,
        step=35,
        outcome="halted",
        reason="divergence",
        parameters={**evidence, "checkpoint": "out/checkpoint-35"},
    )
    send(client, batch([started(), step(35), *saved, kept, end]))
    found = client.get(f"/api/runs/{RUN}").json()["end"]
    assert found["resume_from"] == "out/checkpoint-20"
    assert "out/checkpoint-35 keeps the state as it is" in found["sentence"]
