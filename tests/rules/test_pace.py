"""The rules about pace on whatever may come: processes that start and end, phases, disks, clocks, and odd values."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trainwatch.events import (
    AnyEvent,
    CheckpointSaved,
    Evaluated,
    Logged,
    PhaseEntered,
    ProcessGone,
    RunEnded,
    RunStarted,
    Sampled,
    StepEnded,
)
from trainwatch.rules import Engine
from trainwatch.rules.disk import DiskSpace
from trainwatch.rules.hang import Hang
from trainwatch.rules.idle_device import IdleDevice
from trainwatch.rules.padding import PaddingWaste
from trainwatch.rules.straggler import Straggler
from trainwatch.rules.throughput import DataBound, ThroughputDrop
from trainwatch.rules.wording import sentence

PACE = (PaddingWaste, ThroughputDrop, DataBound, Straggler, Hang, DiskSpace, IdleDevice)
QUICK = {
    "padding_waste": {"steps": 3},
    "throughput_drop": {"steps": 3, "for": 0},
    "data_bound": {"steps": 3, "for": 0},
    "straggler": {"steps": 2},
    "hang": {"least": 2, "least_beside": 2, "unknown": 4, "critical_seconds": 5},
    "gpu_idle": {"seconds": 2},
}
ODD = (math.nan, math.inf, -math.inf, 0.0, -0.0, -3.0, 5e-324, 1e308, 2.0**53)
METRICS = (
    "train/step_seconds",
    "train/data_seconds",
    "train/compute_seconds",
    "train/padded_tokens",
    "train/tokens",
    "train/batch_length",
    "train/samples",
)


def anything(chance: random.Random, count: int, odd: float) -> Iterator[tuple[AnyEvent, int | None]]:
    """Makes events of all types that the rules listen to, mostly plausible ones."""
    clock, step = 1e9, 0

    def number(high: float) -> float:
        return chance.choice(ODD) if chance.random() < odd else high * chance.random()

    def devices() -> dict[str, dict[str, float]]:
        return {
            "disk": {"disk/free": number(1e11), "checkpoint/size": number(1e10)},
            "cuda:0": {"device/utilization": number(0.1)},
        }

    for _ in range(count):
        clock += number(2.0) if chance.random() < 0.9 else chance.choice((-7200.0, 3600.0, 1e9))
        step = max(step + chance.choice((1, 1, 1, 0, -5)), 0)
        rank = chance.choice((None, 0, 0, 0, 1, 2))
        kind = chance.random()
        event: AnyEvent
        if kind < 0.5:
            values = {name: number(100.0) for name in METRICS if chance.random() < 0.9}
            event = StepEnded(time=clock, step=step, values=values)
        elif kind < 0.8:
            phase = chance.choice(("train", "train", "eval", "save", "idle", None))
            event = Sampled(time=clock, devices=devices(), rank=rank, step=step, phase=phase)
        elif kind < 0.9:
            now, left = chance.choice(("train", "eval", "save")), chance.choice(("train", "eval", "save", "load", None))
            event = PhaseEntered(time=clock, step=step, phase=now, left=left, seconds=number(60.0))
        elif kind < 0.95:
            reason = chance.choice(("schedule", "halt", "command"))
            event = CheckpointSaved(time=clock, step=step, path="x", reason=reason)
        elif kind < 0.96:
            arguments: dict[str, Any] = {"save_total_limit": chance.choice((None, 2, "?")), "dataloader_num_workers": 2}
            event = RunStarted(time=clock, name="x", first_step=step, max_steps=200, arguments=arguments)
        elif kind < 0.97:
            event = RunEnded(time=clock, step=step, outcome="finished")
        elif kind < 0.98:
            event = ProcessGone(time=clock, rank=rank or 0, pid=1)
        elif kind < 0.99:
            event = Evaluated(time=clock, step=step, values={})
        else:
            event = Logged(time=clock, step=step, values={})
        yield event, rank


@settings(max_examples=150, deadline=None)
@given(st.integers(0, 2**32), st.sampled_from([0.0, 0.02, 0.3, 1.0]), st.sampled_from([{}, QUICK]))
def test_nothing_raises_and_everything_found_can_be_said(seed: int, odd: float, options: dict[str, Any]) -> None:
    shown = list(anything(random.Random(seed), 400, odd))
    found = [report for engine in [Engine(PACE, options)] for one in shown for report in engine.observe(*one)]
    again = [report for engine in [Engine(PACE, options)] for one in shown for report in engine.observe(*one)]
    assert repr(found) == repr(again)
    for report in found:
        for language in ("en", "zh"):
            text = sentence(report.rule, report.parameters, language=language, step=report.step, rank=report.rank)
            assert text != report.rule.replace("_", " "), report


def test_the_odd_events_above_do_make_every_rule_speak() -> None:
    """Or the test above would say nothing."""
    spoke = {
        report.rule
        for seed in range(40)
        for engine in [Engine(PACE, QUICK)]
        for one in anything(random.Random(seed), 400, 0.02)
        for report in engine.observe(*one)
    }
    assert spoke >= {rule.id for rule in PACE} - {"straggler", "throughput_drop"}


@pytest.mark.parametrize("world_size", [2, 8])
def test_ranks_that_are_read_one_after_the_other_cost_no_memory(world_size: int) -> None:
    rule = Straggler(Straggler.options_type())
    for rank in range(world_size):
        rule.observe(RunStarted(time=0.0, name="x"), rank)
    values = {"train/step_seconds": 1.0, "train/compute_seconds": 0.5, "train/data_seconds": 0.1}
    for step in range(5000):
        assert not list(rule.observe(StepEnded(time=float(step), step=step, values=values), 0))
    assert len(rule._open) <= 33


def test_an_agent_that_reads_an_old_journal_sees_no_hang() -> None:
    """It samples now, and what it reads happened an hour ago."""
    engine = Engine((Hang,))
    engine.observe(RunStarted(time=0.0, name="x"), 0)
    engine.observe(PhaseEntered(time=0.0, phase="train", step=0), 0)
    for step in range(3000):
        engine.observe(StepEnded(time=float(step), step=step + 1), 0)
        if step % 500 == 0:
            assert engine.observe(Sampled(time=1e6 + step / 1000, devices={}, rank=0), 0) == []
    assert engine.observe(Sampled(time=1e6 + 10, devices={}, rank=0), 0) == []


def test_a_machine_that_slept_does_not_hang() -> None:
    engine = Engine((Hang,))
    engine.observe(RunStarted(time=0.0, name="x"), 0)
    for step in range(100):
        engine.observe(StepEnded(time=float(step), step=step + 1), 0)
        engine.observe(Sampled(time=float(step), devices={}, rank=0), 0)
    assert engine.observe(Sampled(time=100_000.0, devices={}, rank=0), 0) == []
    assert engine.observe(StepEnded(time=100_001.0, step=101), 0) == []
