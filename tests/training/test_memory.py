"""Memory within steps and phases: against a sampler that looks a thousand times a second, and what is not told."""

from __future__ import annotations

import itertools
import math
import mmap
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from tests.training.tiny import InOrder, TinyData, make_trainer, of, read_events
from trainwatch.events import DeviceValues, OutOfMemorySeen, PhaseEntered, RunEnded, RunStarted, StepEnded
from trainwatch.training.safety import Safety
from trainwatch.training.signals import allocators, exhaustion
from trainwatch.training.signals.allocators import CachingAllocator, MpsMemory
from trainwatch.training.signals.memory import REPEAT_SECONDS, Memory, ProcessMemory
from trainwatch.training.signals.phases import Left, PhaseSignal

MIB = 1 << 20
LINUX = pytest.mark.skipif(sys.platform != "linux", reason="the kernel's high-water mark is Linux's")


class Sampler(threading.Thread):
    """Samples the resident memory of this process, about a thousand times a second, by the wall clock."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.samples: list[tuple[float, int]] = []
        self.stop = False

    def run(self) -> None:
        page = os.sysconf("SC_PAGE_SIZE")
        with open("/proc/self/statm", "rb", buffering=0) as file:
            while not self.stop:
                file.seek(0)
                resident = int(file.read(100).split()[1]) * page
                self.samples.append((time.time(), resident))
                time.sleep(0.0005)

    def hold(self, mib: int) -> None:
        """Uses memory until it was sampled: on a busy machine the sampler comes late."""
        block = torch.ones(mib * MIB // 4)
        enough = len(self.samples) + 5
        while len(self.samples) < enough:
            time.sleep(0.002)
        del block

    def highest(self, begin: float, end: float) -> float:
        return float(max(resident for moment, resident in self.samples if begin <= moment <= end))


SHORT, LONG, EVALUATED, SAVED = 10, 160, 240, 320


@pytest.fixture
def sampler() -> Any:
    sampler = Sampler()
    sampler.start()
    yield sampler
    sampler.stop = True
    sampler.join()


def watched_run(sampler: Sampler, output: Path, *, steps: int, kind: type[Any] = InOrder, **arguments: Any) -> Any:
    """A training with short and long batches in turn, which need as many MiB as they have tokens."""

    class Saving(kind):  # type: ignore[misc]
        def _save(self, *args: Any, **kwargs: Any) -> None:
            sampler.hold(SAVED)
            super()._save(*args, **kwargs)

    data, evaluation = TinyData(2 * steps), TinyData(2)
    data.tokens = [torch.ones(LONG if index // 2 % 2 else SHORT, dtype=torch.long) for index in range(2 * steps)]
    evaluation.tokens = [torch.ones(EVALUATED, dtype=torch.long)] * 2
    trainer = make_trainer(output, steps=steps, data=data, evaluation=evaluation, kind=Saving, **arguments)

    def hold(module: Any, args: Any, inputs: dict[str, torch.Tensor]) -> None:
        sampler.hold(inputs["input_ids"].shape[1])

    trainer.model.register_forward_pre_hook(hold, with_kwargs=True)
    return trainer


def pieces(found: list[Any]) -> list[tuple[float, float, Any]]:
    """Begin and end of what each event measured: since the last time that memory was read."""
    marks = [event for event in found if isinstance(event, StepEnded | PhaseEntered)]
    return [(before.time, event.time, event) for before, event in itertools.pairwise(marks)]


@LINUX
def test_peaks_of_steps_evaluations_and_saves_are_what_a_fast_sampler_sees(
    home: Path, tmp_path: Path, sampler: Sampler
) -> None:
    watched_run(
        sampler,
        tmp_path / "out",
        steps=12,
        eval_strategy="steps",
        eval_steps=4,
        save_strategy="steps",
        save_steps=6,
        save_only_model=True,
    ).train()
    found = read_events(home)
    steps: list[tuple[int, float, float]] = []
    phases: dict[str, list[tuple[float, float]]] = {"eval": [], "save": []}
    for begin, end, event in pieces(found):
        if isinstance(event, StepEnded):
            steps.append((event.step, event.devices["cpu"]["memory/peak"], sampler.highest(begin, end)))
        elif event.left in phases:
            phases[event.left].append((event.peak["cpu"]["memory/peak"], sampler.highest(begin, end)))
    assert [number for number, _, _ in steps] == list(range(1, 13))
    assert (len(phases["eval"]), len(phases["save"])) == (3, 2)
    for number, peak, seen in steps:
        assert peak == pytest.approx(seen, rel=0.05), number
    for name, peaks in phases.items():
        for peak, seen in peaks:
            assert peak == pytest.approx(seen, rel=0.05), name
    # And these agree on something: the long batches, the evaluations and the saves stand out.
    lowest = min(peak for _, peak, _ in steps)
    heights = [(peak - lowest) / MIB for _, peak, _ in steps]
    assert max(heights[0::2]) < 0.4 * LONG
    assert min(heights[1::2]) > 0.7 * LONG
    assert max(heights) < 0.9 * EVALUATED, "no evaluation and no save is in the peak of a step"
    assert min(peak for peak, _ in phases["eval"]) - lowest > 0.8 * EVALUATED * MIB
    assert min(peak for peak, _ in phases["save"]) - lowest > 0.8 * SAVED * MIB


@LINUX
def test_each_phase_tells_its_length_and_its_highest_peak(home: Path, tmp_path: Path, sampler: Sampler) -> None:
    watched_run(sampler, tmp_path / "out", steps=4, eval_strategy="steps", eval_steps=2).train()
    found = read_events(home)
    phases = of(PhaseEntered, found)
    assert [(event.left, event.phase) for event in phases] == [
        ("load", "train"),
        ("train", "eval"),
        ("eval", "idle"),
        ("idle", "train"),
        ("train", "eval"),
        ("eval", "idle"),
    ]
    for before, event in itertools.pairwise(phases):
        assert event.seconds == pytest.approx(event.time - before.time, abs=0.3)
    steps = of(StepEnded, found)
    highest = max(event.devices["cpu"]["memory/peak"] for event in steps[:2])
    assert phases[1].peak["cpu"]["memory/peak"] >= highest
    assert phases[1].peak["cpu"]["memory/peak"] < phases[2].peak["cpu"]["memory/peak"]
    capacities = ["memory/capacity" in event.devices["cpu"] for event in steps]
    assert capacities == [True, False, False, False]
    (start,) = of(RunStarted, found)
    assert start.environment["device_uuids"] == {}


@LINUX
def test_a_training_that_fails_tells_what_its_last_phase_took(home: Path, tmp_path: Path, sampler: Sampler) -> None:
    script = (
        "import sys, torch; from tests.training.tiny import TinyData, make_trainer\n"
        "class Bad(TinyData):\n"
        "    def __getitem__(self, index):\n"
        "        block = torch.ones(200 * 2**20 // 4); del block\n"
        "        raise MemoryError('no more')\n"
        "make_trainer(sys.argv[1], steps=2, evaluation=Bad(2), eval_strategy='steps', eval_steps=1).train()\n"
    )
    done = subprocess.run([sys.executable, "-c", script, str(tmp_path)], capture_output=True, text=True, timeout=100)
    assert "MemoryError: no more" in done.stderr
    found = read_events(home)
    end = found[-1]
    assert isinstance(end, RunEnded)
    assert end.outcome == "failed"
    last = of(PhaseEntered, found)[-1]
    assert (last.left, last.phase) == ("eval", "eval")
    step = of(StepEnded, found)[-1]
    assert last.peak["cpu"]["memory/peak"] > step.devices["cpu"]["memory/resident"] + 150 * MIB


# -- what is told, and when --------------------------------------------------------------------------------------


class Scripted:
    """A memory that reads what a test says."""

    source, missing = "a script", ""

    def __init__(self, *readings: dict[str, float]) -> None:
        self.readings = list(readings)

    def begin(self) -> None:
        return

    def read(self) -> DeviceValues:
        return {"cuda:0": {f"memory/{name}": value for name, value in self.readings.pop(0).items()}}

    def close(self) -> None:
        return


def memory_of(*readings: dict[str, float]) -> Memory:
    memory = Memory(torch.nn.Linear(1, 1), Safety())
    memory._of_steps = memory._of_phases = [Scripted(*readings)]
    return memory


def test_what_hardly_ever_changes_is_told_when_it_changed_and_now_and_then() -> None:
    steady = {"peak": 5.0, "capacity": 80.0, "alloc_retries": 0.0, "ooms": 0.0}
    memory = memory_of(steady, dict(steady), {**steady, "alloc_retries": 1.0}, dict(steady, alloc_retries=1.0), steady)
    told = [memory.step(now)["cuda:0"] for now in (0.0, 1.0, 2.0, 3.0, 2.5 + REPEAT_SECONDS)]
    names = [sorted(name.removeprefix("memory/") for name in values) for values in told]
    assert names == [
        ["alloc_retries", "capacity", "ooms", "peak"],
        ["peak"],
        ["alloc_retries", "peak"],
        ["peak"],
        ["alloc_retries", "capacity", "ooms", "peak"],
    ]


def test_the_peak_of_a_phase_is_the_highest_of_its_pieces() -> None:
    found: list[tuple[str, Left]] = []
    clock = iter([0.0, 1.0, 2.0, 3.0, 4.0, 7.0])
    memory = memory_of(
        {"peak": 3.0, "peak_reserved": 9.0},
        {"peak": 5.0, "peak_reserved": 8.0},
        {"peak": 4.0, "peak_reserved": 8.0},
        {"peak": 2.0, "peak_reserved": 10.0, "allocated": 99.0},
        {"peak": 1.0},
    )
    phases = PhaseSignal(lambda phase, left: found.append((phase, left)), memory, lambda: next(clock))
    phases.enter("train")
    assert [phases.step()["cuda:0"]["memory/peak"] for _ in range(2)] == [5.0, 4.0]
    phases.enter("train")
    phases.enter("save")
    phases.enter("idle")
    peak = "memory/peak"
    assert [(phase, left.phase, left.seconds, left.peak["cuda:0"][peak]) for phase, left in found] == [
        ("train", "load", 1.0, 3.0),
        ("save", "train", 3.0, 5.0),
        ("idle", "save", 3.0, 1.0),
    ]
    assert found[1][1].peak["cuda:0"]["memory/peak_reserved"] == 10.0


def test_a_memory_that_cannot_be_read_costs_no_step_and_is_counted() -> None:
    safety = Safety()
    memory = Memory(torch.nn.Linear(1, 1), safety)
    memory._of_steps = [Scripted(), *memory._of_steps]
    memory._of_phases = memory._of_steps
    assert set(memory.step(0.0)) == {"cpu"}
    assert set(memory.phase()) <= {"cpu"}
    assert safety.errors == {"Memory._one": 2}
    memory.close()


def test_a_process_that_may_not_reset_the_mark_has_no_peak(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: str, *args: Any, **kwargs: Any) -> int:
        raise PermissionError(13, "Permission denied", path)

    monkeypatch.setattr("trainwatch.training.signals.memory.os.open", refuse)
    memory = Memory(torch.nn.Linear(1, 1), Safety())
    values = memory.step(0.0)["cpu"]
    assert values["memory/resident"] > 10 * MIB
    assert "memory/peak" not in values
    assert memory.phase() == {}
    assert memory.missing == ["peak not available here: the kernel does not let its high-water mark be reset"]


@LINUX
def test_what_is_done_aside_is_not_in_the_peak_of_the_step() -> None:
    memory = Memory(torch.nn.Linear(1, 1), Safety())
    phases = PhaseSignal(lambda phase, left: None, memory)
    start = phases.step()["cpu"]["memory/peak"]
    # Above glibc's largest threshold (32 MiB) a block is never carved out of memory that earlier tests left resident.
    block = torch.ones(40 * MIB // 4)
    del block
    with phases.aside():
        block = torch.ones(120 * MIB // 4)
        del block
    assert phases.step()["cpu"]["memory/peak"] - start == pytest.approx(40 * MIB, rel=0.3)
    memory.close()


@LINUX
def test_reading_begins_a_new_peak() -> None:
    memory = ProcessMemory()
    memory.begin()
    block = torch.ones(60 * MIB // 4)
    del block
    first, second = (memory.read()["cpu"]["memory/peak"] for _ in range(2))
    memory.close()
    assert first - second > 50 * MIB


# -- accelerators that are not here ------------------------------------------------------------------------------


class Accelerator:
    """A device module of torch's, as one that comes as a package of its own registers it."""

    def __init__(self, **parts: Any) -> None:
        self.__name__ = "torch.musa"
        self.resets: list[int] = []
        for name, part in parts.items():
            setattr(self, name, part)

    def is_initialized(self) -> bool:
        return True

    def current_device(self) -> int:
        return 1

    def get_device_properties(self, index: int) -> Any:
        return SimpleNamespace(total_memory=1000 * (index + 1), uuid=f"uuid-{index}")

    def reset_peak_memory_stats(self, index: int) -> None:
        self.resets.append(index)


