"""What TrainWatch costs a step on a GPU: time of our own code on the training thread, and waits for the device.

Trains the small GPT-2 of the other benchmarks on one GPU, with clocks around our functions, then with and without
TrainWatch under the profiler. Without a GPU it says so and measures nothing.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
from pathlib import Path
from typing import Any, Final

import torch
from torch.profiler import ProfilerActivity, profile

from benchmarks.support import places
from benchmarks.support.inside import Meter
from benchmarks.support.report import quantile, say
from benchmarks.support.training import Clock, be_quiet, make_trainer
from trainwatch import TrainWatchCallback

TARGET_MICROSECONDS: Final = 50.0
_WARM_UP: Final = 20
_WAITS: Final = ("cudaStreamSynchronize", "cudaDeviceSynchronize", "cudaEventSynchronize")


def train(steps: int, callbacks: list[Any]) -> None:
    """Trains once on the GPU, in this process."""
    with tempfile.TemporaryDirectory() as folder:
        make_trainer(Path(folder), steps, callbacks, use_cpu=False, logging_steps=10**6).train()


def time_inside(steps: int) -> Meter:
    """Trains with clocks around our functions."""
    meter = Meter([*places.entrances(), *places.parts()])
    with meter.attached():
        train(steps, [Clock(meter.next_step), TrainWatchCallback()])
    meter.steps = meter.steps[_WARM_UP:]
    return meter


def count_waits(steps: int, *, watched: bool) -> int:
    """Trains under the profiler, and counts how often the host waited for the device."""
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as seen:
        train(steps, [TrainWatchCallback()] if watched else [])
    return sum(event.count for event in seen.key_averages() if event.key in _WAITS)


def main() -> None:
    """Runs it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=300)
    steps = parser.parse_args().steps
    if not torch.cuda.is_available():
        say("gpu_overhead: there is no CUDA GPU here, so nothing was measured.")
        return
    be_quiet()
    with tempfile.TemporaryDirectory() as home:
        os.environ.update({"TRAINWATCH_HOME": home, "TRAINWATCH_AGENT": "0"})
        meter = time_inside(steps)
        # What is read of the device is waited for there: the device's time, not ours.
        readers = [name for name in meter.names if name.endswith(".to_host")]
        waiting = [sum(times) for times in zip(*(meter.inclusive(name) for name in readers), strict=True)]
        own = [whole - wait for whole, wait in zip(meter.outermost(), waiting, strict=True)]
        say(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, {len(own)} steps")
        say(
            f"our code per step: {statistics.median(own):.1f} µs (90 %: {quantile(own, 0.9):.1f} µs); "
            f"target {TARGET_MICROSECONDS:.0f} µs"
        )
        for name in ("Memory.step", "PhaseSignal.step", "StepObserver.saw_forward", "Recorder.record"):
            if name in meter.names:
                say(f"  {name}: {statistics.median(meter.inclusive(name)):.1f} µs")
        bare, watched = (count_waits(steps, watched=watched) for watched in (False, True))
        say(f"waits for the device per step: {bare / steps:.2f} without TrainWatch, {watched / steps:.2f} with it")


if __name__ == "__main__":
    main()
