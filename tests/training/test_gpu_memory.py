"""Memory on a real GPU: against torch's own counters, the driver's, and a real shortage. Skipped without one."""

from __future__ import annotations

import json
import os
import shutil
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import TrainerCallback

from tests.training.tiny import TinyData, make_trainer, of, read_events
from trainwatch.events import OutOfMemorySeen, PhaseEntered, RunStarted, StepEnded
from trainwatch.training.safety import Safety
from trainwatch.training.signals.memory import Memory
from trainwatch.training.signals.phases import PhaseSignal

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU"),
]

MIB = 1 << 20
SHORT, LONG, EVALUATED = 16, 256, 512


@pytest.fixture(autouse=True)
def one_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a machine with several the Trainer would spread each batch."""
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)


def trainer_on_gpu(output: Path, *, steps: int, callbacks: Any = (), **arguments: Any) -> Any:
    """A training with short and long batches in turn, which need as many MiB on the GPU as they have tokens."""
    data, evaluation = TinyData(2 * steps), TinyData(2)
    data.tokens = [torch.ones(LONG if index // 2 % 2 else SHORT, dtype=torch.long) for index in range(2 * steps)]
    evaluation.tokens = [torch.ones(EVALUATED, dtype=torch.long)] * 2
    trainer = make_trainer(
        output, steps=steps, data=data, evaluation=evaluation, callbacks=callbacks, use_cpu=False, **arguments
    )

    def hold(module: Any, args: Any, inputs: dict[str, torch.Tensor]) -> None:
        torch.empty(inputs["input_ids"].shape[1] * MIB, dtype=torch.uint8, device=inputs["input_ids"].device)

    trainer.model.register_forward_pre_hook(hold, with_kwargs=True)
    return trainer


class Counters(TrainerCallback):
    """Reads torch's own counters at the end of each step, just before TrainWatch does."""

    def __init__(self) -> None:
        self.steps: list[dict[str, float]] = []

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        cuda = torch.cuda
        stats = cuda.memory_stats()
        self.steps.append(
            {
                "memory/allocated": float(cuda.memory_allocated()),
                "memory/reserved": float(cuda.memory_reserved()),
                "memory/peak": float(cuda.max_memory_allocated()),
                "memory/peak_reserved": float(cuda.max_memory_reserved()),
                "memory/inactive_split": float(stats["inactive_split_bytes.all.current"]),
            }
        )


def test_the_peak_of_each_step_is_what_torch_says(home: Path, tmp_path: Path) -> None:
    counters = Counters()
    trainer_on_gpu(tmp_path / "out", steps=10, callbacks=[counters], eval_strategy="steps", eval_steps=5).train()
    found = read_events(home)
    (name,) = of(RunStarted, found)[0].environment["device_uuids"]
    steps = [event.devices[name] for event in of(StepEnded, found)]
    for values, expected in zip(steps, counters.steps, strict=True):
        for metric in ("memory/peak", "memory/peak_reserved", "memory/reserved"):
            assert values[metric] == expected[metric]
        for metric in ("memory/allocated", "memory/inactive_split"):
            # Between the two readings the step's batch and our own counters may go.
            assert values[metric] == pytest.approx(expected[metric], abs=4 * MIB)
    total = torch.cuda.get_device_properties(name).total_memory
    assert steps[0]["memory/capacity"] == total
    assert steps[0]["memory/alloc_retries"] >= 0
    assert "memory/capacity" not in steps[1]
    lowest = min(values["memory/peak"] for values in steps)
    heights = [(values["memory/peak"] - lowest) / MIB for values in steps]
    assert max(heights[0::2]) < 0.4 * LONG
    assert min(heights[1::2]) > 0.8 * LONG
    assert max(heights) < 0.9 * EVALUATED, "no evaluation is in the peak of a step"
    evaluations = [event for event in of(PhaseEntered, found) if event.left == "eval"]
    assert len(evaluations) == 2
    for event in evaluations:
        assert event.peak[name]["memory/peak"] - lowest > 0.9 * EVALUATED * MIB
        assert event.peak["cpu"]["memory/peak"] > 0  # the process's own, beside the GPU's


_SAMPLE = """
import json, sys, time
from pathlib import Path
import msgspec
from trainwatch.agent.ranks import RankState
from trainwatch.agent.sample import Sampler
from trainwatch.events import RunStarted, StepEnded
from trainwatch.journal import Source
pid, environment, reserved = json.loads(sys.argv[1])
state = RankState(Source("run", "node", "rank0~00000000", Path(".")), 0)
state.observe(RunStarted(time=0.0, name="a run", pid=pid, environment=environment))
device = {name: {"memory/reserved": reserved, "memory/peak_reserved": reserved} for name in environment["device_uuids"]}
sampler = Sampler()
state.observe(StepEnded(time=0.5, step=1, devices=device))
first = sampler.sample([state], 1.0, 1.0)
state.observe(StepEnded(time=1.5, step=2, devices=device))
second = sampler.sample([state], 2.0, 2.0)
sys.stdout.write(json.dumps(msgspec.to_builtins([first[0], second[0]])))
"""


