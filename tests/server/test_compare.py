"""A run beside a healthy one: what differs, and from which step on."""

from __future__ import annotations

from typing import Any

import httpx2
import pytest

from tests.server.shipping import RUN, T0, batch, send, started
from trainwatch import events

OTHER = "healthy"


def run_of(name: str, batch_size: int, peak: Any, loss: Any, torch: str = "2.5.0") -> list[events.Event]:
    steps = [
        events.StepEnded(
            time=T0 + number,
            step=number,
            values={"train/loss": loss(number)},
            devices={"cuda:0": {"memory/peak": peak(number)}},
        )
        for number in range(1, 51)
    ]
    arguments = {"per_device_train_batch_size": batch_size, "learning_rate": 1e-4}
    return [started(name=name, arguments=arguments, environment={"packages": {"torch": torch}}), *steps]


@pytest.fixture
def two(client: httpx2.Client) -> httpx2.Client:
    send(client, batch(run_of("grows", 2, lambda n: 25e9 + 41e6 * n, lambda n: 2.0 - 0.001 * n)))
    send(client, batch(run_of("steady", 1, lambda n: 20e9, lambda n: 2.0 - 0.001 * n, "2.4.1"), run=OTHER))
    return client


def test_it_says_what_differs_and_where_the_curves_part(two: httpx2.Client) -> None:
    answer = two.get(f"/api/runs/{RUN}/compare/{OTHER}").json()
    assert answer["other_name"] == "steady"
    assert {one["key"]: (one["ours"], one["theirs"]) for one in answer["setup"]} == {
        "arguments.per_device_train_batch_size": ("2", "1"),
        "environment.packages.torch": ("2.5.0", "2.4.1"),
    }
    curves = {(one["metric"], one["device"]): one for one in answer["curves"]}
    assert curves["train/loss", ""]["step"] is None
    peak = curves["memory/peak", "cuda:0"]
    assert (peak["step"], peak["common"], peak["theirs"], peak["unit"]) == (1, 50, 20e9, "bytes")
    assert peak["ours"] > 26e9


def test_a_run_that_is_not_there_is_named(two: httpx2.Client) -> None:
    answer = two.get(f"/api/runs/{RUN}/compare/nobody")
    assert answer.status_code == 404
    assert "'nobody'" in answer.text


def test_nan_is_told_as_nan(client: httpx2.Client) -> None:
    send(client, batch(run_of("a", 1, lambda n: 1e9, lambda n: float("nan") if n > 10 else 2.0)))
    send(client, batch(run_of("b", 1, lambda n: 1e9, lambda n: 2.0), run=OTHER))
    [loss, _] = client.get(f"/api/runs/{RUN}/compare/{OTHER}").json()["curves"]
    assert (loss["step"], loss["ours"], loss["theirs"]) == (11, "NaN", 2.0)
