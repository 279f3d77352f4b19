"""A run on two nodes: each agent sees one rank only, the server sees both."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx2
import pytest

from tests.server.shipping import RUN, T0, batch, send, started
from trainwatch import events
from trainwatch.server.db import Database
from trainwatch.server.jobs.nodes import compare_nodes
from trainwatch.server.main import Server
from trainwatch.server.settings import Settings

GIB = 2.0**30
CALM = {"cuda:0": {"memory/peak": 4 * GIB, "memory/capacity": 8 * GIB}}


def steps(first: int, last: int, own: float, devices: dict[str, Any] = CALM, whole: float = 1.0) -> list[events.Event]:
    return [
        events.StepEnded(
            time=T0 + number * whole,
            step=number,
            values={
                "train/loss": 1.0,
                "train/step_seconds": whole,
                "train/compute_seconds": own,
                "train/data_seconds": 0.0,
            },
            devices=devices,
        )
        for number in range(first, last + 1)
    ]


def send_ranks(client: httpx2.Client, first: int, last: int, own: tuple[float, ...], **changes: Any) -> None:
    for rank, seconds in enumerate(own):
        content: list[events.Event] = steps(first, last, seconds, **changes)
        if first == 1:
            content.insert(0, started(world_size=len(own), time=T0))
        send(client, batch(content, rank=rank, node=f"node{rank // 2}", first=0 if first == 1 else first))


def alerts(client: httpx2.Client) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = client.get(f"/api/runs/{RUN}").json()["alerts"]
    return found


@pytest.fixture
def database(server: Server, settings: Settings) -> Iterator[Database]:
    """The server's database, opened once more."""
    found = Database(settings.database_url)
    yield found
    found.close()


def test_a_rank_that_is_slower_than_those_of_the_other_node_is_found_and_over_again(
    client: httpx2.Client, database: Database
) -> None:
    seen: dict[str, int] = {}
    send_ranks(client, 1, 300, (0.4, 0.4, 0.4, 0.9))
    [(run, _)] = compare_nodes(database, seen)
    assert run == RUN
    [alert] = alerts(client)
    assert (alert["rule"], alert["rank"], alert["state"]) == ("straggler", 3, "firing")
    assert "slower than the other 3 of all nodes" in alert["sentence"]
    assert compare_nodes(database, seen) == [], "nothing has happened since"
    assert compare_nodes(database, {}) == [], "another server finds what is on record already"
    send_ranks(client, 301, 600, (0.4, 0.4, 0.4, 0.4))
    assert compare_nodes(database, seen)
    [alert] = alerts(client)
    assert alert["state"] == "resolved"


def test_ranks_that_are_alike_and_runs_on_one_node_are_left_alone(client: httpx2.Client, database: Database) -> None:
    send_ranks(client, 1, 300, (0.4, 0.41, 0.4, 0.42))
    assert compare_nodes(database, {}) == []
    assert alerts(client) == []


def test_one_node_is_its_own_agents_affair(client: httpx2.Client, database: Database) -> None:
    send_ranks(client, 1, 300, (0.4, 0.9))
    assert compare_nodes(database, {}) == []


def test_the_projects_settings_hold_here_too(client: httpx2.Client, database: Database) -> None:
    answer = client.put("/api/projects/default/rules", json={"settings": {"straggler": {"enabled": False}}})
    assert answer.status_code == 200, answer.text
    send_ranks(client, 1, 300, (0.4, 0.4, 0.4, 0.9))
    assert compare_nodes(database, {}) == []