@pytest.mark.skipif(shutil.which("nvidia-smi") is None, reason="needs nvidia-smi to compare with")
def test_what_the_process_uses_is_what_the_driver_says() -> None:
    held = torch.empty(700 * MIB, dtype=torch.uint8, device="cuda")
    torch.cuda.synchronize()
    device = f"cuda:{torch.cuda.current_device()}"
    uuid = str(torch.cuda.get_device_properties(device).uuid)
    variable = os.environ.get("CUDA_VISIBLE_DEVICES")
    environment = {"device": device, "device_uuids": {device: uuid}, "cuda_visible_devices": variable}
    reserved = float(torch.cuda.memory_reserved())
    done = subprocess.run(
        [sys.executable, "-c", _SAMPLE, json.dumps([os.getpid(), environment, reserved])],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    first, second = (sample["devices"][device] for sample in json.loads(done.stdout))
    free, total = torch.cuda.mem_get_info()
    # The driver keeps some of it for itself, and says so or not.
    assert first["memory/device_used"] == pytest.approx(total - free, abs=0.03 * total)
    assert first["memory/device_used"] > held.nbytes
    query = ["nvidia-smi", "--query-compute-apps=gpu_uuid,pid,used_gpu_memory", "--format=csv,noheader,nounits"]
    listed = subprocess.run(query, capture_output=True, text=True, check=True, timeout=60).stdout.splitlines()
    rows = [[word.strip() for word in line.split(",")] for line in listed if uuid in line]
    mine = [row for row in rows if int(row[1]) == os.getpid()] or (rows if len(rows) == 1 else [])
    if "memory/process_used" not in first:
        assert not mine or not mine[0][2].isdecimal()
        pytest.skip("the driver does not tell here which process uses how much")
    assert first["memory/process_used"] / MIB == pytest.approx(float(mine[0][2]), abs=1)
    assert second["memory/outside"] == first["memory/process_used"] - reserved > 0
    del held


def test_a_real_shortage_leaves_its_summary(home: Path, tmp_path: Path) -> None:
    trainer = trainer_on_gpu(tmp_path / "out", steps=4)
    total = torch.cuda.get_device_properties(0).total_memory
    times = iter(range(10))

    def run_out(module: Any, args: Any) -> None:
        if next(times) == 2:
            torch.empty(total // 2, dtype=torch.uint8, device="cuda")

    trainer.model.register_forward_pre_hook(run_out)
    torch.cuda.empty_cache()
    torch.cuda.set_per_process_memory_fraction(0.25)
    try:
        with pytest.raises(torch.cuda.OutOfMemoryError):
            trainer.train()
        allocated = torch.cuda.memory_allocated()
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
        torch.cuda.empty_cache()
    (seen,) = of(OutOfMemorySeen, read_events(home))
    assert seen.device == f"cuda:{torch.cuda.current_device()}"
    assert total // 2 <= seen.requested < total // 2 + 32 * MIB  # rounded up to what the allocator hands out
    assert 0 < seen.allocated < allocated + LONG * MIB
    assert 0 < seen.free <= total
    assert (seen.step, seen.phase) == (2, "train")
    assert "Allocated memory" in seen.summary
    assert "PyTorch CUDA memory summary" in seen.summary
    assert len(seen.summary) <= 8000


@pytest.fixture
def memory() -> Any:
    model = torch.nn.Linear(8, 8, device="cuda")
    memory = Memory(model, Safety())
    yield memory
    memory.close()


def test_reading_memory_costs_microseconds(memory: Memory) -> None:
    phases = PhaseSignal(lambda phase, left: None, memory)
    phases.enter("train")
    spans = []
    for _ in range(2000):
        began = time.perf_counter()
        phases.enter("train")
        phases.step()
        spans.append(time.perf_counter() - began)
    assert statistics.median(spans) < 50e-6


def test_reading_memory_waits_for_nothing(memory: Memory) -> None:
    phases = PhaseSignal(lambda phase, left: None, memory)
    matrix = torch.eye(4096, device="cuda")
    matrix = matrix @ matrix  # the first one sets the library up
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        for _ in range(30):
            matrix = matrix @ matrix
        began = time.perf_counter()
        phases.enter("train")
        phases.step()
        took = time.perf_counter() - began
        busy = not torch.cuda.current_stream().query()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    torch.cuda.synchronize()
    assert busy, "the GPU still worked when the reading was done"
    assert took < 0.02


WAITS = ("cudaStreamSynchronize", "cudaDeviceSynchronize", "cudaEventSynchronize")


@pytest.mark.filterwarnings("ignore")  # the profiler's own
def test_a_step_waits_once_for_the_guard_and_no_more(home: Path, tmp_path: Path) -> None:
    from torch.profiler import ProfilerActivity, profile

    steps = 40

    def waits(policy: Any) -> int:
        trainer = trainer_on_gpu(tmp_path / f"out-{policy}", steps=steps, logging_steps=10**6, policy=policy)
        with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as seen:
            trainer.train()
        return sum(event.count for event in seen.key_averages() if event.key in WAITS)

    waits(None)  # the first run loads kernels
    assert waits("protect") - waits(None) <= steps + 5