def pool(current: int, peak: int) -> dict[str, Any]:
    return {"all": {"current": current, "peak": peak, "allocated": 0, "freed": 0}, "small_pool": {"current": 0}}


NESTED = {"allocated_bytes": pool(10, 30), "reserved_bytes": pool(40, 50), "active_bytes": pool(1, 2)}
FULL = {**NESTED, "inactive_split_bytes": pool(7, 9), "num_alloc_retries": 2, "num_ooms": 1}


def found_on(monkeypatch: pytest.MonkeyPatch, accelerator: Accelerator) -> Memory:
    monkeypatch.setattr(torch, "musa", accelerator, raising=False)
    return Memory(torch.nn.Linear(1, 1, device="meta"), Safety())


def test_an_allocator_is_read_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    accelerator = Accelerator(memory_stats_as_nested_dict=lambda index: FULL)
    memory = found_on(monkeypatch, accelerator)
    assert memory.step(0.0) == {
        "musa:1": {
            "memory/allocated": 10.0,
            "memory/reserved": 40.0,
            "memory/peak": 30.0,
            "memory/peak_reserved": 50.0,
            "memory/inactive_split": 7.0,
            "memory/alloc_retries": 2.0,
            "memory/ooms": 1.0,
            "memory/capacity": 2000.0,
        }
    }
    assert set(accelerator.resets) == {1}
    assert memory.uuids == {"musa:1": "uuid-1"}
    assert memory.sources == ["allocator of musa:1"]
    phase = memory.phase()
    assert phase["musa:1"] == {"memory/peak": 30.0, "memory/peak_reserved": 50.0}
    assert "memory/allocated" not in phase.get("cpu", {}), "the process's own peak is there beside it"
    memory.close()


