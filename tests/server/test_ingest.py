from __future__ import annotations

import gzip
import json
import math
import zlib
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx2
import msgspec
import pytest
import zstandard

from tests.server.shipping import NODE, RUN, T0, batch, ended, send, shipment, started, step
from trainwatch import events
from trainwatch.server.db import Database
from trainwatch.server.ingest.shipments import Ingest
from trainwatch.server.store import points, records, runs
from trainwatch.shipment import Batch, Command


def ingest_into(database: Database) -> Ingest:
    return Ingest(database, lambda _run, _version: None, lambda: T0)


def loss_steps(database: Database) -> list[int]:
    with database.read() as connection:
        [series] = points.listed(connection, RUN, ["train/loss"])
        return [int(number) for number in points.read(connection, series.id).step]


def lost(database: Database) -> dict[str, int]:
    with database.read() as connection:
        return records.sources_of(connection, RUN)["rank0"].lost


STEPS = [step(n) for n in range(100)]


def test_the_same_shipment_twice_is_stored_once(database: Database) -> None:
    ingest = ingest_into(database)
    for _ in range(2):
        assert ingest.accept(shipment(batch(STEPS))).next == {RUN: {"rank0": 100}}
    assert loss_steps(database) == list(range(100))


def test_of_an_overlapping_one_only_the_new_part_is_stored(database: Database) -> None:
    ingest = ingest_into(database)
    ingest.accept(shipment(batch(STEPS[:60])))
    assert ingest.accept(shipment(batch(STEPS[40:80], first=40))).next == {RUN: {"rank0": 80}}
    assert ingest.accept(shipment(batch(STEPS[10:20], first=10))).next == {RUN: {"rank0": 80}}
    assert loss_steps(database) == list(range(80))
    assert lost(database) == {}


def test_after_a_gap_nothing_is_stored_and_the_agent_is_sent_back(database: Database) -> None:
    ingest = ingest_into(database)
    ingest.accept(shipment(batch(STEPS[:10])))
    assert ingest.accept(shipment(batch(STEPS[50:], first=50))).next == {RUN: {"rank0": 10}}
    assert ingest.accept(shipment(batch(STEPS[50:], first=50, lost=39))).next == {RUN: {"rank0": 10}}
    assert loss_steps(database) == list(range(10))
    ingest.accept(shipment(batch(STEPS[10:], first=10)))
    assert loss_steps(database) == list(range(100))


def test_a_server_that_lost_its_database_asks_for_all_again(database: Database) -> None:
    assert ingest_into(database).accept(shipment(batch(STEPS[50:], first=50))).next == {RUN: {"rank0": 0}}


def test_what_the_journal_lost_is_counted_and_what_follows_is_stored(database: Database) -> None:
    ingest = ingest_into(database)
    ingest.accept(shipment(batch(STEPS[:10])))
    assert ingest.accept(shipment(batch(STEPS[20:30], first=20, lost=15))).next == {RUN: {"rank0": 30}}
    assert loss_steps(database) == [*range(10), *range(20, 30)]
    assert lost(database) == {"journal": 10}


def test_two_batches_of_one_source_in_one_shipment_follow_each_other(database: Database) -> None:
    two = [batch(STEPS[30:60], first=30), batch(STEPS[:30])]
    assert ingest_into(database).accept(shipment(*two)).next == {RUN: {"rank0": 60}}
    assert loss_steps(database) == list(range(60))


HUGE = 2**63


