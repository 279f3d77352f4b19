from __future__ import annotations

import math
from typing import Any

import httpx2
import pytest

from tests.server.shipping import RUN, T0, batch, ended, send, shipment, started, step
from trainwatch import events, journal
from trainwatch.events import AnyEvent, Event
from trainwatch.rules import RULES
from trainwatch.server.db import Database
from trainwatch.server.ingest.shipments import Ingest
from trainwatch.server.routes import backtests
from trainwatch.server.store import rebuilt

ALL: list[type[Event]] = [kind for kind in rebuilt.__dict__.values() if isinstance(kind, type) and kind is not Event]


def store(database: Database, *batches: Any) -> None:
    Ingest(database, lambda run, version: None, lambda: T0).accept(shipment(*batches))


def back(database: Database, most: int = 10**6) -> rebuilt.Rebuilt:
    kinds = [kind for kind in ALL if issubclass(kind, Event)]
    with database.read() as connection:
        return rebuilt.events_of(connection, RUN, kinds, most=most)


def test_what_was_shipped_comes_back_as_it_was(database: Database) -> None:
    memory = {"cuda:0": {"memory/allocated": 5.0, "memory/peak": 9.0}}
    of_the_rank: list[AnyEvent] = [
        started(pid=7),
        events.PhaseEntered(time=T0 + 0.5, phase="train", step=0),
        step(1, 2.0, devices=memory),
        events.Logged(time=T0 + 1.1, step=1, values={"train/loss_logged": 2.0, "train/mine": 1.0}),
        step(2, math.nan, devices=memory),
        events.PhaseEntered(time=T0 + 2.5, phase="eval", step=2, left="train", seconds=2.0),
        events.Evaluated(time=T0 + 3, step=2, values={"eval/accuracy": 0.5, "eval/loss": math.inf}),
        events.CheckpointSaved(time=T0 + 3.5, step=2, path="/c"),
        step(3, -math.inf, time=T0 + 3.55),
        events.NonFiniteSeen(time=T0 + 3.6, step=3, where="loss", value=math.nan, action="skipped"),
        ended(3),
    ]
    of_the_rank.sort(key=lambda event: event.time)
    of_the_agent: list[AnyEvent] = [
        events.Sampled(time=T0 + 1.5, rank=0, devices={"cpu": {"a": 1.0}, "cuda:0": {"memory/device_used": 7.0}}),
        events.Sampled(time=T0 + 1.6, devices={"host": {"memory/device_used": 8.0}}),
    ]
    store(database, batch(of_the_rank), batch(of_the_agent, rank=None))
    found = back(database)
    assert found.is_whole
    expected = sorted(of_the_rank + of_the_agent, key=lambda event: event.time)
    got = [event for _, _, event in found.events]
    # NaN is not equal to itself, so their spelling is compared.
    assert [type(event) for event in got] == [type(event) for event in expected]
    for one, other in zip(got[1:], expected[1:], strict=True):
        assert repr(one) == repr(other)
    assert [(point, rank) for point, rank, event in found.events if isinstance(event, events.StepEnded)] == [
        (0, 0),
        (1, 0),
        (2, 0),
    ]
    assert [rank for _, rank, event in found.events if isinstance(event, events.Sampled)] == [0, None]


def test_an_imported_run_has_no_steps(sqlite: Database) -> None:
    content = [
        started(),
        events.Logged(time=T0, step=10, values={"train/grad_norm": 1.0}),
        events.Evaluated(time=T0, step=10, values={"eval/loss_reported": 1.0}),
        events.Logged(time=T0 + 1, step=20, values={"train/loss_logged": 1.0, "train/grad_norm": 1.0}),
        events.Sampled(time=T0 + 2, rank=0, devices={"cuda:0": {"memory/device_used": 7.0}}),
        ended(20, time=T0 + 2),
    ]
    store(sqlite, batch(content, node=journal.IMPORTED_NODE))
    found = back(sqlite).events
    assert [event for _, _, event in found][1:] == content[1:]
    assert [point for point, _, _ in found] == [0, 0, 1, 2, 2, 2]


def test_of_a_run_that_is_too_long_the_begin_is_tried(sqlite: Database) -> None:
    store(sqlite, batch([started(), *(step(number) for number in range(1, 1001))]))
    found = back(sqlite, most=100)
    assert not found.is_whole
    steps = [event.step for _, _, event in found.events if isinstance(event, events.StepEnded)]
    assert steps == list(range(1, 101))


