"""What has to be measured in a process of its own: ``python -m benchmarks.support.probe memory --with``.

The last line of its output is a JSON object.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Final

TRACKERS: Final = {
    "tensorboard": ("tensorboard", "TensorBoardCallback"),
    "mlflow": ("mlflow", "MLflowCallback"),
    "trackio": ("trackio", "TrackioCallback"),
}
"""Name to module and the callback that transformers has for it."""

_WARM_UP: Final = 10


def resident() -> int:
    """Returns this process's resident memory in bytes, by means that load nothing."""
    try:
        with open("/proc/self/statm", encoding="ascii") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        shown = subprocess.run(["ps", "-o", "rss=", "-p", str(os.getpid())], capture_output=True, check=True, text=True)
        return int(shown.stdout) * 1024


def memory(*, with_callback: bool, steps: int) -> dict[str, Any]:
    """Trains, and reads the resident memory at the end of the last step."""
    from benchmarks.support.training import Clock, be_quiet, make_trainer

    be_quiet()
    readings: list[int] = []
    callbacks: list[Any] = [Clock(lambda: readings.append(resident()))]
    began = resident()
    if with_callback:
        from trainwatch import TrainWatchCallback

        callbacks.append(TrainWatchCallback())
    with tempfile.TemporaryDirectory() as folder:
        make_trainer(Path(folder), steps, callbacks).train()
    return {"bytes": readings[-1], "before": began}


def rest(*, seconds: float, steps: int) -> dict[str, Any]:
    """Trains, then stands still inside a step for a while, and looks at the agent in both."""
    import psutil

    from benchmarks.support.training import Clock, be_quiet, make_trainer
    from trainwatch import TrainWatchCallback

    be_quiet()
    found: dict[str, Any] = {}
    count = 0
    before = (0.0, 0.0)

    def look() -> None:
        nonlocal count, before
        count += 1
        if count == steps // 2:
            before = (_cpu_seconds(_agent()), time.perf_counter())
        if count != steps:
            return
        agent = _agent()
        found["busy_share"] = (_cpu_seconds(agent) - before[0]) / (time.perf_counter() - before[1])
        found["steps_per_second"] = (steps - steps // 2) / (time.perf_counter() - before[1])
        time.sleep(3.0)  # what is left to ship
        before = (_cpu_seconds(agent), time.perf_counter())
        time.sleep(seconds)
        found["rest_share"] = (_cpu_seconds(agent) - before[0]) / (time.perf_counter() - before[1])
        found["resident"] = agent.memory_info().rss
        found["own"] = getattr(agent.memory_full_info(), "uss", 0)

    def _agent() -> psutil.Process:
        return next(child for child in psutil.Process().children() if "trainwatch.agent" in child.cmdline())

    with tempfile.TemporaryDirectory() as folder:
        make_trainer(Path(folder), steps, [Clock(look), TrainWatchCallback()]).train()
    return found


def inside(*, steps: int) -> dict[str, Any]:
    """Trains with clocks around our functions; microseconds of each step behind the first few."""
    from benchmarks.support import places
    from benchmarks.support.inside import Meter
    from benchmarks.support.training import Clock, be_quiet, make_trainer
    from trainwatch import TrainWatchCallback

    be_quiet()
    meter = Meter([*places.entrances(), places.MEASURE])
    with tempfile.TemporaryDirectory() as folder, meter.attached():
        make_trainer(Path(folder), steps, [Clock(meter.next_step), TrainWatchCallback()]).train()
    return {"whole": meter.outermost()[_WARM_UP:], "norms": meter.inclusive("GradientSignal.measure")[_WARM_UP:]}


def tracker(name: str, *, steps: int) -> dict[str, Any]:
    """Trains with TrainWatch and another tracker side by side, and compares what their ``on_log`` takes."""
    from benchmarks.support.inside import Meter
    from benchmarks.support.training import Clock, be_quiet, make_trainer
    from trainwatch import TrainWatchCallback

    be_quiet()
    kind: Any = getattr(importlib.import_module("transformers.integrations"), TRACKERS[name][1])
    with tempfile.TemporaryDirectory() as folder:
        os.environ["MLFLOW_TRACKING_URI"] = f"sqlite:///{folder}/mlflow.db"
        os.environ["TRACKIO_DIR"] = f"{folder}/trackio"
        os.environ["TENSORBOARD_LOGGING_DIR"] = f"{folder}/tensorboard"
        meter = Meter([(TrainWatchCallback, "on_log"), (kind, "on_log")])
        with meter.attached():
            make_trainer(Path(folder), steps, [Clock(meter.next_step), TrainWatchCallback(), kind()]).train()
    ours, theirs = (statistics.median(meter.inclusive(one)[_WARM_UP:]) for one in meter.names)
    return {"trainwatch": ours, "tracker": theirs}


def _cpu_seconds(process: Any) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


def main() -> None:
    """Runs one probe."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("probe", choices=("inside", "memory", "rest", "tracker"))
    parser.add_argument("--with", action="store_true", dest="with_callback")
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--name", choices=sorted(TRACKERS), default="tensorboard")
    chosen = parser.parse_args()
    if chosen.probe == "inside":
        found = inside(steps=chosen.steps)
    elif chosen.probe == "memory":
        found = memory(with_callback=chosen.with_callback, steps=chosen.steps)
    elif chosen.probe == "rest":
        found = rest(seconds=chosen.seconds, steps=chosen.steps)
    else:
        found = tracker(chosen.name, steps=chosen.steps)
    sys.stdout.write(json.dumps(found) + "\n")


if __name__ == "__main__":
    main()
