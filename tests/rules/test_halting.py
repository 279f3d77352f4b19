"""What is said of a run that a rule has halted, and where it says to go on from."""

from __future__ import annotations

from typing import Any

import pytest

from trainwatch.rules.halting import FOUND_AT, halt_sentence, spoilt_since

GROWTH: dict[str, Any] = {
    "device": "cpu",
    "bytes_per_step": 2.0**21,
    "steps_left": 57,
    "steps_low": 56,
    "steps_high": 58,
    "oom_step": 424,
    "limit": 2.0**30,
    "window": 176,
    FOUND_AT: 367,
}
DIVERGED: dict[str, Any] = {"value": 80.0, "best": 1.0, "rise": 79.0, "since": 122, "values": 20, FOUND_AT: 134}


def test_a_run_whose_weights_are_good_goes_on_from_its_last_checkpoint() -> None:
    said = halt_sentence("oom_forecast", {**GROWTH, "checkpoint": "out/checkpoint-369"}, step=369)
    assert said.startswith("Halted at step 369: memory on cpu grows 2 MiB a step")
    assert said.endswith("Resume from out/checkpoint-369.")
    assert spoilt_since("oom_forecast", GROWTH) is None


@pytest.mark.parametrize(
    ("checkpoint", "advice"),
    [
        (
            "out/checkpoint-135",
            "out/checkpoint-135 keeps the state as it is; to train on, resume from a checkpoint up to step 122.",
        ),
        ("", "Resume from a checkpoint up to step 122."),
    ],
)
def test_weights_that_have_suffered_are_not_what_to_go_on_from(checkpoint: str, advice: str) -> None:
    parameters = {**DIVERGED, "checkpoint": checkpoint}
    said = halt_sentence("divergence", parameters, step=135)
    assert said.endswith(advice)
    assert "Resume from out" not in said
    assert "第 122 步或更早的检查点" in halt_sentence("divergence", parameters, step=135, language="zh")


@pytest.mark.parametrize("parameters", [{}, {"since": None}, {"since": "soon"}])
def test_evidence_that_lacks_the_step_spoils_nothing(parameters: dict[str, Any]) -> None:
    assert spoilt_since("divergence", parameters) is None
    assert halt_sentence("divergence", {**parameters, FOUND_AT: 3}, step=4)