@pytest.mark.parametrize(
    "payload",
    [
        msgspec.msgpack.encode({"type": "from_the_future", "time": T0}),
        msgspec.msgpack.encode({"type": "step_ended", "time": T0}),
        msgspec.msgpack.encode({"type": "step_ended", "time": "noon", "step": 1}),
        msgspec.msgpack.encode({"type": "step_ended", "time": T0, "step": HUGE}),
        msgspec.msgpack.encode({"type": "step_ended", "time": T0, "step": -1}),
        msgspec.msgpack.encode({"type": "step_ended", "time": math.nan, "step": 1}),
        msgspec.msgpack.encode({"type": "step_ended", "time": math.inf, "step": 1}),
        msgspec.msgpack.encode({"type": "run_started", "time": T0, "name": "x", "world_size": HUGE}),
        msgspec.msgpack.encode({"type": "run_started", "time": T0, "name": "x", "pid": -4}),
        msgspec.msgpack.encode({"type": "sampled", "time": T0, "devices": {}, "rank": HUGE}),
        msgspec.msgpack.encode({"type": "process_gone", "time": T0, "rank": 0, "pid": HUGE}),
        msgspec.msgpack.encode({"type": "finding_raised", "time": T0, "rule": "r" * 5000, "severity": "info"}),
        msgspec.msgpack.encode([1, 2]),
    ],
)
def test_an_event_that_cannot_be_understood_is_counted_and_spoils_no_other(database: Database, payload: bytes) -> None:
    whole = batch(STEPS[:3])
    broken = msgspec.structs.replace(whole, events=[whole.events[0], msgspec.Raw(payload), whole.events[2]])
    assert ingest_into(database).accept(shipment(broken)).next == {RUN: {"rank0": 3}}
    assert loss_steps(database) == [0, 2]
    assert lost(database) == {"unknown event": 1}


def test_names_that_no_index_takes_are_counted_and_odd_ones_are_kept(database: Database) -> None:
    odd = {"m" * 5000: 1.0, "nul\x00inside": 2.0, "中文/損失": 3.0, "": 4.0}
    content = [events.StepEnded(time=T0, step=1, values=odd, devices={"d" * 5000: {"memory/peak": 1.0}})]
    ingest_into(database).accept(shipment(batch(content)))
    with database.read() as connection:
        assert [series.metric for series in points.listed(connection, RUN)] == ["", "nulinside", "中文/損失"]
    assert lost(database) == {"metric name too long": 1}


def test_texts_with_nul_and_documents_with_nan_are_kept(database: Database) -> None:
    content = [
        started(name="a\x00b", arguments={"x": math.nan, "y": [math.inf, {"z": "q\x00"}], "b": b"raw"}),
        ended(1, "failed", error="\x00boom", traceback="t" * 10**6),
    ]
    ingest_into(database).accept(shipment(batch(content)))
    with database.read() as connection:
        found = runs.detail(connection, RUN, charts=[], now=T0)
    assert found is not None
    assert found.name == "ab"
    assert found.arguments == {"x": "NaN", "y": ["Infinity", {"z": "q\x00"}], "b": "b'raw'"}
    assert found.end is not None
    assert found.end.error.endswith("boom")
    assert len(found.end.traceback) == 65_536


def test_deeply_nested_arguments_do_not_break_the_server(database: Database) -> None:
    deep: Any = 1
    for _ in range(900):
        deep = {"a": deep}
    payload = msgspec.msgpack.encode({"type": "run_started", "time": T0, "name": "deep", "arguments": {"a": deep}})
    bottomless = b"\x82\xa4type\xabrun_started\xa9arguments" + b"\x91" * 200_000
    whole = batch(STEPS[:3])
    nested = msgspec.structs.replace(
        whole, events=[whole.events[0], msgspec.Raw(payload), msgspec.Raw(bottomless), whole.events[2]]
    )
    assert ingest_into(database).accept(shipment(nested)).next == {RUN: {"rank0": 4}}
    assert loss_steps(database) == [0, 2]


def test_host_readings_of_two_nodes_do_not_mix(database: Database) -> None:
    def sample(node: str, value: float) -> Batch:
        content = [events.Sampled(time=T0, devices={"host": {"memory/device_used": value}})]
        return batch(content, rank=None, node=node, source=f"agent@{node}")

    ingest = ingest_into(database)
    ingest.accept(shipment(sample("node1", 1.0)))
    ingest.accept(shipment(sample("node2", 2.0)))
    with database.read() as connection:
        found = {one.device: one.last_value for one in points.listed(connection, RUN)}
    assert found == {"host": 1.0, "host@node2": 2.0}


# -- over HTTP ---------------------------------------------------------------------------------------------------------


def post(client: httpx2.Client, content: bytes, **headers: str) -> httpx2.Response:
    return client.post("/api/ingest", content=content, headers={"content-type": "application/msgpack"} | headers)


