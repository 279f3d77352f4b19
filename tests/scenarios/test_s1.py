"""Scenario S1: with a batch of 2 eval_loss is NaN and memory grows until it ends; with 1 all is well.

Two real Trainings under a real memory limit. The version that is to blame can't be installed everywhere, and needs a
GPU: what was recorded is judged once more as if it had been that one.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
from msgspec.structs import replace

from tests.e2e.leaking import MIB, Outcome, recorded, run
from tests.e2e.memory_limit import why_not
from tests.e2e.world import World
from tests.training.tiny import of
from trainwatch.agent.sync import sync
from trainwatch.events import AnyEvent, Evaluated, FindingRaised, RunEnded, RunStarted, StepEnded
from trainwatch.rules import RULES, Engine
from trainwatch.rules.wording import sentence
from trainwatch.settings import load

REASON = why_not()
pytestmark = [pytest.mark.slow, pytest.mark.skipif(bool(REASON), reason=REASON)]

LEAK: Final = 41
HEADROOM: Final = 5000 * MIB


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("s1")


@pytest.fixture(scope="module")
def sick(folder: Path) -> Outcome:
    (folder / "sick").mkdir()
    return run(
        folder / "sick", leak=LEAK, headroom=HEADROOM, pause=0.06, watch="halt", batch=2, bad_evaluation=7, name="sick"
    )


@pytest.fixture(scope="module")
def events(sick: Outcome, folder: Path) -> list[AnyEvent]:
    return recorded(folder / "sick")


@pytest.fixture(scope="module")
def world(sick: Outcome, folder: Path) -> Iterator[World]:
    """A server that knows both runs."""
    (folder / "healthy").mkdir()
    healthy = run(
        folder / "healthy", leak=0, headroom=HEADROOM, pause=0.02, watch="halt", steps=60, batch=1, name="healthy"
    )
    assert healthy.ended is not None
    assert healthy.ended.outcome == "finished"
    assert {found.severity for found in healthy.findings} <= {"info"}
    (folder / "server").mkdir()
    made = World(folder / "server")
    try:
        made.start_server()
        for name in ("sick", "healthy"):
            sync(load({"TRAINWATCH_HOME": str(folder / name / "home"), "TRAINWATCH_SERVER": made.url}))
        yield made
    finally:
        made.close()


def firing(findings: list[FindingRaised], rule: str) -> list[FindingRaised]:
    return [found for found in findings if found.rule == rule and found.state == "firing"]


def says(found: FindingRaised, language: str = "en") -> str:
    return sentence(found.rule, found.parameters, step=found.step, rank=found.rank, language=language)


# -- sees ------------------------------------------------------------------------------------------------------------


def test_it_counts_the_evaluation_batches_that_the_trainer_hides(events: list[AnyEvent]) -> None:
    evaluated = of(Evaluated, events)
    assert evaluated
    for event in evaluated:
        assert (event.values["eval/nonfinite_batches"], event.values["eval/batches"]) == (7, 10)


def test_it_sees_the_growth_in_bytes_a_step_and_where_it_will_end(sick: Outcome, events: list[AnyEvent]) -> None:
    forecasts = firing(sick.findings, "oom_forecast")
    assert forecasts
    for found in forecasts:
        assert found.parameters["bytes_per_step"] == pytest.approx(LEAK * MIB, rel=0.15)
        assert found.parameters["oom_step"] > sick.steps
    troughs = [event.devices["cpu"]["memory/resident"] for event in of(StepEnded, events)]
    assert troughs[-1] - troughs[len(troughs) // 2] > 0.9 * LEAK * MIB * (len(troughs) // 2 - 1)


# -- names -----------------------------------------------------------------------------------------------------------


def test_it_names_what_goes_wrong(sick: Outcome) -> None:
    assert "NaN in 7 of 10 batches since step 10" in says(firing(sick.findings, "nonfinite_eval_loss")[0])
    forecast = says(firing(sick.findings, "oom_forecast")[0])
    assert "MiB a step" in forecast
    assert "does not come back" in forecast
    assert "OOM in about" in forecast
    assert "41" in says(firing(sick.findings, "memory_growth")[-1])


def test_it_names_a_version_that_is_known_for_this(events: list[AnyEvent]) -> None:
    engine = Engine(RULES)
    found: list[FindingRaised] = []
    for event in events:
        if isinstance(event, RunStarted):
            packages = {**event.environment["packages"], "torch": "2.5.0+cu118"}
            event = replace(event, environment={**event.environment, "packages": packages, "device": "cuda:0"})
        if not isinstance(event, FindingRaised):
            found += engine.observe(event, 0)
    known = [says(one) for one in firing(found, "known_versions")]
    assert any("torch 2.5.0+cu118 is known for this" in text and "2.4.1" in text for text in known)


def test_beside_the_healthy_run_it_says_what_differs_and_where_memory_parts(world: World) -> None:
    compared = world.get("runs/sick/compare/healthy")
    setup = {one["key"]: (one["ours"], one["theirs"]) for one in compared["setup"]}
    assert setup["arguments.per_device_train_batch_size"] == ("2", "1")
    curves: dict[tuple[str, str], Any] = {(one["metric"], one["device"]): one for one in compared["curves"]}
    # 41 MiB of some 500 are more than noise from the first step on, or the second.
    assert curves["memory/resident", "cpu"]["step"] <= 3
    assert curves["memory/resident", "cpu"]["ours"] > 2 * curves["memory/resident", "cpu"]["theirs"]


# -- acts ------------------------------------------------------------------------------------------------------------


def test_it_saves_a_checkpoint_and_halts_before_the_memory_ends(sick: Outcome, world: World) -> None:
    assert sick.halted, sick
    page = world.run("sick")
    assert page["state"] == "halted"
    assert page["end"]["resume_from"].endswith(f"checkpoint-{sick.steps}")
    assert "a step and does not come back" in page["end"]["sentence"]


def test_it_alerts(world: World) -> None:
    alerts = {alert["rule"]: alert for alert in world.run("sick")["alerts"]}
    assert alerts["oom_forecast"]["severity"] == "critical"
    assert {"nonfinite_eval_loss", "memory_growth"} <= set(alerts)
    assert not [alert for alert in world.run("healthy")["alerts"] if alert["severity"] != "info"]


def test_the_run_says_itself_why_it_was_halted(sick: Outcome) -> None:
    assert isinstance(sick.ended, RunEnded)
    assert sick.ended.parameters["checkpoint"].endswith(f"checkpoint-{sick.steps}")
