"""What TrainWatch costs a training: time of a step, memory, imports, its begin and end, and the agent beside it.

Trains a small GPT-2 with the real ``transformers.Trainer`` on one thread, logging each step. Blocks of steps, and whole
trainings, with and without the callback take turns: with, without, without, with.
"""

from __future__ import annotations

import importlib.util
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import psutil

from benchmarks.support import places
from benchmarks.support.inside import Meter
from benchmarks.support.probe import TRACKERS
from benchmarks.support.report import Report, options, quantile, say, table
from benchmarks.support.revision import installed
from benchmarks.support.switch import Round, alternate
from benchmarks.support.training import Clock, be_quiet, make_trainer
from tests.e2e.world import ROOT, World
from trainwatch import TrainWatchCallback

_WARM_UP: Final = 10
"""Steps at the begin of a training that are not counted."""
_MB: Final = 1_000_000


@dataclass(frozen=True)
class Size:
    """How often things are repeated."""

    alternations: int
    rounds: int
    steps: int
    inside: int
    processes: int
    imports: int
    revisions: int
    rest_seconds: float


FULL: Final = Size(
    alternations=60, rounds=6, steps=120, inside=6, processes=7, imports=20, revisions=10, rest_seconds=15.0
)
QUICK: Final = Size(
    alternations=12, rounds=2, steps=60, inside=2, processes=2, imports=6, revisions=3, rest_seconds=3.0
)


def train(steps: int, *, watched: bool, meter: Meter | None = None) -> Clock:
    """Trains once in this process."""
    clock = Clock(meter.next_step if meter else None)
    callbacks: list[Any] = [clock, TrainWatchCallback()] if watched else [clock]
    with tempfile.TemporaryDirectory() as folder:
        make_trainer(Path(folder), steps, callbacks).train()
    return clock


def compare_whole(size: Size, *, hurry: bool = False) -> list[float]:
    """Trains in turns, with, without, without, with, and returns the ratios of the times that the steps took together.

    Args:
        size: How often.
        hurry: End the agents by a signal instead of waiting until they give the server up.
    """
    ratios = []
    for number in range(size.rounds):
        order = (True, False) if number % 2 == 0 else (False, True)
        took = {}
        for watched in order:
            took[watched] = sum(train(size.steps, watched=watched).periods[_WARM_UP:])
            end_agents(hurry=hurry)
        ratios.append(took[True] / took[False])
    return ratios


def compare_steps(size: Size, *, hurry: bool = False) -> list[Round]:
    """Trains once, with TrainWatch in every other block of steps."""
    with tempfile.TemporaryDirectory() as folder:
        rounds = alternate(Path(folder), size.alternations)
    end_agents(hurry=hurry)
    return rounds


def end_agents(*, hurry: bool) -> None:
    """Waits until no agent of this process is left: it would slow down the training without TrainWatch."""
    agents = [child for child in psutil.Process().children() if _is_agent(child)]
    if hurry:
        for agent in agents:
            agent.terminate()
    _, left = psutil.wait_procs(agents, timeout=20)
    for agent in left:
        agent.kill()


def _is_agent(process: psutil.Process) -> bool:
    try:
        return "trainwatch.agent" in process.cmdline()
    except psutil.Error:
        return False


@contextmanager
def variables(**values: str) -> Iterator[None]:
    """Sets environment variables for a while."""
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


# -- the figures -------------------------------------------------------------------------------------------------------


def measure_steps(report: Report, size: Size) -> None:
    """The time of a step, from outside: the same training with and without the callback."""
    situations: dict[str, dict[str, str]] = {
        "server running": {},
        "no server": {},
        "no agent": {"TRAINWATCH_AGENT": "0"},
    }
    steps: dict[str, list[Round]] = {}
    whole: dict[str, list[float]] = {}
    with socket.socket() as nobody:  # bound, and not listening: a server that is not there
        nobody.bind(("127.0.0.1", 0))
        situations["no server"]["TRAINWATCH_SERVER"] = f"http://127.0.0.1:{nobody.getsockname()[1]}"
        for name, values in situations.items():
            say(f"comparing steps, {name}")
            with variables(**values):
                steps[name] = compare_steps(size, hurry=name == "no server")
                whole[name] = compare_whole(size, hurry=name == "no server")
    everything = [one for rounds in steps.values() for one in rounds]
    report.many("step without TrainWatch", [one.plain for one in everything], "µs")
    report.many("added per step, wall clock", [one.added for one in everything], "µs", target=150)
    report.many("added per step, CPU time of the training thread", [one.added_cpu for one in everything], "µs")
    for name, rounds in steps.items():
        report.many(f"wall-clock ratio of neighbouring steps, {name}", [one.ratio for one in rounds], target=1.02)
    for name, ratios in whole.items():
        report.many(f"wall-clock ratio of whole trainings, {name}", ratios, target=1.02)