def test_nan_and_both_infinities_go_from_the_wire_to_the_api(client: httpx2.Client) -> None:
    values = [1.0, math.nan, math.inf, -math.inf, 2.0]
    send(client, batch([started(), *(step(n, value) for n, value in enumerate(values, start=1))]))
    answer = client.get(f"/api/runs/{RUN}/series/data", params={"metric": "train/loss", "rank": 0})
    assert answer.json()["value"] == [1.0, "NaN", "Infinity", "-Infinity", 2.0]
    [series] = client.get(f"/api/runs/{RUN}/series").json()
    assert (series["points"], series["nonfinite"], series["last"]) == (5, 3, 2.0)
    send(client, batch([step(6, math.nan)], first=6))
    [run] = client.get("/api/runs").json()["runs"]
    assert run["last_loss"] == "NaN"
    assert run["sparkline"]["value"] == [1.0, "NaN", "Infinity", "-Infinity", 2.0, "NaN"]
    assert client.get(f"/api/runs/{RUN}/series").json()[0]["last"] == "NaN"


@pytest.mark.parametrize("encoding", ["zstd", "gzip", "identity", ""])
def test_every_encoding_is_taken(client: httpx2.Client, encoding: str) -> None:
    body = msgspec.msgpack.encode(shipment(batch(STEPS[:2])))
    packed = {"zstd": zstandard.compress(body), "gzip": gzip.compress(body)}.get(encoding, body)
    answer = post(client, packed, **({"content-encoding": encoding} if encoding else {}))
    assert answer.status_code == 200
    assert answer.headers["content-type"] == "application/msgpack"


def test_what_is_too_large_is_refused_while_it_is_being_read(client: httpx2.Client) -> None:
    bomb = b"\0" * (200 * 1024 * 1024)
    for encoding, packed in (("zstd", zstandard.compress(bomb)), ("gzip", gzip.compress(bomb, 1))):
        answer = post(client, packed, **{"content-encoding": encoding})
        assert answer.status_code == 413
        assert "larger than 134217728 bytes expanded" in answer.json()["detail"]
    assert post(client, b"\0" * (17 * 1024 * 1024)).status_code == 413
    pieces = (b"\0" * (1024 * 1024) for _ in range(20))
    answer = client.post("/api/ingest", content=pieces, headers={"content-type": "application/msgpack"})
    assert answer.status_code == 413


GOOD = msgspec.msgpack.encode(shipment(batch(STEPS[:50])))


