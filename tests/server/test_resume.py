"""A run that is taken up again from a checkpoint, under the same id."""

from __future__ import annotations

import math
from typing import Any

import httpx2
import pytest

from tests.server.shipping import RUN, T0, batch, send, started
from trainwatch import events


def step(number: int, loss: float, later: float = 0.0) -> events.StepEnded:
    return events.StepEnded(
        time=T0 + later + number,
        step=number,
        values={"train/loss": loss, "train/step_seconds": 0.1, "train/compute_seconds": 0.05},
        devices={"cpu": {"memory/peak": 1e9}},
    )


def layer(number: int, norm: float, later: float = 0.0) -> events.LayersMeasured:
    return events.LayersMeasured(time=T0 + later + number, step=number, layers=["a"], norms=[norm])


@pytest.fixture
def resumed(client: httpx2.Client) -> httpx2.Client:
    """Steps 1 to 30 with loss 3 and a NaN at 25; killed; 21 to 40 again from the checkpoint of step 20, with loss 2."""
    nan = events.NonFiniteSeen(time=T0 + 25, step=25, where="loss", value=math.nan, action="skipped")
    first = [started(), *(step(n, math.nan if n == 25 else 3.0) for n in range(1, 31)), layer(10, 3.0), layer(30, 3.0)]
    send(client, batch([*first, nan], source="rank0~aaaa0000"))
    again = [started(time=T0 + 100, first_step=20), *(step(n, 2.0, 90) for n in range(21, 41)), layer(30, 2.0, 90)]
    send(client, batch(again, source="rank0.1~bbbb0000"))
    return client


def data(client: httpx2.Client, **params: Any) -> dict[str, Any]:
    found: dict[str, Any] = client.get(
        f"/api/runs/{RUN}/series/data", params={"metric": "train/loss", "rank": 0, **params}
    ).json()
    return found


def test_by_steps_each_is_there_once_as_it_was_done_last(resumed: httpx2.Client) -> None:
    found = data(resumed)
    assert found["step"] == list(range(1, 41))
    assert found["value"] == [3.0] * 20 + [2.0] * 20


def test_by_time_all_that_happened_is_there(resumed: httpx2.Client) -> None:
    found = data(resumed, x="time")
    assert found["step"] == [*range(1, 31), *range(21, 41)]
    assert found["value"].count("NaN") == 1


@pytest.mark.parametrize("chart", ["loss", "time", "memory", "layers"])
def test_charts_show_no_step_twice(resumed: httpx2.Client, chart: str) -> None:
    by_step = resumed.get(f"/api/runs/{RUN}/charts/{chart}").json()["layout"]["meta"]
    by_time = resumed.get(f"/api/runs/{RUN}/charts/{chart}", params={"x": "time"}).json()["layout"]["meta"]
    points = {"loss": (40, 50), "time": (40, 50), "memory": (40, 50), "layers": (2, 3)}[chart]
    assert (by_step["points"], by_time["points"]) == points
    assert (by_step["nonfinite"], by_time["nonfinite"]) == ((0, 1) if chart == "loss" else (0, 0))


def test_what_was_seen_in_lost_steps_stays_and_says_so(resumed: httpx2.Client) -> None:
    run = resumed.get(f"/api/runs/{RUN}").json()
    assert (run["step"], run["last_loss"]) == (40, 2.0)
    assert [(one["step"], one["replaced"]) for one in run["nonfinite"]] == [(25, True)]
    assert run["sparkline"]["step"] == sorted(set(run["sparkline"]["step"]))
    assert "NaN" not in run["sparkline"]["value"]


def test_a_process_that_has_finished_no_step_yet_hides_nothing(client: httpx2.Client) -> None:
    send(client, batch([started(), *(step(n, 3.0) for n in range(1, 31))], source="rank0~aaaa0000"))
    send(client, batch([started(time=T0 + 100, first_step=20)], source="rank0.1~bbbb0000"))
    assert data(client)["step"] == list(range(1, 31))


def test_what_is_shipped_late_of_a_replaced_process_does_not_come_back(resumed: httpx2.Client) -> None:
    late = [step(n, 9.0) for n in range(31, 35)]
    send(resumed, batch(late, source="rank0~aaaa0000", first=34))
    assert data(resumed)["value"] == [3.0] * 20 + [2.0] * 20
    assert data(resumed, x="time")["value"].count(9.0) == 4
