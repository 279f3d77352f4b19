"""What a run's own page knows besides its curves."""

from __future__ import annotations

import math
from typing import Any

import httpx2
import pytest

from tests.server.shipping import RUN, T0, batch, ended, send, started, step
from trainwatch import events
from trainwatch.events import TensorSummary
from trainwatch.server.ingest.headroom import memory_used

GIB = 2.0**30


def run(client: httpx2.Client) -> dict[str, Any]:
    found: dict[str, Any] = client.get(f"/api/runs/{RUN}").json()
    return found


def found(at: float = 5.0, **changes: Any) -> events.SignalsFound:
    fields = {"sources": {"loss": "compute_loss", "gradients": "hooks"}, "missing": {"samples": "not available: no"}}
    return events.SignalsFound(**{"time": T0 + at, "step": 3, **fields, **changes})


def test_a_run_that_has_none_of_it_says_so(client: httpx2.Client) -> None:
    send(client, batch([started(), step(1)]))
    answer = run(client)
    for name in ("signals", "differences", "autopsies", "out_of_memory", "phases"):
        assert answer[name] == []
    assert answer["dataset"] == {}


def test_signals_are_merged_over_the_ranks(client: httpx2.Client) -> None:
    send(client, *(batch([started(world_size=3), found()], rank=rank) for rank in range(3)))
    assert run(client)["signals"] == [
        {"signal": "loss", "source": "compute_loss", "missing": "", "ranks": ""},
        {"signal": "gradients", "source": "hooks", "missing": "", "ranks": ""},
        {"signal": "samples", "source": "", "missing": "not available: no", "ranks": ""},
    ]
    # The newest word of a rank counts.
    send(client, batch([found(9.0, sources={"loss": "model"}, missing={"gradients": "gone"})], rank=1, first=2))
    answer = run(client)["signals"]
    assert {(one["signal"], one["source"], one["missing"], one["ranks"]) for one in answer} == {
        ("loss", "compute_loss", "", "0, 2"),
        ("loss", "model", "", "1"),
        ("gradients", "hooks", "", "0, 2"),
        ("gradients", "", "gone", "1"),
        ("samples", "", "not available: no", "0, 2"),
    }
    assert [one["signal"] for one in answer] == ["loss", "loss", "gradients", "gradients", "samples"]


def test_a_process_that_began_anew_has_said_nothing_of_its_signals_yet(client: httpx2.Client) -> None:
    send(client, batch([started(), found(), step(1)], source="rank0~aaaa0000"))
    send(client, batch([started(time=T0 + 100)], source="rank0.1~bbbb0000"))
    assert run(client)["signals"] == []


def test_what_differs_between_ranks_is_found(client: httpx2.Client) -> None:
    def environment(torch: str) -> dict[str, Any]:
        return {"environment": {"packages": {"torch": torch}, "variables": {"RANK": torch}}, "world_size": 2}

    send(client, batch([started(**environment("2.9.0"))]), batch([started(**environment("2.8.1"))], rank=1))
    assert run(client)["differences"] == [
        {
            "key": "environment.packages.torch",
            "severity": "warning",
            "holders": [{"value": "2.9.0", "ranks": "0"}, {"value": "2.8.1", "ranks": "1"}],
            "more": 0,
        }
    ]
    # Started again with the same version everywhere, after the first processes had worked for a while.
    send(client, *(batch([step(5)], rank=rank, first=1) for rank in range(2)))
    for rank in range(2):
        again = started(time=T0 + 50, **environment("2.9.0"))
        send(client, batch([again], rank=rank, source=f"rank{rank}.1~bbbb0000"))
    assert run(client)["differences"] == []
    send(client, batch([step(6, time=T0 + 56)], rank=0, source="rank0.1~bbbb0000", first=1))
    assert run(client)["environment"]["packages"] == {"torch": "2.9.0"}


def test_the_data_set_is_described(client: httpx2.Client) -> None:
    dataset = {"train": {"samples": 30, "histogram": {"edges": [0, 10], "counts": [30]}, "mean": math.nan}}
    send(client, batch([started(dataset=dataset)]))
    dataset["train"]["mean"] = "NaN"
    assert run(client)["dataset"] == dataset


def test_autopsies_come_newest_first_with_their_sentence(client: httpx2.Client) -> None:
    seen = events.Autopsied(
        time=T0 + 40,
        step=40,
        cause="no_supervised_tokens",
        parameters={"labels": 512},
        micro_batch=0,
        samples=[7, 9],
        reproduced=True,
        inputs=[TensorSummary(name="labels", shape=[4, 128], dtype="int64", low=-100.0, high=-100.0)],
        outputs=[TensorSummary(name="head", shape=[4], nan=3, inf=1)],
        tokens=371,
        padded_tokens=512,
        supervised_tokens=0,
        loss=math.nan,
        loss_scale=math.inf,
        seconds=0.5,
    )
    other = events.Autopsied(time=T0 + 50, step=50, cause="not_examined", note="it took too long")
    send(client, batch([started(world_size=2), seen]), batch([other], rank=1))
    answer = run(client)
    assert answer["autopsy_count"] == 2
    second, first = answer["autopsies"]
    assert (second["step"], second["rank"], second["loss"], second["micro_batch"]) == (50, 1, None, None)
    assert first["sentence"] == "All 512 labels of this batch are -100, so the mean over zero tokens is NaN."
    assert (first["loss"], first["loss_scale"], first["learning_rate"]) == ("NaN", "Infinity", None)
    assert first["samples"] == [7, 9]
    assert first["inputs"][0] == {
        **{"name": "labels", "shape": [4, 128], "dtype": "int64", "device": "", "low": -100.0, "high": -100.0},
        **{"nan": 0, "inf": 0},
    }
    assert (first["outputs"][0]["low"], first["outputs"][0]["nan"], first["outputs"][0]["inf"]) == (None, 3, 1)