@pytest.mark.parametrize(
    ("content", "headers", "status", "words"),
    [
        (b"", {}, 400, "not a MessagePack shipment"),
        (b"hello", {}, 400, "not a MessagePack shipment"),
        (GOOD[: len(GOOD) // 2], {}, 400, "not a MessagePack shipment"),
        (b"\x91" * 1_000_000, {}, 400, "not a MessagePack shipment"),
        (msgspec.msgpack.encode({"batches": 3, "node": "n", "sent_at": 1.0}), {}, 400, "Expected `array`"),
        (GOOD, {"content-encoding": "zstd"}, 400, "not zstd"),
        (zstandard.compress(GOOD)[:-9], {"content-encoding": "zstd"}, 400, ""),
        (GOOD, {"content-encoding": "gzip"}, 400, "not gzip"),
        (gzip.compress(GOOD)[:-9], {"content-encoding": "gzip"}, 400, "ends too early"),
        (zlib.compress(GOOD), {"content-encoding": "gzip"}, 400, "not gzip"),
        (GOOD, {"content-encoding": "br"}, 415, "use zstd, gzip or identity"),
        (GOOD, {"content-type": "application/json"}, 415, "application/msgpack"),
        (msgspec.msgpack.encode(shipment(batch([], run="../etc"))), {}, 400, "run's id"),
        (msgspec.msgpack.encode(shipment(batch([], run="x" * 101))), {}, 400, "run's id"),
        (msgspec.msgpack.encode(shipment(runs=["a b"])), {}, 400, "run's id"),
        (msgspec.msgpack.encode(shipment(batch([], source=""))), {}, 400, "source"),
        (msgspec.msgpack.encode(shipment(batch([], node="x" * 300))), {}, 400, "node"),
        (msgspec.msgpack.encode(shipment(batch([], first=-1))), {}, 400, "make no sense"),
        (msgspec.msgpack.encode(shipment(batch([], first=1, lost=2))), {}, 400, "make no sense"),
        (msgspec.msgpack.encode(shipment(batch([], rank=HUGE))), {}, 400, "Rank"),
    ],
)
def test_what_is_no_shipment_is_refused_with_a_sentence(
    client: httpx2.Client, content: bytes, headers: dict[str, str], status: int, words: str
) -> None:
    answer = post(client, content, **headers)
    assert answer.status_code == status
    assert words in answer.json()["detail"]
    assert client.get("/api/runs").json()["total"] == 0


def test_a_heartbeat_answers_with_the_commands_until_the_run_is_over(client: httpx2.Client) -> None:
    send(client, batch([started(), step(1)]))
    made = client.post(f"/api/runs/{RUN}/commands", json={"action": "halt", "reason": "enough"})
    assert made.status_code == 202
    for _ in range(2):
        [command] = send(client, runs=[RUN]).commands
        assert command == Command(id=made.json()["id"], run=RUN, action="halt", reason="enough")
    assert send(client, runs=["another"]).commands == []
    assert send(client, batch([ended(2, "halted")], first=2)).commands == []
    assert send(client, runs=[RUN]).commands == []
    refused = client.post(f"/api/runs/{RUN}/commands", json={"action": "halt"})
    assert refused.status_code == 409
    # Started again: the old command is not for this attempt.
    answer = send(client, batch([started(time=T0 + 100, pid=200)], source="rank0.1"), runs=[RUN])
    assert answer.commands == []
    assert client.get(f"/api/runs/{RUN}").json()["state"] == "running"


def test_commands_for_nobody_or_of_no_kind_are_refused(client: httpx2.Client) -> None:
    send(client, batch([started()]))
    assert client.post("/api/runs/nobody/commands", json={"action": "halt"}).status_code == 404
    assert client.post(f"/api/runs/{RUN}/commands", json={"action": "explode"}).status_code == 422
    assert client.post(f"/api/runs/{RUN}/commands", content=b"{").status_code == 422


def test_a_run_with_everything(client: httpx2.Client) -> None:
    gib = 2.0**30
    rank0 = [
        started(world_size=2, arguments={"lr": 1e-3}, environment={"torch": "2"}, model={"class": "GPT2"}),
        events.PhaseEntered(time=T0, phase="train", step=0),
        step(1, 3.0, devices={"cuda:0": {"memory/allocated": gib, "memory/capacity": 8 * gib}}),
        events.CheckpointSaved(time=T0 + 1, step=1, path="out/checkpoint-1"),
        events.Logged(time=T0 + 1, step=1, values={"train/loss_logged": 3.0, "my/metric": 1.0}),
        events.Evaluated(time=T0 + 2, step=1, values={"eval/loss": math.nan, "eval/loss_reported": 2.0}),
        events.NonFiniteSeen(time=T0 + 3, step=2, where="loss", value=-math.inf, action="skipped", parameters=["w"]),
        step(2, -math.inf),
        events.TroubleCounted(time=T0 + 3, errors={"signals": 1}, message="old"),
        events.TroubleCounted(time=T0 + 3, errors={"signals": 2}, lost={"full": 1}, message="boom"),
    ]
    rank1 = [started(world_size=2, pid=101, local_rank=1), step(1, 9.0)]
    evidence = {"value": "-Inf", "action": "skipped", "in_a_row": 1, "recent": 1}
    agent = [
        events.Sampled(time=T0 + 1, rank=0, step=1, devices={"cuda:0": {"memory/device_used": 5 * gib}}),
        events.Sampled(time=T0 + 1, devices={"host": {"memory/device_used": gib, "memory/capacity": 64 * gib}}),
        events.FindingRaised(
            time=T0 + 3, rule="nonfinite_loss", severity="warning", step=2, rank=0, parameters=evidence
        ),
        events.FindingRaised(
            time=T0 + 4, rule="nonfinite_loss", severity="critical", step=3, rank=0, parameters=evidence
        ),
    ]
    send(client, batch(agent, rank=None), batch(rank0), batch(rank1, rank=1))

    [summary] = client.get("/api/runs").json()["runs"]
    assert (summary["name"], summary["state"], summary["world_size"], summary["nodes"]) == (
        "tiny",
        "running",
        2,
        [NODE],
    )
    assert (summary["step"], summary["max_steps"]) == (2, 1000)
    assert (summary["last_loss"], summary["last_eval_loss"]) == ("-Infinity", "NaN")
    assert summary["sparkline"] == {"step": [1, 2], "value": [3.0, "-Infinity"]}
    assert summary["alerts"] == {"info": 0, "warning": 0, "critical": 1}
    assert summary["headroom"] == {"bytes": 3 * gib, "capacity": 8 * gib, "device": "cuda:0", "rank": 0}
    assert "-Inf" in summary["sentence"]
    assert "step 3 on rank 0" in summary["sentence"]

    run = client.get(f"/api/runs/{RUN}").json()
    assert {key: run[key] for key in summary if key != "alerts"} == {
        key: value for key, value in summary.items() if key != "alerts"
    }
    [alert] = run["alerts"]
    assert (alert["rule"], alert["severity"], alert["rank"]) == ("nonfinite_loss", "critical", 0)
    assert (alert["first_step"], alert["last_step"], alert["count"]) == (2, 3, 2)
    assert [rank["rank"] for rank in run["ranks"]] == [0, 1]
    first = run["ranks"][0]
    assert (first["pid"], first["state"], first["step"], first["phase"]) == (100, "running", 2, "train")
    [device] = first["devices"]
    assert (device["used"], device["capacity"]) == (5 * gib, 8 * gib)
    assert device["readings"] == {
        "memory/allocated": gib,
        "memory/capacity": 8 * gib,
        "memory/device_used": 5 * gib,
    }
    assert [host["device"] for host in run["hosts"]] == ["host"]
    assert (run["arguments"], run["environment"], run["model"]) == ({"lr": 1e-3}, {"torch": "2"}, {"class": "GPT2"})
    assert [(c["step"], c["path"], c["reason"]) for c in run["checkpoints"]] == [(1, "out/checkpoint-1", "schedule")]
    assert [(n["step"], n["value"], n["parameters"]) for n in run["nonfinite"]] == [(2, "-Infinity", ["w"])]
    assert run["trouble"] == {"errors": {"signals": 2}, "lost": {"full": 1}, "message": "boom"}
    charts = [chart["id"] for chart in run["charts"]]
    assert charts[0] == "loss"
    assert {"memory", "metric:my/metric"} <= set(charts)
    for chart in charts:
        for x in ("step", "time"):
            figure = client.get(f"/api/runs/{RUN}/charts/{chart}", params={"x": x, "theme": "dark"})
            assert figure.status_code == 200, figure.text
            assert set(json.loads(figure.text)) == {"data", "layout"}
    assert client.get(f"/api/runs/{RUN}/charts/nonsense").status_code == 404
    assert client.get(f"/api/runs/{RUN}/charts/loss", params={"from": 9, "to": 3}).status_code == 422


def test_agents_of_several_nodes_ship_the_same_runs_at_once(database: Database) -> None:
    def ship(rank: int) -> None:
        ingest = ingest_into(database)  # as a server of its own would
        for at in range(0, 1500, 100):
            steps = [step(n, float(rank)) for n in range(at, at + 100)]
            two = [
                batch(steps, first=at, rank=rank, run=run, node=f"node{rank}", source=f"rank{rank}")
                for run in ("b", "a")
            ]
            found = ingest.accept(shipment(*two)).next
            assert found == {run: {f"rank{rank}": at + 100} for run in ("a", "b")}

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(ship, range(4)))
    with database.read() as connection:
        for run in ("a", "b"):
            listed = points.listed(connection, run)
            assert [series.rank for series in listed] == [0, 1, 2, 3]
            for series in listed:
                found = points.read(connection, series.id)
                assert found.step.tolist() == list(range(1500))
                assert set(found.value.tolist()) == {float(series.rank)}
        assert runs.version(connection, "a") == 60
