"""Scenario S2: memory saws, the device is nearly full, and the rare long batch is the end. Seen, named, acted upon.

A real Trainer with its own shuffling trains on a CPU; its memory is resident memory, and the limit is set so that all
but the longest batch fit. The card that a neighbour uses, too, is made of readings: there is no GPU here.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Final

import pytest
from msgspec.structs import replace

from tests.training.long_batches import LONGEST, SHARP, run
from tests.training.tiny import of
from trainwatch.events import AnyEvent, FindingRaised, OtherProcess, RunStarted, Sampled, StepEnded
from trainwatch.rules import RULES, Engine
from trainwatch.rules.wording import sentence

pytestmark = pytest.mark.slow

STEPS: Final = 300


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> list[AnyEvent]:
    folder: Path = tmp_path_factory.mktemp("s2")
    return run(folder, steps=STEPS, glibc=SHARP, shuffle=1)


def peaks(recorded: list[AnyEvent]) -> list[float]:
    return [event.devices["cpu"]["memory/peak"] for event in of(StepEnded, recorded)]


def longest(recorded: list[AnyEvent]) -> StepEnded:
    step: StepEnded = max(of(StepEnded, recorded), key=lambda event: event.values["train/batch_length"])
    return step


def judged(recorded: list[AnyEvent], capacity: float) -> list[FindingRaised]:
    engine = Engine(RULES)
    found: list[FindingRaised] = []
    for event in recorded:
        if isinstance(event, StepEnded):
            event = replace(event, devices={"cpu": {**event.devices["cpu"], "memory/capacity": capacity}})
        found += engine.observe(event, 0)
    return found


def says(found: FindingRaised, language: str = "en") -> str:
    return sentence(found.rule, found.parameters, step=found.step, rank=found.rank, language=language)


@pytest.fixture(scope="module")
def findings(recorded: list[AnyEvent]) -> list[FindingRaised]:
    return judged(recorded, 0.9 * max(peaks(recorded)))


def of_rule(findings: list[FindingRaised], rule: str) -> list[FindingRaised]:
    return [found for found in findings if found.rule == rule]


# -- sees ------------------------------------------------------------------------------------------------------------


def test_it_sees_the_peak_and_the_batch_of_every_step(recorded: list[AnyEvent]) -> None:
    steps = of(StepEnded, recorded)
    assert [event.step for event in steps] == list(range(1, len(steps) + 1))
    for event in steps:
        assert event.devices["cpu"]["memory/peak"] > 0
        values = event.values
        assert values["train/padded_tokens"] == values["train/samples"] * values["train/batch_length"]
        assert 0 < values["train/tokens"] <= values["train/padded_tokens"]
    assert max(peaks(recorded)) > 1.25 * sorted(peaks(recorded))[-2], "the rare long batch is the peak"


def test_it_sees_what_others_hold_of_the_same_device() -> None:
    engine = Engine(RULES)
    engine.observe(RunStarted(time=0.0, name="shared"), 0)
    found: list[FindingRaised] = []
    gib = 2.0**30
    for step in range(1, 60):
        values = {"memory/peak": 60 * gib, "memory/allocated": 50 * gib, "memory/reserved": 60 * gib}
        found += engine.observe(
            StepEnded(time=float(step), step=step, devices={"cuda:0": {**values, "memory/capacity": 79.3 * gib}}), 0
        )
        card = {"memory/device_used": 78 * gib, "memory/others_used": 15 * gib}
        others = [OtherProcess(device="cuda:0", pid=77, name="python", user="somebody", used=int(15 * gib))]
        found += engine.observe(
            Sampled(time=step + 0.5, rank=0, devices={"cuda:0": card}, others=others if step == 1 else None), 0
        )
    assert of_rule(found, "other_processes")
    (verdict,) = of_rule(found, "memory_verdict")
    assert "Other processes hold 15 GiB (19 %) of the device" in says(verdict)
    assert "keeping other processes off the device (saves 15 GiB)" in says(verdict)


# -- names -----------------------------------------------------------------------------------------------------------


def test_it_names_the_padding_behind_the_swing(recorded: list[AnyEvent]) -> None:
    # A run that saws: its own steps, of which the long batch comes again and again.
    again = longest(recorded)
    steps = of(StepEnded, recorded)
    made: list[AnyEvent] = [event for event in recorded if isinstance(event, RunStarted)]
    made += [
        replace(again if step % 9 == 0 else steps[step % 100 + 2], step=step, time=steps[0].time + step)
        for step in range(1, 120)
    ]
    verdict = of_rule(judged(made, 2 * max(peaks(recorded))), "memory_verdict")[0]
    assert verdict.severity == "info"
    told = re.search(r"(\d+) % of the memory swing is explained by padded tokens", says(verdict))
    assert told is not None
    assert int(told[1]) >= 90
    assert re.search(r"about every 9 steps", says(verdict))
    padding = re.search(r"(\d+) % of the tokens are padding", says(verdict))
    assert padding is not None
    share = 1 - sum(event.values["train/tokens"] for event in of(StepEnded, made)[2:50]) / sum(
        event.values["train/padded_tokens"] for event in of(StepEnded, made)[2:50]
    )
    assert int(padding[1]) == pytest.approx(100 * share, abs=1)


def test_it_names_the_longest_sample_before_it_comes(recorded: list[AnyEvent], findings: list[FindingRaised]) -> None:
    first = of_rule(findings, "peak_forecast")[0]
    at = longest(recorded).step
    text = says(first)
    assert f"The longest sample has {LONGEST:,} tokens and has not been seen yet: that batch will need" in text
    assert re.search(r"will need [\d.]+ [GM]iB \([\d.]+–[\d.]+ [GM]iB\) of [\d.]+ [GM]iB on cpu", text)
    assert f"at step {at}" in text
    assert f"最长的样本有 {LONGEST} 个 token" in says(first, "zh")


# -- acts ------------------------------------------------------------------------------------------------------------


def test_it_foresees_the_end_long_before_the_batch_arrives_with_an_interval(
    recorded: list[AnyEvent], findings: list[FindingRaised]
) -> None:
    step, true = longest(recorded).step, max(peaks(recorded))
    first = of_rule(findings, "peak_forecast")[0]
    assert first.step is not None
    assert first.step < 0.5 * step
    assert first.parameters["low"] <= true <= first.parameters["high"]
    halts = [found for found in of_rule(findings, "peak_forecast") if found.action == "halt"]
    assert halts
    assert all(found.step is not None and step - 50 <= found.step < step for found in halts)


def test_the_remedy_that_it_proposes_would_have_helped(recorded: list[AnyEvent], findings: list[FindingRaised]) -> None:
    warned = of_rule(findings, "peak_forecast")[-2].parameters
    limit, cap = warned["limit"], warned["cap"]
    assert cap < LONGEST
    shorter = [event for event in of(StepEnded, recorded)[2:] if event.values["train/batch_length"] <= cap]
    assert all(event.devices["cpu"]["memory/peak"] <= limit for event in shorter)


def test_what_a_remedy_saves_is_what_it_saves(recorded: list[AnyEvent]) -> None:
    steps = of(StepEnded, recorded)
    again = longest(recorded)
    made: list[AnyEvent] = [event for event in recorded if isinstance(event, RunStarted)]
    made += [
        replace(again if step % 9 == 0 else steps[step % 100 + 2], step=step, time=steps[0].time + step)
        for step in range(1, 120)
    ]
    verdict = of_rule(judged(made, 2 * max(peaks(recorded))), "memory_verdict")[0]
    remedies: dict[str, Any] = {remedy["kind"]: remedy for remedy in verdict.parameters["remedies"]}
    cap = remedies["length_cap"]
    below = [event for event in steps[2:] if 0.95 * cap["value"] <= event.values["train/batch_length"] <= cap["value"]]
    assert below
    without = max(event.devices["cpu"]["memory/peak"] for event in below)
    assert cap["saves"] == pytest.approx(max(peaks(recorded)) - without, rel=0.1)
    assert {"smaller_batch", "gradient_checkpointing"} <= set(remedies)
    assert remedies["gradient_checkpointing"]["saves"] is None, "what was not measured has no figure"


def test_nothing_is_said_where_the_longest_batch_fits(recorded: list[AnyEvent]) -> None:
    assert of_rule(judged(recorded, 1.05 * max(peaks(recorded))), "peak_forecast") == []