def flat(nested: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in nested.items():
        if isinstance(value, dict):
            found |= {f"{name}.{kind}.{key}": v for kind, values in value.items() for key, v in values.items()}
        else:
            found[name] = value
    return found


@pytest.mark.parametrize(
    ("parts", "told"),
    [
        ({"memory_stats_as_nested_dict": lambda index: NESTED}, {"allocated", "reserved", "peak", "peak_reserved"}),
        ({"memory_stats": lambda index: flat(NESTED)}, {"allocated", "reserved", "peak", "peak_reserved"}),
        (
            {"memory_stats_as_nested_dict": lambda index: FULL, "get_allocator_backend": lambda: "cudaMallocAsync"},
            {"allocated", "reserved", "peak", "peak_reserved"},
        ),
        (
            {"memory_stats_as_nested_dict": lambda index: NESTED, "reset_peak_memory_stats": None},
            {"allocated", "reserved"},
        ),
    ],
    ids=["fewer counters", "flat", "another allocator", "no reset"],
)
def test_what_an_allocator_does_not_count_is_left_out(
    monkeypatch: pytest.MonkeyPatch, parts: dict[str, Any], told: set[str]
) -> None:
    memory = found_on(monkeypatch, Accelerator(**parts))
    assert set(memory.step(0.0)["musa:1"]) == {f"memory/{name}" for name in told | {"capacity"}}
    assert bool(memory.missing) == ("peak" not in told)
    memory.close()


def refuse(index: int) -> Any:
    raise RuntimeError("CUDAPluggableAllocator does not yet support getDeviceStats")


@pytest.mark.parametrize("stats", [lambda index: {"dram": {"peak_bytes": 3}}, refuse], ids=["its own way", "refused"])
def test_an_accelerator_that_counts_otherwise_is_said_to_be_missing(
    monkeypatch: pytest.MonkeyPatch, stats: Callable[[int], Any]
) -> None:
    memory = found_on(monkeypatch, Accelerator(memory_stats=stats))
    (reason,) = memory.missing
    assert reason.startswith("not available on musa: ")
    assert set(memory.step(0.0)) == {"cpu"}
    memory.close()


def test_apples_gpu_has_no_peak(monkeypatch: pytest.MonkeyPatch) -> None:
    numbers = {"current_allocated_memory": 5, "driver_allocated_memory": 9, "recommended_max_memory": 100}
    monkeypatch.setattr(torch, "mps", SimpleNamespace(**{name: lambda v=v: v for name, v in numbers.items()}))
    memory = MpsMemory()
    assert memory.read() == {"mps:0": {"memory/allocated": 5.0, "memory/reserved": 9.0, "memory/capacity": 100.0}}
    assert memory.missing


def test_without_an_accelerator_none_is_found() -> None:
    if torch.cuda.is_available():
        pytest.skip("there is one")
    assert allocators.in_use(torch.nn.Linear(1, 1).parameters()) == {}
    with pytest.raises((AssertionError, NotImplementedError, RuntimeError)):
        CachingAllocator("cuda", [0])


# -- out of memory -----------------------------------------------------------------------------------------------


@pytest.fixture
def entrance(monkeypatch: pytest.MonkeyPatch) -> Any:
    """An accelerator that lets observers in; returns them."""
    observers: list[Callable[[int, int, int, int], None]] = []
    library = SimpleNamespace(_musa_attach_out_of_memory_observer=observers.append)
    monkeypatch.setitem(sys.modules, "torch_musa._C", library)
    parts = {
        "memory_stats_as_nested_dict": lambda index: FULL,
        "memory_allocated": lambda index: 10,
        "memory_summary": lambda index: "S" * 20_000,
    }
    monkeypatch.setattr(torch, "musa", Accelerator(**parts), raising=False)
    monkeypatch.setattr(exhaustion, "_observers", {})
    return observers


def test_an_exhausted_allocator_is_told_to_the_training_that_runs(entrance: Any) -> None:
    found: list[exhaustion.Exhausted] = []
    safety = Safety()
    for _ in range(2):  # one training after the other, one observer in all
        memory = Memory(torch.nn.Linear(1, 1, device="meta"), safety)
        memory.on_exhaustion(found.append)
        assert memory.missing == []
        (observer,) = entrance
        observer(1, 700, 2000, 300)
        memory.close()
        observer(1, 800, 2000, 300)
    assert [(seen.device, seen.requested, seen.allocated, seen.free) for seen in found] == [
        ("musa:1", 700, 10, 300)
    ] * 2
    assert 1000 < len(found[0].summary) <= 8000
    assert safety.errors == {}


def test_an_observer_never_raises_into_the_allocator_and_ends_repeating_itself(entrance: Any) -> None:
    found: list[exhaustion.Exhausted] = []
    safety = Safety()

    def fail(seen: exhaustion.Exhausted) -> None:
        raise ValueError("ours")

    assert exhaustion.attach(["musa"], fail, safety) == {}
    assert exhaustion.attach(["musa"], found.append, safety) == {}
    (observer,) = entrance
    for _ in range(200):
        observer(0, 1, 2, 3)
    assert safety.errors == {"out-of-memory observer": len(found)}
    assert len(found) < 100
    assert sum(bool(seen.summary) for seen in found) < 10


def test_a_forked_child_does_not_speak_for_the_training(entrance: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    found: list[exhaustion.Exhausted] = []
    exhaustion.attach(["musa"], found.append, Safety())
    monkeypatch.setattr("trainwatch.training.signals.exhaustion.os.getpid", lambda: -1)
    entrance[0](0, 1, 2, 3)
    assert found == []


def test_where_no_observer_is_let_in_that_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exhaustion, "_observers", {})
    assert list(exhaustion.attach(["xpu"], print, Safety())) == ["xpu"]

    def refuse(observer: Any) -> None:
        raise RuntimeError("cudaMallocAsync does not yet support attachOutOfMemoryObserver.")

    library = SimpleNamespace(_npu_attach_out_of_memory_observer=refuse)
    monkeypatch.setitem(sys.modules, "torch_npu._C", library)
    monkeypatch.setattr(torch, "npu", SimpleNamespace(), raising=False)
    (reason,) = exhaustion.attach(["npu"], print, Safety()).values()
    assert "cudaMallocAsync" in reason


def test_running_out_of_memory_is_recorded_with_step_and_phase(home: Path, tmp_path: Path, entrance: Any) -> None:
    trainer = make_trainer(tmp_path / "out", steps=3)
    times = iter(range(10))

    def run_out(module: Any, args: Any) -> None:
        if next(times) == 1:
            entrance[0](1, 5 * MIB, 8 * MIB, MIB)

    trainer.model.register_forward_pre_hook(run_out)
    trainer.train()
    found = read_events(home)
    (seen,) = of(OutOfMemorySeen, found)
    assert (seen.device, seen.requested, seen.free, seen.step, seen.phase) == ("musa:1", 5 * MIB, MIB, 1, "train")
    assert seen.summary.startswith("SSS")
    devices = of(StepEnded, found)[0].devices
    assert math.isclose(devices["musa:1"]["memory/peak"], 30.0)
    assert "memory/resident" in devices["cpu"]  # the model is there


@LINUX
def test_pages_of_files_are_told_apart(tmp_path: Path) -> None:
    """A data set on disk that is mapped and read fills the resident memory, and no limit."""
    size = 60 * MIB
    path = tmp_path / "data"
    path.write_bytes(bytes(size))
    memory = ProcessMemory()
    before = memory.read()["cpu"]
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as mapped:
        assert sum(mapped[place] for place in range(0, size, 4096)) == 0
        after = memory.read()["cpu"]
    memory.close()
    grown = {name: after[name] - before[name] for name in ("memory/resident", "memory/mapped")}
    assert grown["memory/resident"] == pytest.approx(size, rel=0.1)
    assert grown["memory/mapped"] == pytest.approx(size, rel=0.1)
