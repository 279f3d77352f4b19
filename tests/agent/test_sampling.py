"""What an agent reads of GPUs and processes lands on the right rank and device, and no fault of the driver escapes."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.agent.scripted import Rank, ending, node_folder, serving, start_agent, step, wait_for
from tests.probes.inside import rank_state
from tests.probes.machine import Machine, build
from trainwatch.agent.outside import Outside
from trainwatch.agent.sample import TREE_SECONDS, Sampler
from trainwatch.events import PhaseEntered, Sampled, StepEnded, TroubleCounted
from trainwatch.probes import family, host

MIB = 1 << 20


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("nvml"))


@pytest.fixture
def machine(library: Path, tmp_path: Path) -> Machine:
    return Machine(library, tmp_path)


def on(device: str, order: str | None) -> dict[str, Any]:
    return {"device": device, "cuda_visible_devices": order}


def sample(machine: Machine, environments: list[dict[str, Any]], *story: tuple[float, str, Any], **more: Any) -> Any:
    return machine.run("sample", environments=environments, story=story, **more)


def by_rank(samples: list[dict[str, Any]]) -> dict[int | None, dict[str, Any]]:
    return {event["rank"]: event["devices"] for event in samples if "rank" in event}


def test_each_rank_reads_its_own_device_under_its_own_name(machine: Machine) -> None:
    orders = ["7,6", "GPU-3", None, "MIG-01000000-1111-2222-3333-444444444444"]
    environments = [
        on(device, order) for device, order in zip(["cuda:1", "cuda:0", "cuda:2", "cuda:0"], orders, strict=True)
    ]
    environments[2]["variables"] = {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
    environments[0]["variables"] = {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
    world = (
        "gpus 8\nsliced 0 2\nprocess 6 @0 10 c\nprocess 3 @1 20 c\nprocess 2 @2 30 c\nprocess 0.1 @3 40 c\n"
        "process 3 @0 50 c\nprocess 2 @other 60 c\nprocess 6 @child 70 c\nprocess 0.0 @other 80 c"
    )
    (samples,) = sample(machine, environments, (0.0, world, {}))
    found = {
        rank: {
            name: tuple(
                values.get(f"memory/{metric}", -MIB) / MIB for metric in ("device_used", "process_used", "others_used")
            )
            for name, values in devices.items()
            if name.startswith("cuda")
        }
        for rank, devices in by_rank(samples).items()
    }
    assert found == {
        0: {"cuda:1": (700, 10, 0)},  # a process that a rank started belongs to the run
        1: {"cuda:0": (400, 20, 0)},  # and so does another rank
        2: {"cuda:2": (300, 30, 60)},
        3: {"cuda:0": (20, 40, 0)},  # who is on another slice is not on this one
    }
    others = {event["rank"]: event.get("others") for event in samples if "rank" in event}
    (stranger,) = others[2]
    assert (stranger["device"], stranger["pid"], stranger["used"]) == ("cuda:2", "@other", 60 * MIB)
    assert stranger["name"].startswith("python")
    assert stranger["user"]
    assert not others[0]


def test_others_are_told_when_they_change(machine: Machine) -> None:
    def used(mib: int) -> str:
        return f"process 0 @0 10 c\nprocess 0 @other {mib} c"

    story = [
        (0.0, used(300), {}),
        (1.0, used(310), {}),
        (2.0, used(900), {}),
        (3.0, used(900) + "\nfail nvmlDeviceGetComputeRunningProcesses_v3 999", {}),
        (4.0, used(900), {}),
        (5.0, "process 0 @0 10 c", {}),
        (6.0, "process 0 @0 10 c", {}),
    ]
    found = sample(machine, [on("cuda:0", None)], *story)
    told = [samples[0].get("others") for samples in found]
    sizes = [None if others is None else [other["used"] // MIB for other in others] for others in told]
    assert sizes == [[300], None, [900], None, None, [], None]
    assert [samples[0]["devices"]["cuda:0"].get("memory/others_used", -1) / MIB for samples in found][:3] == [
        300,
        310,
        900,
    ]


def test_in_a_container_the_only_user_is_the_rank(machine: Machine) -> None:
    world = "gpus 1\nprocess 0 4200000 500 c"
    holding = {"kind": "step", "time": 0.5, "step": 1, "devices": {"cuda:0": {"memory/reserved": 400.0 * MIB}}}
    found = sample(
        machine,
        [on("cuda:0", None)],
        (0.0, world, {}),
        (1.0, world, {"0": [holding]}),
        (2.0, world + "\nprocess 0 4200001 9 c", {}),
        numbered=False,
    )
    assert [samples[0]["devices"]["cuda:0"].get("memory/process_used") for samples in found] == [None, 500 * MIB, None]
    assert [samples[0]["devices"]["cuda:0"].get("memory/others_used") for samples in found] == [None, 0, None]


def held(time: float, reserved: float, peak: float | None = None) -> dict[str, Any]:
    values = {"memory/reserved": reserved * MIB, "memory/peak_reserved": (peak or reserved) * MIB}
    return {"kind": "step", "time": time, "step": int(time), "devices": {"cuda:0": values}}


def test_what_the_allocator_does_not_hold_is_told_when_it_is_sure(machine: Machine) -> None:
    world = "process 0 @0 500 c"
    found = sample(
        machine,
        [on("cuda:0", None)],
        (1.0, world, {}),
        (2.0, world, {"0": [held(1.5, 100)]}),  # before the first sample there was no step
        (3.0, world, {"0": [held(2.5, 100)]}),  # the sample at 2 lies in a step that held 100 from begin to end
        (4.0, world, {"0": [held(3.5, 100, 300)]}),  # at 3 it may have held up to 300
        (5.0, world, {"0": [held(4.5, 300)]}),  # at 4 between 100 and 300
        (6.0, world, {"0": [{"kind": "phase", "time": 5.2, "phase": "eval", "step": 4}, held(5.5, 300)]}),
        (7.0, world, {"0": [held(6.5, 300)]}),
        (8.0, world, {"0": [held(7.5, 600)]}),
        (9.0, world, {"0": [held(8.5, 600)]}),  # more than the process uses: one of the two counts otherwise
    )
    told = [samples[0]["devices"]["cuda:0"].get("memory/outside", 0) / MIB for samples in found]
    assert told == [0, 0, 400, 0, 0, 0, 200, 0, 0]


def test_a_rank_knows_better_what_its_allocator_can_have(machine: Machine) -> None:
    found = sample(machine, [on("cuda:0", None)], (1.0, "", {}), (2.0, "", {"0": [held(1.5, 100)]}), (40.0, "", {}))
    assert [samples[0]["devices"]["cuda:0"].get("memory/capacity") for samples in found] == [1000 * MIB, None, None]


def test_a_slow_sampler_does_not_settle_what_it_no_longer_knows() -> None:
    outside = Outside()
    assert outside.sampled(1.0, {"cuda:0": {"memory/process_used": 50.0}}) == {}
    for number in range(2, 400):
        values = {"memory/reserved": 20.0, "memory/peak_reserved": 20.0}
        outside.observe(StepEnded(time=float(number), step=number, devices={"cuda:0": values}))
    assert outside.sampled(400.5, {"cuda:0": {"memory/process_used": 50.0}}) == {}
    outside.observe(PhaseEntered(time=401.0, phase="eval", step=400))
    assert outside.sampled(402.0, {}) == {}


def test_a_driver_that_fails_and_disappears_reaches_neither_agent_nor_rank(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in ("LD_LIBRARY_PATH", "STANDIN_NVML"):
        monkeypatch.setenv(name, machine.environment[name])
    node_directory = node_folder(tmp_path)
    machine.describe("used 0 300")
    with serving() as server:
        rank = Rank(node_directory)
        rank.start(environment={"device": "cuda:0", "cuda_visible_devices": None})
        agent = start_agent(node_directory, server.url)

        def samples() -> list[Sampled]:
            return [event for event in server.store.of_type(Sampled) if event.rank == 0]

        with ending(agent):
            wait_for(lambda: any("cuda:0" in event.devices for event in samples()))
            assert samples()[-1].devices["cuda:0"]["memory/device_used"] == 300 * MIB
            for number, lines in enumerate(("fail nvmlDeviceGetMemoryInfo 15", "fail * 999", "fail * 1"), 1):
                machine.describe(lines)
                rank.write(step(number))
                seen = len(samples())
                # The loop goes on, and still reads the process.
                wait_for(lambda seen=seen: len(samples()) > seen + 3)  # type: ignore[misc]
                last = samples()[-1]
                assert last.devices["cpu"]["memory/resident"] > 0
                assert "memory/device_used" not in last.devices.get("cuda:0", {})
                assert last.step == number
        assert not server.store.of_type(TroubleCounted)
    assert (node_directory / "agent.log").read_text() == ""


def test_the_tree_of_a_rank_is_weighed_now_and_then(machine: Machine) -> None:
    """Rank 0 of the scenario has a child, as a rank has data loader workers."""
    moments = (0.0, 1.0, TREE_SECONDS - 0.1, TREE_SECONDS, TREE_SECONDS + 1)
    found = sample(machine, [{"device": "cpu"}], *((moment, "", {}) for moment in moments))
    weights = [samples[0]["devices"]["cpu"].get("memory/tree_resident") for samples in found]
    assert [weight is not None for weight in weights] == [True, False, False, True, False]
    assert weights[0] > 1.3 * found[0][0]["devices"]["cpu"]["memory/resident"]


def test_oom_kills_are_told_when_they_change(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    kills = iter([3.0, 3.0, 4.0, 4.0])
    group = SimpleNamespace(limit=lambda: None, counted_oom_kills=lambda: next(kills), oom_kills=lambda: 0)
    monkeypatch.setattr("trainwatch.probes.cgroup.find", lambda *args: group)
    state = rank_state(0, os.getpid(), {"device": "cpu"})
    sampler = Sampler()
    found = [sampler.sample([state], now, now)[-1].devices["host"].get("host/oom_kills") for now in range(4)]
    assert found == [3.0, None, 4.0, None]


def test_a_machine_without_numbers_for_the_tree_has_none(tmp_path: Path) -> None:
    assert family.trees_resident([1, 2], tmp_path) == {}
    assert family.parent(7, tmp_path) == 0
    assert family.name_and_owner(7, tmp_path) == ("", "")
    assert not family.descends(7, {8}, tmp_path)
    assert host.shared_memory(tmp_path) is None


@pytest.mark.skipif(not Path("/dev/shm").is_dir(), reason="needs shared memory")
def test_shared_memory_is_what_lies_in_it() -> None:
    before = host.shared_memory()
    assert before is not None
    path = Path(f"/dev/shm/trainwatch-test-{os.getpid()}")
    try:
        path.write_bytes(b"1" * (24 * MIB))
        after = host.shared_memory()
    finally:
        path.unlink()
    assert after is not None
    # Others may use it meanwhile.
    assert after - before == pytest.approx(24 * MIB, abs=8 * MIB)