def measure_inside(report: Report, size: Size) -> None:
    """The time of a step, from inside: clocks around every function through which the training comes into our code."""
    say("clocks around our functions")
    whole, without, measuring = [], [], []
    begins, ends = [], []
    for _ in range(size.inside):
        meter = Meter([*places.entrances(), places.MEASURE])
        with meter.attached():
            train(size.steps, watched=True, meter=meter)
        end_agents(hurry=False)
        whole += meter.outermost()[_WARM_UP:]
        norms = meter.inclusive("GradientSignal.measure")[_WARM_UP:]
        measuring += norms
        without += [all_of_it - norm for all_of_it, norm in zip(meter.outermost()[_WARM_UP:], norms, strict=True)]
        begins.append(sum(meter.once["TrainWatchCallback.on_train_begin"]) / 1000)
        ends.append(sum(meter.once["TrainWatchCallback.on_train_end"]) / 1000)
    report.many("inside our code per step, with gradient norms", whole, "µs", target=150)
    report.many("inside our code per step, without gradient norms", without, "µs", target=50)
    report.many("of it measuring gradient norms", measuring, "µs")
    report.many("begin of the training", begins, "ms", note="once; starts the agent")
    report.many("end of the training", ends, "ms", note="once")


def measure_memory(report: Report, size: Size) -> None:
    """Memory that the callback adds to the training process, in fresh processes."""
    say("memory in fresh processes")
    added = []
    for number in range(size.processes):
        order = (True, False) if number % 2 == 0 else (False, True)
        found = {watched: probe("memory", *(["--with"] if watched else [])) for watched in order}
        added.append((found[True]["bytes"] - found[False]["bytes"]) / _MB)
    report.many("memory added to the training process", added, "MB", target=15)