def test_only_the_newest_autopsies_are_sent_and_all_are_counted(client: httpx2.Client) -> None:
    send(client, batch([events.Autopsied(time=T0 + n, step=n, cause="not_reproduced") for n in range(1, 40)]))
    answer = run(client)
    assert answer["autopsy_count"] == 39
    assert [one["step"] for one in answer["autopsies"]] == list(range(39, 29, -1))


@pytest.mark.parametrize("ranks", [1, 2])
def test_out_of_memory_keeps_the_allocators_summary(client: httpx2.Client, ranks: int) -> None:
    seen = events.OutOfMemorySeen(
        time=T0 + 9,
        device="cuda:0",
        requested=int(2 * GIB),
        allocated=int(21.5 * GIB),
        free=int(0.5 * GIB),
        step=9,
        phase="save",
        summary="| Allocated |\x00",
    )
    send(client, batch([started(world_size=ranks), seen, ended(9, "failed", error="OutOfMemoryError: no")]))
    (one,) = run(client)["out_of_memory"]
    where = " on rank 0" if ranks == 2 else ""
    assert one["sentence"] == (
        f"cuda:0 ran out of memory{where} after step 9 while saving: 2 GiB were asked for, with 512 MiB free and"
        " 21.5 GiB held by tensors."
    )
    assert one["summary"] == "| Allocated |"
    assert one["requested"] == 2 * GIB


def entered(at: float, phase: events.Phase, left: events.Phase | None, seconds: float, peak: float) -> events.Event:
    devices = {"cuda:0": {"memory/peak": peak}} if left else {}
    return events.PhaseEntered(time=T0 + at, phase=phase, step=int(at), left=left, peak=devices, seconds=seconds)


def test_phases_are_totalled_over_shipments(client: httpx2.Client) -> None:
    events_of = [
        entered(0, "load", None, 0, 0),
        entered(5, "train", "load", 5, 2.0),
        entered(9, "eval", "train", 4, 8.0),
        entered(10, "train", "eval", 1, 9.0),
        entered(20, "eval", "train", 10, 7.0),
    ]
    for at, event in enumerate(events_of):
        send(client, batch([event], first=at))
    send(client, batch(events_of))  # once more: nothing of it is new
    totals = {one["phase"]: one for one in run(client)["phases"]}
    assert {name: (one["entered"], one["seconds"]) for name, one in totals.items()} == {
        "load": (1, 5.0),
        "train": (2, 14.0),
        "eval": (2, 1.0),
    }
    assert totals["train"]["peak"] == {"cuda:0": {"memory/peak": 8.0}}


def test_an_agent_that_does_not_say_what_was_left_is_counted_all_the_same(client: httpx2.Client) -> None:
    send(client, batch([events.PhaseEntered(time=T0, phase="eval", step=1)]))
    assert run(client)["phases"] == [{"rank": 0, "phase": "eval", "entered": 1, "seconds": 0.0, "peak": {}}]


def test_events_of_a_rank_make_no_sense_from_an_agent(client: httpx2.Client) -> None:
    layers = events.LayersMeasured(time=T0, step=1, layers=["a"], norms=[1.0])
    seen = events.OutOfMemorySeen(time=T0, device="cuda:0", requested=1)
    send(client, batch([found(), layers, seen, events.Autopsied(time=T0, step=1, cause="not_examined")], rank=None))
    answer = run(client)
    assert answer["trouble"]["lost"] == {"unknown event": 4}
    assert (answer["signals"], answer["charts"], answer["autopsies"]) == ([], [], [])


def test_sizes_that_no_machine_has_are_counted_and_harm_nothing(client: httpx2.Client) -> None:
    huge = events.OutOfMemorySeen(time=T0, device="cuda:0", requested=2**63)
    send(client, batch([huge, step(1)]))
    assert run(client)["trouble"]["lost"] == {"unknown event": 1}
    assert run(client)["step"] == 1


def test_what_others_use_and_counters_are_not_a_ranks_own_memory() -> None:
    own = {"memory/peak": 5.0, "memory/allocated": 4.0}
    others = {"memory/others_used": 90.0, "memory/shared": 80.0, "memory/alloc_retries": 70.0, "memory/ooms": 60.0}
    assert memory_used(own | others | {"memory/capacity": 100.0}) == 5.0
    assert memory_used(others) is None
    assert memory_used(own | others | {"memory/device_used": 95.0}) == 95.0
