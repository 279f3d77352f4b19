"""The longest batch comes late and would not fit: foreseen from the first tenth of the steps of a real training."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Final

import pytest
from msgspec.structs import replace

from tests.training.long_batches import LONGEST, SHARP, USUAL, run
from tests.training.tiny import of
from trainwatch.events import AnyEvent, FindingRaised, StepEnded
from trainwatch.forecast.length import Batch, LengthFit, Prediction
from trainwatch.forecast.upcoming import largest_micro_batch
from trainwatch.rules import RULES, Engine
from trainwatch.rules.peak_forecast import PeakForecast

STEPS: Final = 300
TENTH: Final = STEPS // 10


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[AnyEvent]]:
    """The same training with a glibc that gives memory back, and with its defaults; side by side, to save time."""
    folder = tmp_path_factory.mktemp("trainings")
    with ThreadPoolExecutor() as pool:
        runs = {
            name: pool.submit(run, folder / name, steps=STEPS, glibc=glibc)
            for name, glibc in (("sharp", SHARP), ("defaults", {}))
        }
    return {name: done.result() for name, done in runs.items()}


def longest_step(found: list[AnyEvent]) -> StepEnded:
    step: StepEnded = next(event for event in of(StepEnded, found) if event.values["train/batch_length"] == LONGEST)
    return step


def foreseen(found: list[AnyEvent], steps: int) -> Prediction:
    """What the fit says of the longest batch after so many steps."""
    fit = LengthFit()
    for event in of(StepEnded, found)[2:steps]:
        batch = largest_micro_batch(event.values)
        assert batch is not None
        fit.add(batch, event.devices["cpu"]["memory/peak"])
    prediction = fit.predict(Batch(2.0 * LONGEST, float(LONGEST)))
    assert prediction is not None
    return prediction


def judged(found: list[AnyEvent], capacity: float, *, all_rules: bool = False) -> list[FindingRaised]:
    """What the rules say of a run on a machine with that much memory."""
    engine = Engine(RULES if all_rules else (PeakForecast,))
    reports: list[FindingRaised] = []
    for event in found:
        if isinstance(event, StepEnded):
            event = replace(event, devices={"cpu": {**event.devices["cpu"], "memory/capacity": capacity}})
        reports += engine.observe(event, 0)
    return [report for report in reports if report.rule == PeakForecast.id]


def test_the_peak_is_foreseen_from_the_first_tenth_within_a_twentieth(trained: dict[str, list[AnyEvent]]) -> None:
    found = trained["sharp"]
    true = longest_step(found)
    peak = true.devices["cpu"]["memory/peak"]
    usual = max(event.devices["cpu"]["memory/peak"] for event in of(StepEnded, found)[:TENTH])
    assert true.step >= 0.4 * STEPS
    assert peak > 1.25 * usual, "nothing of it shows in the steps before"
    prediction = foreseen(found, TENTH)
    assert prediction.peak == pytest.approx(peak, rel=0.05)
    assert prediction.reach > 2.5
    assert foreseen(found, true.step - 1).error <= prediction.error


def test_it_is_said_with_its_step_and_acted_upon_when_it_is_near(trained: dict[str, list[AnyEvent]]) -> None:
    found = trained["sharp"]
    true = longest_step(found)
    peak = true.devices["cpu"]["memory/peak"]
    first, *rest = judged(found, 0.9 * peak)
    assert first.step is not None
    assert first.step <= TENTH
    assert (first.severity, first.action) == ("warning", "notify")
    assert first.parameters["at"] == true.step
    assert first.parameters["length"] == LONGEST
    assert first.parameters["need"] == pytest.approx(peak, rel=0.05)
    assert first.parameters["low"] > first.parameters["limit"] == 0.9 * peak
    # The cap that it names would really have fitted: the batches below it did.
    assert USUAL < first.parameters["cap"] < LONGEST
    acted = [report for report in rest if report.action == "halt"]
    assert acted
    assert acted[0].severity == "critical"
    assert acted[0].step is not None
    assert true.step - 50 <= acted[0].step < true.step


def test_nothing_is_said_of_a_batch_that_fits(trained: dict[str, list[AnyEvent]]) -> None:
    for name, found in trained.items():
        peak = longest_step(found).devices["cpu"]["memory/peak"]
        assert judged(found, 1.01 * peak) == [], name


def test_with_what_glibc_keeps_the_interval_says_how_bad_it_is(trained: dict[str, list[AnyEvent]]) -> None:
    peaks = {name: longest_step(found).devices["cpu"]["memory/peak"] for name, found in trained.items()}
    sharp, blurred = (foreseen(trained[name], TENTH) for name in ("sharp", "defaults"))
    assert blurred.error > 2 * sharp.error
    assert blurred.low <= peaks["defaults"] <= blurred.high
    # Too uncertain for that limit, and it knows.
    assert all(report.severity != "critical" for report in judged(trained["defaults"], 0.95 * peaks["defaults"]))
