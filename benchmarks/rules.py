"""How fast the rules judge: points a second with all rules on, what each rule costs, and the memory that they keep.

The events of a run as an agent sees them: steps with their values and two devices' memory, two samples of the rank and
one of the node for each, the Trainer's log, evaluations and checkpoints now and then. They are made beforehand; what is
measured is :meth:`trainwatch.rules.Engine.observe` alone, in seconds of one core.
"""

from __future__ import annotations

import gc
import math
import random
import statistics
import time
import tracemalloc
from collections.abc import Iterator
from typing import Any, Final

from benchmarks.support.report import Report, options, say
from trainwatch.events import (
    AnyEvent,
    CheckpointSaved,
    Evaluated,
    Logged,
    PhaseEntered,
    RunStarted,
    Sampled,
    StepEnded,
)
from trainwatch.rules import RULES, Engine
from trainwatch.rules.base import Rule

_GIB: Final = 2.0**30
_BLOCK: Final = 500
"""Steps that are timed at once."""

Shown = tuple[AnyEvent, int | None]


def run(steps: int, seed: int = 4) -> Iterator[Shown]:
    """Makes the events of a healthy run with batches of all lengths."""
    chance = random.Random(seed)
    clock = 1.7e9
    arguments = {"save_steps": 500, "logging_steps": 10, "eval_steps": 500, "dataloader_num_workers": 4}
    yield RunStarted(time=clock, name="benchmark", max_steps=steps, arguments=arguments), 0
    yield PhaseEntered(time=clock, phase="train", step=0, left="load"), 0
    for step in range(1, steps + 1):
        length = float(chance.choice((128, 256, 384, 512, 768, 1024)))
        worked = 0.2 + 0.0005 * length + 0.01 * chance.random()
        clock += worked + 0.01
        loss = 1.2 + 1.5 * math.exp(-step / 2000) + chance.gauss(0, 0.05)
        yield _step(step, clock, length, worked, loss, chance), 0
        for part in (0.1, 0.2):
            yield _sample(step, clock + part, chance), 0
        host = {"memory/device_used": 40 * _GIB, "host/cpu": 0.3, "memory/shared": 1e8, "host/oom_kills": 0.0}
        yield Sampled(time=clock + 0.2, devices={"host": host}), None
        if step % 10 == 0:
            log = {"train/loss_logged": loss, "train/grad_norm": 1.0, "train/learning_rate": 1e-4}
            yield Logged(time=clock, step=step, values=log), 0
        if step % 500 == 0:
            yield from _beside(step, clock, loss)
            clock += 60


def _step(step: int, clock: float, length: float, worked: float, loss: float, chance: random.Random) -> StepEnded:
    padded = 8 * length
    values = {
        "train/loss": loss,
        "train/grad_norm": 1.0 + 0.2 * chance.random(),
        "train/grad_norm_local": 1.0 + 0.2 * chance.random(),
        "train/learning_rate": 1e-4,
        "train/epoch": step / 1000,
        "train/step_seconds": worked,
        "train/data_seconds": 0.01,
        "train/compute_seconds": 0.9 * worked,
        "train/optimizer_seconds": 0.1 * worked,
        "train/tokens_per_second": 0.9 * padded / worked,
        "train/padding_share": 0.1,
        "train/mfu": 0.4,
        "train/micro_batches": 1.0,
        "train/nonfinite_micro_batches": 0.0,
        "train/samples": 8.0,
        "train/tokens": 0.9 * padded,
        "train/padded_tokens": padded,
        "train/batch_length": length,
        "train/supervised_tokens": 0.5 * padded,
    }
    peak = 20 * _GIB + 4e6 * padded / 8 + 1e6 * chance.random()
    device = {
        "memory/allocated": 20 * _GIB + 1e6 * chance.random(),
        "memory/reserved": 60 * _GIB,
        "memory/peak": peak,
        "memory/peak_reserved": 60 * _GIB,
        "memory/capacity": 80 * _GIB,
        "memory/retries": 0.0,
    }
    return StepEnded(time=clock, step=step, values=values, devices={"cuda:0": device})


def _sample(step: int, clock: float, chance: random.Random) -> Sampled:
    devices = {
        "cuda:0": {
            "memory/device_used": 62 * _GIB + 1e6 * chance.random(),
            "memory/process_used": 61 * _GIB,
            "memory/others_used": 0.0,
            "device/utilization": 0.95,
        },
        "cpu": {"memory/resident": 8 * _GIB + 1e6 * chance.random(), "memory/tree_resident": 12 * _GIB},
    }
    return Sampled(time=clock, devices=devices, rank=0, step=step, phase="train")