def measure_imports(report: Report, size: Size) -> None:
    """What importing costs, in fresh processes that take turns with bare interpreters."""
    say("imports in fresh processes")
    bare, ours, callback = [], [], []
    with installed() as folder:
        for _ in range(size.imports):
            bare.append(_run_code("pass", folder))
            ours.append(_run_code("import trainwatch", folder))
        for _ in range(max(size.imports // 4, 2)):
            callback.append(_import_callback(folder))
    added = [(one - other) * 1000 for one, other in zip(ours, bare, strict=True)]
    report.many("import trainwatch", added, "ms", target=60, note="above a bare interpreter")
    report.many("import of the callback", callback, "ms", note="in a script that has imported transformers")


def measure_agent(report: Report, size: Size) -> None:
    """What the agent takes while nothing happens, and beside a training."""
    say("the agent beside a training, and at rest")
    found = probe("rest", "--seconds", str(size.rest_seconds), "--steps", "600")
    report.one("agent, CPU at rest", found["rest_share"] * 100, "% of a core")
    steps = found["steps_per_second"]
    report.one("agent, CPU beside the training", found["busy_share"] * 100, "% of a core", note=f"{steps:.0f} steps/s")
    report.one("agent, resident memory", found["resident"] / _MB, "MB")
    report.one("agent, memory of its own", found["own"] / _MB, "MB")


def compare_trackers(report: Report) -> None:
    """``on_log`` of other trackers in the same training, where they are installed."""
    for name, (module, _) in TRACKERS.items():
        if importlib.util.find_spec(module) is None:
            report.note(f"{name} is not installed: not compared.")
            continue
        say(f"on_log beside {name}")
        try:
            found = probe("tracker", "--name", name)
        except RuntimeError as error:
            report.note(f"{name} could not be measured: {str(error)[-300:]}")
            continue
        report.one(f"on_log, {name}", found["tracker"], "µs")
        report.one(f"on_log, TrainWatch beside {name}", found["trainwatch"], "µs")


def compare_revisions(report: Report, size: Size, revision: str) -> None:
    """What another revision costs, and this one: in processes that take turns, since machines are not always quiet."""
    say(f"beside {revision}, in turns")
    found: dict[str, dict[str, list[float]]] = {}
    with installed() as here, installed(revision) as there, variables(TRAINWATCH_AGENT="0"):
        sides = {"here": here, "there": there}
        for number in range(size.revisions):
            for side in sorted(sides, reverse=number % 2 == 1):
                inside = probe("inside", "--steps", "200", folder=sides[side])
                without = [whole - norms for whole, norms in zip(inside["whole"], inside["norms"], strict=True)]
                costs = found.setdefault(side, {})
                costs.setdefault("step, with gradient norms", []).append(statistics.median(inside["whole"]))
                costs.setdefault("step, without gradient norms", []).append(statistics.median(without))
                costs.setdefault("import of the callback", []).append(_import_callback(sides[side]))
    for cost, ours in found["here"].items():
        theirs = found["there"][cost]
        unit = "ms" if cost.startswith("import") else "µs"
        report.many(f"{cost}, {revision}", theirs, unit)
        report.many(f"{cost}, here", ours, unit)
        report.many(f"{cost}, ratio", [one / other for one, other in zip(ours, theirs, strict=True)])


def profile(size: Size) -> None:
    """Prints where the microseconds of a step go, function by function."""
    meter = Meter([*places.entrances(), *places.parts()])
    with meter.attached():
        for _ in range(size.inside):
            train(size.steps, watched=True, meter=meter)
            end_agents(hurry=False)
            meter.steps = [step for step in meter.steps if "TrainWatchCallback.on_train_begin" not in step]
    rows = []
    for name in meter.names:
        inclusive = statistics.median(meter.inclusive(name))
        if not inclusive:
            continue
        self_time = meter.exclusive(name)
        shown = (inclusive, statistics.median(self_time), quantile(self_time, 0.1), quantile(self_time, 0.9))
        rows.append((name, meter.calls(name), *shown))
    rows.sort(key=lambda row: -row[3])
    say("")
    head = ("function, median of a step", "calls", "whole µs", "own µs", "own p10", "own p90")
    table([head, *((row[0], f"{row[1]:.0f}", *(f"{value:.1f}" for value in row[2:])) for row in rows)])
    say(f"all of it: {statistics.median(meter.outermost()):.1f} µs; functions without a row are part of their callers")


# -- processes ---------------------------------------------------------------------------------------------------------


def probe(*arguments: str, folder: Path = ROOT) -> Any:
    """Runs a probe in a process of its own.

    Args:
        arguments: Which, and its options.
        folder: Where its packages lie.

    Raises:
        RuntimeError: It failed.
    """
    command = [sys.executable, "-m", "benchmarks.support.probe", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, cwd=folder, timeout=300, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(arguments)} failed: {done.stderr[-2000:]}")
    return json.loads(done.stdout.splitlines()[-1])


def _run_code(code: str, folder: Path) -> float:
    began = time.perf_counter()
    subprocess.run([sys.executable, "-c", code], check=True, cwd=folder, timeout=60)
    return time.perf_counter() - began


def _import_callback(folder: Path) -> float:
    """Returns the milliseconds that the import takes in a script that has imported transformers."""
    code = (
        "from transformers import Trainer, TrainerCallback, TrainingArguments\nimport time\n"
        "began = time.perf_counter()\nfrom trainwatch import TrainWatchCallback\n"
        "print((time.perf_counter() - began) * 1000)"
    )
    command = [sys.executable, "-c", code]
    return float(subprocess.run(command, check=True, cwd=folder, timeout=120, capture_output=True, text=True).stdout)


def main() -> None:
    """Measures everything."""
    parser = options(__doc__)
    parser.add_argument("--profile", action="store_true", help="only print where the time goes, function by function")
    parser.add_argument("--against", metavar="REVISION", help="only compare with another revision, say HEAD~1")
    chosen = parser.parse_args()
    size = QUICK if chosen.quick else FULL
    report = Report("overhead", chosen.quick)
    be_quiet()
    with tempfile.TemporaryDirectory() as folder:
        world = World(Path(folder))
        wanted = {name: value for name, value in world.environment.items() if name.startswith(("TRAINWATCH_", "OMP_"))}
        for name in ("TRAINWATCH_RUN_ID", "TRAINWATCH_AGENT", "TRAINWATCH_TOKEN", "TRAINWATCH_DISABLED"):
            os.environ.pop(name, None)
        try:
            if chosen.against:
                with variables(**wanted):
                    compare_revisions(report, size, chosen.against)
                report.finish()
                return
            world.start_server()
            with variables(**wanted, PYTHONPATH=str(ROOT)):
                train(2 * _WARM_UP, watched=True)
                end_agents(hurry=True)
                if chosen.profile:
                    profile(size)
                    return
                measure_steps(report, size)
                measure_inside(report, size)
                measure_memory(report, size)
                measure_imports(report, size)
                measure_agent(report, size)
                compare_trackers(report)
        finally:
            world.close()
    report.note("Times per step: medians, with the 10th and the 90th percentile. The step is a whole Trainer step.")
    report.finish()


if __name__ == "__main__":
    main()