def ship(client: httpx2.Client, run: str, project: str, losses: list[float], begin: float) -> None:
    content: list[Event] = [started(time=begin, name=run)]
    content += [step(n, loss, time=begin + n) for n, loss in enumerate(losses, 1)]
    content.append(ended(len(losses), time=begin + len(losses) + 1))
    send(client, batch(content, run=run, project=project))


def test_a_rule_on_past_runs(client: httpx2.Client) -> None:
    ship(client, "good", "a", [1.0] * 30, T0)
    ship(client, "bad", "a", [1.0] * 10 + [math.nan] * 20, T0 + 1000)
    ship(client, "other", "b", [math.nan] * 5, T0 + 2000)
    answer = client.post("/api/rules/nonfinite_loss/backtest", json={"project": "a"})
    assert answer.status_code == 200, answer.text
    told = answer.json()
    assert [(run["id"], run["fired"], run["points"], run["is_whole"]) for run in told["runs"]] == [
        ("bad", True, 30, True),
        ("good", False, 30, True),
    ]
    assert {name: told[name] for name in ("fired", "ended_well", "fired_on_ended_well", "left")} == {
        "fired": 1,
        "ended_well": 2,
        "fired_on_ended_well": 1,
        "left": 0,
    }
    first = told["runs"][0]["findings"][0]
    assert (first["point"], first["step"], first["seconds"], first["severity"]) == (10, 11, 11.0, "critical")
    assert "NaN" in first["sentence"]
    assert told["runs"][1]["findings"] == []
    chinese = client.post("/api/rules/nonfinite_loss/backtest", json={}, headers={"Accept-Language": "zh"}).json()
    assert [run["id"] for run in chinese["runs"]] == ["other", "bad", "good"]
    assert chinese["runs"][0]["findings"][0]["sentence"] != first["sentence"]
    newest = client.post("/api/rules/nonfinite_loss/backtest", json={"limit": 1}).json()
    assert [run["id"] for run in newest["runs"]] == ["other"]


def test_the_options_that_are_tried_count(client: httpx2.Client) -> None:
    ship(client, "bad", "a", [math.nan] * 5, T0)
    # Not yet after half a minute, so that nothing fires within the run's five seconds.
    told = client.post("/api/rules/nonfinite_loss/backtest", json={"settings": {"for": 30, "enabled": False}}).json()
    assert (told["fired"], told["runs"][0]["findings"]) == (0, [])
    told = client.post("/api/rules/nonfinite_loss/backtest", json={"settings": {"at_most": "info"}}).json()
    assert told["runs"][0]["findings"][0]["severity"] == "info"


@pytest.mark.parametrize(
    ("rule", "body", "status", "sentence"),
    [
        ("no_such_rule", {}, 404, "There is no rule"),
        ("nonfinite_loss", {"settings": {"treshold": 1}}, 422, "is no option"),
        ("nonfinite_loss", {"settings": {"for": -1}}, 422, "rules.nonfinite_loss"),
        ("nonfinite_loss", {"limit": 0}, 422, "limit"),
        ("known_versions", {}, 422, "cannot be tried alone"),
    ],
)
def test_what_makes_no_sense_is_refused(
    client: httpx2.Client, rule: str, body: dict[str, Any], status: int, sentence: str
) -> None:
    answer = client.post(f"/api/rules/{rule}/backtest", json=body)
    assert answer.status_code == status
    assert sentence in answer.text


def test_it_stops_after_some_seconds_and_says_what_is_left(
    client: httpx2.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    ship(client, "a", "a", [1.0] * 5, T0)
    ship(client, "b", "a", [1.0] * 5, T0 + 100)
    monkeypatch.setattr(backtests, "SECONDS", -1.0)
    told = client.post("/api/rules/nonfinite_loss/backtest", json={}).json()
    assert ([run["id"] for run in told["runs"]], told["left"]) == (["b"], 1)


def test_only_one_at_a_time(client: httpx2.Client) -> None:
    with backtests._one_at_a_time:
        assert client.post("/api/rules/nonfinite_loss/backtest", json={}).status_code == 429
    assert client.post("/api/rules/nonfinite_loss/backtest", json={}).status_code == 200


def test_every_rule_can_be_tried(client: httpx2.Client) -> None:
    memory = {"cuda:0": {"memory/peak": 9.0, "memory/allocated": 8.0, "memory/reserved": 9.0, "memory/capacity": 10.0}}
    content = [started(), *(step(n, 1.0 / n, devices=memory) for n in range(1, 50)), ended(50)]
    send(client, batch(content))
    for rule in RULES:
        if events.FindingRaised not in rule.listens:
            assert client.post(f"/api/rules/{rule.id}/backtest", json={}).status_code == 200, rule.id