def _beside(step: int, clock: float, loss: float) -> Iterator[Shown]:
    yield PhaseEntered(time=clock, phase="eval", step=step, left="train", seconds=100.0), 0
    values = {"eval/loss": loss + 0.05, "eval/loss_reported": loss + 0.05, "eval/batches": 50.0}
    yield Evaluated(time=clock + 50, step=step, values=values), 0
    yield PhaseEntered(time=clock + 50, phase="save", step=step, left="eval", seconds=50.0), 0
    yield CheckpointSaved(time=clock + 59, step=step, path=f"out/checkpoint-{step}"), 0
    disk = {"disk/free": 2000 * _GIB, "disk/capacity": 4000 * _GIB, "checkpoint/size": 20 * _GIB}
    yield Sampled(time=clock + 59, devices={"disk": disk}), None
    yield PhaseEntered(time=clock + 60, phase="train", step=step, left="save", seconds=10.0), 0


def points_of(event: AnyEvent) -> int:
    """Returns how many points an event holds."""
    count = len(getattr(event, "values", ()))
    devices: dict[str, dict[str, float]] = getattr(event, "devices", {})
    return count + sum(map(len, devices.values()))


def series_of(events: list[Shown]) -> int:
    """Returns how many series a run has: metric, rank and device."""
    found: set[tuple[Any, ...]] = set()
    for event, rank in events:
        found.update((rank, "", name) for name in getattr(event, "values", ()))
        devices: dict[str, dict[str, float]] = getattr(event, "devices", {})
        found.update((rank, device, name) for device, values in devices.items() for name in values)
    return len(found)


def timed(rules: tuple[type[Rule[Any]], ...], blocks: list[list[Shown]]) -> list[float]:
    """Returns the seconds that the rules took for each block."""
    engine = Engine(rules)
    took = []
    gc.collect()
    for block in blocks:
        began = time.thread_time()
        for event, rank in block:
            engine.observe(event, rank)
        took.append(time.thread_time() - began)
    return took


def kept(rules: tuple[type[Rule[Any]], ...], events: list[Shown]) -> int:
    """Returns the bytes that an engine holds after the events."""
    Engine(rules)  # what is imported or computed once belongs to no run
    gc.collect()
    tracemalloc.start()
    try:
        engine = Engine(rules)
        for event, rank in events:
            engine.observe(event, rank)
        gc.collect()
        held = tracemalloc.get_traced_memory()[0]
        assert engine.alerts is not None
        return held
    finally:
        tracemalloc.stop()


def measure(report: Report, steps: int, rounds: int) -> None:
    """Measures everything.

    Args:
        report: Where the figures go.
        steps: How long the run is.
        rounds: How often each rule is measured alone.
    """
    say(f"making the events of {steps:,} steps")
    events = list(run(steps))
    cuts = [number for number, (event, _) in enumerate(events) if type(event) is StepEnded][::_BLOCK]
    blocks = [events[low:high] for low, high in zip(cuts, [*cuts[1:], len(events)], strict=True)]
    counts = [sum(points_of(event) for event, _ in block) for block in blocks]
    points = sum(counts)
    say(f"all {len(RULES)} rules over {points:,} points")
    whole = timed(RULES, blocks)
    rates = [count / seconds for count, seconds in zip(counts, whole, strict=True)]
    report.many("points a second, all rules on", rates, "1/s", note=f"{len(RULES)} rules, {points:,} points")
    each = [1e6 * seconds / count for count, seconds in zip(counts, whole, strict=True)]
    report.many("a point, all rules on", each, "µs", target=5.0, note="5 µs are 200,000 points a second")
    per_step = [1e6 * seconds / _BLOCK for seconds in whole[:-1]]
    report.many("a step with its samples and logs", per_step, "µs", note=f"{points / steps:.0f} points")
    say("each rule alone")
    none = min(sum(timed((), blocks)) for _ in range(rounds))
    report.one("of it the engine without a rule", 1e6 * none / steps, "µs a step")
    alone = {rule.id: min(sum(timed((rule,), blocks)) for _ in range(rounds)) for rule in RULES}
    costs = {name: max(seconds - none, 0.0) for name, seconds in alone.items()}
    for name, seconds in sorted(costs.items(), key=lambda item: -item[1]):
        report.one(f"of it {name}", 1e6 * seconds / steps, "µs a step")
    say("memory")
    series = series_of(events)
    tenth = events[: len(events) // 10]
    early, late = kept(RULES, tenth), kept(RULES, events)
    report.one("memory of a run and series", late / series / 1000, "kB", target=20.0, note=f"{series} series")
    report.one("memory of a run", late / 1000, "kB", note=f"after {steps:,} steps")
    report.one("memory of a run, after a tenth of it", early / 1000, "kB", note="it is bounded")
    heaviest = sorted(((kept((rule,), tenth), rule.id) for rule in RULES), reverse=True)[:5]
    report.note("Most memory: " + ", ".join(f"{name} {held / 1000:.0f} kB" for held, name in heaviest) + ".")
    report.note(f"Seconds are of the core's own time. The median of {_BLOCK} steps is {statistics.median(whole):.3f}.")


def main() -> None:
    """Measures."""
    chosen = options(__doc__).parse_args()
    report = Report("rules", chosen.quick)
    measure(report, steps=4_000 if chosen.quick else 30_000, rounds=1 if chosen.quick else 3)
    report.finish()


if __name__ == "__main__":
    main()
