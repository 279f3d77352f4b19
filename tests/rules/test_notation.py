"""The notation of cases: what it means, and what is refused."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.rules.notation import START, Case, CaseError, played, read, series
from tests.rules.test_cases import judge
from trainwatch.events import FindingRaised, PhaseEntered, Sampled, StepEnded
from trainwatch.rules.base import Options, Rule


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("2.5", [2.5]),
        (3, [3.0]),
        ("2.0-0.5x3 20", [2.0, 1.5, 1.0, 20.0]),
        ("1.5x2 _ _x2", [1.5, 1.5, None, None, None]),
        ("1*2x4", [1.0, 2.0, 4.0, 8.0]),
        ("-1+1x3", [-1.0, 0.0, 1.0]),
        ("1e3 -Inf Inf", [1000.0, -math.inf, math.inf]),
        ("2Gi+1Mix2", [2.0**31, 2.0**31 + 2.0**20]),
        ("(1 2x2)x2 9", [1.0, 2.0, 2.0, 1.0, 2.0, 2.0, 9.0]),
    ],
)
def test_a_series(text: Any, values: list[float | None]) -> None:
    assert series(text) == values


def test_noise_is_the_same_each_time_and_as_wide_as_said() -> None:
    values = [value or 0.0 for value in series("5~0.5x2000", "a")]
    assert values == series("5~0.5x2000", "a")
    assert values != series("5~0.5x2000", "b")
    mean = sum(values) / 2000
    assert mean == pytest.approx(5, abs=0.05)
    assert math.sqrt(sum((value - mean) ** 2 for value in values) / 2000) == pytest.approx(0.5, rel=0.1)


def test_nan_stays() -> None:
    (value,) = series("NaN")
    assert value is not None
    assert math.isnan(value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("2.0-0.01", "but how often"),
        ("2.0x", "cannot read '2.0x'"),
        ("much", "cannot read 'much'"),
        ("_+1x3", "cannot read"),
        ("", "empty series"),
    ],
)
def test_a_wrong_series_is_refused_with_a_sentence(text: str, message: str) -> None:
    with pytest.raises(CaseError, match=message):
        series(text)


def case(**fields: Any) -> Case:
    return msgspec.convert({"name": "made", "silent": True, **fields}, Case)


def test_what_looks_like_another_number_to_yaml_is_a_series(tmp_path: Path) -> None:
    path = tmp_path / "loss.yaml"
    path.write_text("cases: [{name: a, silent: true, steps: {a: 0x3, b: 010, c: 1.5, d: 1e3, e: no}}]", "utf-8")
    with pytest.raises(CaseError, match="cannot read 'no'"):
        read(path)
    path.write_text("cases: [{name: a, silent: true, steps: {a: 0x3, b: 010, c: 1.5, d: 1e3}}]", "utf-8")
    (made,) = read(path)
    assert [series(text) for text in made.steps.values()] == [[0.0] * 3, [10.0], [1.5], [1000.0]]


def test_a_case_is_played_in_the_order_of_time() -> None:
    made = case(
        steps={"train/loss": "1x2 _ 4"},
        memory={"cuda:0 memory/peak": "7x2"},
        evals={"every": 2, "eval/loss": "0.5"},
        samples={"every": 2, "cuda:0 memory/device_used": "5x3", "host memory/device_used": "6"},
        events=[{"at": 2, "type": "phase_entered", "phase": "eval", "after": 0.5}],
        seconds_per_step=1,
    )
    shown = [(type(event).__name__, round(event.time - START, 3), rank) for event, rank in played(made)]
    assert shown == [
        ("RunStarted", 0, 0),
        ("Sampled", 0, 0),
        ("Sampled", 0, None),
        ("StepEnded", 1, 0),
        ("StepEnded", 2, 0),
        ("Evaluated", 2, 0),
        ("Sampled", 2, 0),
        ("PhaseEntered", 2.5, 0),
        ("Sampled", 4, 0),
        ("StepEnded", 4.5, 0),
    ]
    last = [event for event, _ in played(made) if isinstance(event, Sampled)][-1]
    assert (last.step, last.phase) == (2, "eval")
    steps = [event for event, _ in played(made) if isinstance(event, StepEnded)]
    assert [event.step for event in steps] == [1, 2, 4]
    assert steps[0].devices == {"cuda:0": {"memory/peak": 7.0}}


def test_ranks_clocks_and_resumed_steps() -> None:
    made = case(
        ranks=[0, 1],
        numbers="5+1x2 6",
        first_step=4,
        steps={"train/step_seconds": "2x3", "train/loss": "1x3", "train/loss@1": "9x3"},
        events=[{"at": 5, "type": "phase_entered", "phase": "train", "rank": 1, "clock": -100}],
    )
    steps = [(event.step, rank, event.values["train/loss"]) for event, rank in played(made) if type(event) is StepEnded]
    assert steps == [(5, 0, 1.0), (5, 1, 9.0), (6, 0, 1.0), (6, 1, 9.0), (6, 0, 1.0), (6, 1, 9.0)]
    ((event, rank),) = [(event, rank) for event, rank in played(made) if isinstance(event, PhaseEntered)]
    assert (event.step, rank, event.time - START) == (5, 1, -98)
    assert [event.time - START for event, _ in played(made)][-1] == -94


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("cases: [{name: a, silent: true, stpes: {}}]", "stpes"),
        ("cases: [{name: a, silent: true}, {name: a, silent: true}]", "two cases are named 'a'"),
        ("cases: [{name: a, steps: {x: 1}}]", "either `silent: true` or has something to `expect`"),
        ("cases: [{name: a, silent: true, steps: {x: 1x}}]", r"steps\.x: cannot read '1x'"),
        ("cases: [{name: a, silent: true, steps: {x@3: 1}}]", "there is no rank '3'"),
        ("cases: [{name: a, silent: true, memory: {x: 1}}]", "write the device"),
        ("cases: [{name: a, silent: true, steps: {x: 1}, numbers: 1x2}]", "there are 2 for 1 steps"),
        ("cases: [{name: a, silent: true, events: [{type: sampled}]}]", "`at` says after which step"),
        ("cases: [{name: a, silent: true, events: [{at: 0, type: smapled}]}]", "`type` is one of"),
        ("cases: [{name: a, silent: true, events: [{at: 9, type: run_ended, outcome: failed}]}]", "ends at step 9"),
        ("cases: [{name: a, silent: true, events: [{at: 0, type: run_ended, outcme: failed}]}]", "has no outcme"),
        ("cases: [{name: a, silent: true, events: [{at: 0, type: run_ended, outcome: odd}]}]", "Invalid enum value"),
        ("cases: [{name: a, expect: [{between: [9, 3]}], steps: {x: 1}}]", "holds no step"),
        ("cases: [{name: a, expect: [{step: 3, between: [1, 3]}], steps: {x: 1}}]", "not both"),
        ("cases: [", "while parsing"),
        ("cases: 3", "Expected `array`"),
    ],
)
def test_a_wrong_case_is_refused_with_a_sentence(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "loss.yaml"
    path.write_text(text, "utf-8")
    with pytest.raises(CaseError, match=message) as caught:
        read(path)
    assert "loss.yaml" in str(caught.value)


class High(Rule[Options]):
    """Finds a loss over ten; it has a sentence, because it borrows a rule's name."""

    id = "training_failed"
    listens = (StepEnded,)

    def observe(self, event: StepEnded, rank: int | None) -> Iterator[FindingRaised]:
        if event.values["train/loss"] > 10:
            yield self.finding(event, "warning", rank=rank, evidence={"error": "too high"})
        else:
            yield self.cleared(event, rank=rank)


