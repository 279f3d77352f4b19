"""What runs on the stand-in machine, in a process of its own; see :mod:`tests.probes.machine`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import msgspec

from tests.patience import PATIENCE
from tests.probes.machine import describe
from trainwatch.agent.ranks import RankState
from trainwatch.agent.sample import Sampler
from trainwatch.events import Event, PhaseEntered, RunStarted, StepEnded
from trainwatch.journal import Source
from trainwatch.probes.gpu import Circle, DeviceProbe
from trainwatch.probes.nvml import Nvml
from trainwatch.probes.visible import visible

WORLD = Path(os.environ.get("STANDIN_NVML", "world"))


def plain(event: Any) -> Any:
    return msgspec.to_builtins(event)


def read(
    story: list[tuple[float, str]],
    environment: dict[str, Any],
    names: list[str],
    pid: int = 4_200_000,
    ranks: list[int] | None = None,
    numbered: bool = True,
    sharing: dict[str, int] | None = None,
) -> list[Any]:
    """Reads one process's devices at each time of a story, while the machine changes."""
    nvml, found = Nvml(), []
    probe = DeviceProbe(nvml, pid, visible(environment, names))
    circle = Circle(ranks or [pid], numbered, sharing or {})
    for now, lines in story:
        describe(WORLD, lines)
        found.append(plain(probe.read(now, circle)) if nvml.ready(now) else None)
    return found


def without_library() -> list[Any]:
    nvml = Nvml()
    ready = nvml.ready(0.0)
    answers = [nvml.ask("nvmlDeviceGetCount"), nvml.ask("no_such_function")]
    probe = DeviceProbe(nvml, os.getpid(), visible({}, ["cuda:0"]))
    return [ready, *answers, probe.read(0.0, Circle([], True))]


def every_failure(
    world: str, names: list[str], environment: dict[str, Any], functions: list[str], codes: list[int], pid: int
) -> list[list[Any]]:
    """Reads with each function failing in each way: from the start, in the middle, and when all is well again."""
    found = []
    for function in functions:
        for code in codes:
            broken = f"{world}\nfail {function} {code}"
            described = visible(environment, names)
            circle = Circle([pid], True)
            describe(WORLD, broken)
            fresh = Nvml()
            first = DeviceProbe(fresh, pid, described).read(0.0, circle) if fresh.ready(0.0) else ({}, {})
            describe(WORLD, world)
            nvml = Nvml()
            probe = DeviceProbe(nvml, pid, described)
            nvml.ready(0.0)
            probe.read(0.0, circle)
            describe(WORLD, broken)
            middle = probe.read(1.0, circle) if nvml.ready(1.0) else ({}, {})
            describe(WORLD, world)
            later = ({}, {})
            for now in (62.0, 123.0):  # one minute until it is tried again, and one if that was just missed
                later = probe.read(now, circle) if nvml.ready(now) else ({}, {})
            found.append([function, code, plain(first), plain(middle), plain(later)])
    return found


@contextmanager
def child(code: str = "print(flush=True); input()") -> Iterator[int]:
    """A process that waits; yields its number, and ends it afterwards."""
    process = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        assert process.stdout
        line = process.stdout.readline().strip()
        yield int(line) if line else process.pid
    finally:
        process.communicate(b"\n", timeout=PATIENCE)


_WITH_CHILD = (
    "import subprocess, sys; p = subprocess.Popen([sys.executable, '-c', 'input()'], stdin=subprocess.PIPE);"
    "print(p.pid, flush=True); input(); p.communicate(b'\\n')"
)


def rank_state(number: int, pid: int, environment: dict[str, Any]) -> RankState:
    state = RankState(Source("run", "node", f"rank{number}~00000000", WORLD.parent), number)
    state.observe(RunStarted(time=0.0, name="a run", pid=pid, environment=environment))
    return state


def sample(environments: list[dict[str, Any]], story: list[list[Any]], numbered: bool = True) -> list[Any]:
    """Samples a node with ranks that are real processes.

    In the machine's lines and in the expected values ``@0`` is the process of rank 0, ``@child`` a process that it
    started, ``@other`` somebody else's. An item of the story is [time, lines, {rank: events}].
    """
    with ExitStack() as stack:
        with_child = subprocess.Popen(
            [sys.executable, "-c", _WITH_CHILD], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        stack.callback(with_child.communicate, "\n", timeout=PATIENCE)
        assert with_child.stdout
        offspring = int(with_child.stdout.readline())
        pids = [with_child.pid, *(stack.enter_context(child()) for _ in environments[1:])]
        names = {f"@{index}": pid for index, pid in enumerate(pids)}
        names |= {"@child": offspring, "@other": stack.enter_context(child())}
        states = [rank_state(i, pid, env) for i, (pid, env) in enumerate(zip(pids, environments, strict=True))]
        sampler = Sampler()
        sampler._numbered = numbered
        found = []
        for now, lines, events in story:
            for rank, happened in events.items():
                for event in happened:
                    states[int(rank)].observe(make(event))
            for name, pid in names.items():
                lines = lines.replace(name, str(pid))
            describe(WORLD, lines)
            found.append(plain(sampler.sample(states, now, now)))
        back = {pid: name for name, pid in names.items()}
        for samples in found:
            for event in samples:
                for other in event.get("others") or []:
                    other["pid"] = back.get(other["pid"], other["pid"])
        return found


def make(event: dict[str, Any]) -> Event:
    fields = dict(event)
    kinds: dict[str, type[Event]] = {"step": StepEnded, "phase": PhaseEntered}
    return kinds[fields.pop("kind")](**fields)


if __name__ == "__main__":
    sys.stdout.write(json.dumps(globals()[sys.argv[1]](**json.loads(sys.argv[2]))))
