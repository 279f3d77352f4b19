"""Points at full resolution, through HTTP."""

from __future__ import annotations

import math
from typing import Any

import httpx2
import msgspec
import numpy as np
import pytest
from sqlalchemy import delete, func, select

from tests.server.shipping import RUN, batch, send, started, step
from trainwatch.server.db import Database
from trainwatch.server.models import chunks
from trainwatch.server.settings import Settings

PATH = f"/api/v1/runs/{RUN}/series/points"


def losses(count: int) -> list[float]:
    values = np.random.default_rng(3).normal(size=count)
    values[[2, count // 2, count - 1]] = math.nan, math.inf, -math.inf
    return [float(value) for value in values]


def ship(client: httpx2.Client, values: list[float]) -> None:
    events = [started(), *(step(n, value) for n, value in enumerate(values, start=1))]
    for at in range(0, len(events), 2500):
        send(client, batch(events[at : at + 2500], first=at))


def page(client: httpx2.Client, **query: Any) -> dict[str, Any]:
    answer = client.get(PATH, params={"metric": "train/loss", "rank": 0, "format": "msgpack", **query})
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"] == "application/msgpack"
    found: dict[str, Any] = msgspec.msgpack.decode(answer.content)
    return found


@pytest.mark.parametrize(("count", "limit"), [(5, 2), (1500, 100_000), (9000, 4096), (9000, 1000)])
def test_pages_hold_every_point_once_and_every_bit(client: httpx2.Client, count: int, limit: int) -> None:
    values = losses(count)
    ship(client, values)
    position: int | None = 0
    steps: list[int] = []
    found: list[bytes] = []
    while position is not None:
        one = page(client, first=position, limit=limit)
        assert one["first"] == position
        assert one["total"] == count
        steps += np.frombuffer(one["step"], "<i8").tolist()
        found.append(one["value"])
        assert len(one["time"]) == len(one["value"]) == len(one["step"]) <= limit * 8
        position = one["next"]
    assert steps == list(range(1, count + 1))
    got = np.frombuffer(b"".join(found), "<f8")
    np.testing.assert_array_equal(got, np.array(values))


def test_points_that_are_not_kept_any_more_are_passed_over(client: httpx2.Client, settings: Settings) -> None:
    values = losses(9000)
    ship(client, values)
    database = Database(settings.database_url)
    with database.write() as connection:
        connection.execute(delete(chunks).where(chunks.c.position + chunks.c.points <= 5000))
        kept = connection.scalar(select(func.min(chunks.c.position)))
    database.close()
    assert kept is not None
    assert kept > 1000
    one = page(client, first=0, limit=1000)
    assert (one["first"], one["next"]) == (kept, kept + 1000)
    np.testing.assert_array_equal(np.frombuffer(one["value"], "<f8"), np.array(values)[kept : kept + 1000])


def test_the_same_as_json(client: httpx2.Client) -> None:
    ship(client, [1.5, math.nan, math.inf, -math.inf])
    answer = client.get(PATH, params={"metric": "train/loss", "rank": 0}).json()
    assert answer["value"] == [1.5, "NaN", "Infinity", "-Infinity"]
    assert answer["step"] == [1, 2, 3, 4]
    assert (answer["first"], answer["next"], answer["total"]) == (0, None, 4)
    beyond = client.get(PATH, params={"metric": "train/loss", "rank": 0, "first": 4}).json()
    assert (beyond["value"], beyond["next"]) == ([], None)


def test_a_step_that_was_done_again_is_there_twice(client: httpx2.Client) -> None:
    ship(client, [1.0, 2.0, 3.0])
    send(client, batch([started(time=2e9), step(2, 20.0, time=2e9 + 1)], source="rank0-2"))
    assert client.get(PATH, params={"metric": "train/loss", "rank": 0}).json()["step"] == [1, 2, 3, 2]


@pytest.mark.parametrize(
    ("query", "status"),
    [
        ({"metric": "nothing", "rank": 0}, 404),
        ({"metric": "train/loss"}, 404),
        ({"rank": 0}, 422),
        ({"metric": "train/loss", "rank": 0, "first": -1}, 422),
        ({"metric": "train/loss", "rank": 0, "first": 2**60}, 422),
        ({"metric": "train/loss", "rank": 0, "limit": 0}, 422),
        ({"metric": "train/loss", "rank": 0, "format": "xml"}, 422),
    ],
)
def test_what_is_not_there_is_refused(client: httpx2.Client, query: dict[str, Any], status: int) -> None:
    ship(client, [1.0])
    answer = client.get(PATH, params=query)
    assert answer.status_code == status
    assert answer.json()["detail"]


def test_no_such_run(client: httpx2.Client) -> None:
    assert client.get("/api/runs/none/series/points?metric=a").status_code == 404
