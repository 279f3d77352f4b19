"""What an agent with a token of one project may ship, and what it hears."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import NamedTuple

import httpx2
import msgspec
import pytest

from tests.server.keys import TOKEN, client_with, guarded_server, make_token
from tests.server.shipping import batch, send, shipment, started, step
from trainwatch.server.db import Database
from trainwatch.server.settings import Settings
from trainwatch.shipment import Acknowledgement, Batch


class World(NamedTuple):
    admin: httpx2.Client
    agent: httpx2.Client
    other: httpx2.Client
    reader: httpx2.Client


@pytest.fixture
def world(settings: Settings) -> Iterator[World]:
    """A server with an agent of project a, one of project b, and somebody who looks at project a."""
    with guarded_server(settings) as server:
        database = Database(settings.database_url)
        with (
            client_with(server, TOKEN) as admin,
            client_with(server, make_token(database, "ingest", project="a")) as agent,
            client_with(server, make_token(database, "ingest", project="b")) as other,
            client_with(server, make_token(database, "read", project="a")) as reader,
        ):
            yield World(admin, agent, other, reader)
        database.close()


def refused(client: httpx2.Client, *batches: Batch, runs: tuple[str, ...] = ()) -> str:
    body = msgspec.msgpack.encode(shipment(*batches, runs=runs))
    answer = client.post("/api/ingest", content=body, headers={"content-type": "application/msgpack"})
    assert answer.status_code == 403, answer.text
    detail: str = answer.json()["detail"]
    return detail


def test_it_ships_to_its_project(world: World) -> None:
    assert send(world.agent, batch([started(), step(1)], project="a")).next
    assert [run["project"] for run in world.reader.get("/api/runs").json()["runs"]] == ["a"]


def test_a_new_run_of_another_project_is_refused_with_what_to_do(world: World) -> None:
    detail = refused(world.agent, batch([started()], project="default"))
    assert "TRAINWATCH_PROJECT=a" in detail
    assert "default" not in detail.replace("'a'", "")
    assert world.admin.get("/api/runs").json()["total"] == 0


def test_a_foreign_run_is_refused_whatever_project_the_batch_names_and_nothing_is_stored(world: World) -> None:
    send(world.agent, batch([started(), step(1)], project="a", run="theirs"))
    for named in ("a", "b"):
        own = batch([started(), step(1)], project="b", run="mine")
        foreign = batch([started(), step(1)], project=named, run="theirs")
        detail = refused(world.other, own, foreign)
        assert "'theirs'" in detail
        assert "project 'a'" not in detail, "whose it is, is nobody else's business"
    assert [run["id"] for run in world.admin.get("/api/runs").json()["runs"]] == ["theirs"]
    assert world.admin.get("/api/runs/theirs").json()["step"] == 1


def test_a_run_stays_in_the_project_that_it_was_made_in(world: World) -> None:
    send(world.agent, batch([started(), step(1)], project="a"))
    send(world.agent, batch([step(2)], project="b", first=2))
    assert [run["project"] for run in world.admin.get("/api/runs").json()["runs"]] == ["a"]


def test_it_hears_nothing_of_foreign_runs(world: World) -> None:
    send(world.agent, batch([started(), step(1)], project="a", run="theirs"))
    assert world.admin.post("/api/runs/theirs/commands", json={"action": "halt"}).status_code == 202
    world.admin.put("/api/projects/a/rules", json={"settings": {"loss_spike": {"enabled": False}}})
    before = world.admin.get("/api/runs/theirs").json()
    answer = send(world.other, runs=("theirs", "nothing"))
    assert (answer.commands, answer.rules, answer.next) == ([], {}, {})
    assert world.admin.get("/api/runs/theirs").json() == before
    answer = send(world.agent, runs=("theirs",))
    assert [one.action for one in answer.commands] == ["halt"]
    assert "theirs" in answer.rules


def test_it_reads_nothing(world: World) -> None:
    send(world.agent, batch([started(), step(1)], project="a", run="own"))
    for path in ("runs", "runs/own", "events", "projects/a/rules", "runs/own/series", "metrics", "projects/a/tokens"):
        answer = world.agent.get(f"/api/{path}")
        assert answer.status_code == 403, path
        assert "own" not in answer.text


def test_lists_and_live_updates_show_a_project_only_its_own(world: World) -> None:
    send(world.agent, batch([started(), step(1)], project="a", run="ours"))
    send(world.other, batch([started(), step(1)], project="b", run="theirs"))
    listed = world.reader.get("/api/runs").json()
    assert ([run["id"] for run in listed["runs"]], listed["total"], listed["projects"]) == (["ours"], 1, ["a"])
    assert world.reader.get("/api/runs?project=b").status_code == 404
    assert world.reader.get("/api/runs/theirs").json() == {"detail": "There is no run 'theirs'."}
    assert world.reader.get("/api/runs/nothing").json() == {"detail": "There is no run 'nothing'."}
    assert world.reader.get("/api/runs/ours/compare/theirs").status_code == 404
    assert world.reader.get("/api/events?run=theirs").status_code == 404
    with world.reader.stream("GET", "/api/events") as stream:
        lines = stream.iter_lines()
        next(lines)
        send(world.other, batch([step(2)], project="b", run="theirs", first=2))
        send(world.agent, batch([step(2)], project="a", run="ours", first=2))
        told = next(json.loads(line[5:]) for line in lines if line.startswith("data:"))
    assert told["run"] == "ours"


def test_a_backtest_shows_only_runs_of_the_own_project(world: World, settings: Settings) -> None:
    send(world.agent, batch([started(), step(1)], project="a", run="ours"))
    send(world.other, batch([started(), step(1)], project="b", run="theirs"))
    database = Database(settings.database_url)
    token = make_token(database, "write", project="a")
    database.close()
    headers = {"authorization": f"Bearer {token}"}
    for project, found in ((None, ["ours"]), ("a", ["ours"]), ("b", None), ("nothing", None)):
        wanted = {"settings": {}, "project": project}
        tried = world.reader.post("/api/rules/nonfinite_loss/backtest", json=wanted, headers=headers)
        assert tried.status_code == (404 if found is None else 200)
        assert found is None or [run["id"] for run in tried.json()["runs"]] == found


def test_an_acknowledgement_tells_of_own_runs_alone(world: World) -> None:
    answer = send(world.agent, batch([started()], project="a", run="one"), runs=("one", "two"))
    assert isinstance(answer, Acknowledgement)
    assert set(answer.next) == {"one"}