LOSS = {"train/loss": "1x3 20x2 1"}


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({}, "not expected: training_failed warning firing, step 4"),
        ({"expect": [{"step": 4}, {"state": "resolved", "step": 6}]}, None),
        ({"expect": [{"step": 4}]}, "not expected: training_failed warning resolved, step 6"),
        ({"expect": [{"step": 5}, {"state": "resolved"}]}, "came at step 4, not 5"),
        ({"expect": [{"between": [1, 3]}, {"state": "resolved"}]}, "not within [1, 3]"),
        ({"expect": [{"severity": "critical"}, {"state": "resolved"}]}, "did not come: rule training_failed"),
        ({"expect": [{"rank": 1}, {"state": "resolved"}]}, "did not come"),
        ({"expect": [{"says": "too high"}, {"state": "resolved"}]}, None),
        ({"expect": [{"says": "too low"}, {"state": "resolved"}]}, "does not say 'too low'"),
        ({"expect": [{"action": "halt"}, {"state": "resolved"}]}, "does notify, not halt"),
        ({"expect": [{"rule": "odd"}, {}, {"state": "resolved"}]}, "there is no rule 'odd'"),
        ({"settings": {"fro": 3}}, "no option (did you mean for?)"),
        ({"steps": {}, "evals": {"eval/loss": 1}}, "training_failed saw nothing"),
    ],
)
def test_a_case_fails_when_it_should(fields: dict[str, Any], problem: str | None) -> None:
    expects = "expect" in fields
    problems = judge(High, case(**{"steps": LOSS, "silent": not expects, **fields}))
    if problem is None:
        assert not problems
    else:
        assert any(problem in text for text in problems), problems
