from __future__ import annotations

from typing import Any

import pytest

from trainwatch.events import AnyEvent, FindingRaised, ProcessGone, RunEnded
from trainwatch.rules import RULES, Engine, Options
from trainwatch.rules.ended import TrainingFailed, brief
from trainwatch.rules.wording import sentence


def find(event: AnyEvent, rank: int | None) -> list[FindingRaised]:
    return Engine(RULES).observe(event, rank)


def said(finding: FindingRaised, language: str = "en") -> str:
    return sentence(finding.rule, finding.parameters, language=language, step=finding.step, rank=finding.rank)


def gone(**changes: Any) -> ProcessGone:
    fields: dict[str, Any] = {"time": 5.0, "rank": 3, "pid": 100, "step": 12, "phase": "train"}
    return ProcessGone(**fields | changes)


def failed(error: str, step: int = 12) -> RunEnded:
    return RunEnded(time=6.0, step=step, outcome="failed", error=error, traceback="Traceback …")


def test_a_vanished_process_is_critical_and_names_its_own_rank() -> None:
    (finding,) = find(gone(), None)  # the event stands in an agent's journal
    assert (finding.rule, finding.severity, finding.rank, finding.step) == ("process_gone", "critical", 3, 12)
    assert finding.time == 5.0
    assert said(finding) == "The process of rank 3 died after step 12 in phase train without a word."
    assert said(finding, "zh") == "rank 3 的进程在第 12 步之后无声终止。"


def test_the_oom_killer_is_named() -> None:
    (finding,) = find(gone(oom_kills=1), 3)
    assert "OOM killer" in said(finding)
    assert "OOM killer" in said(finding, "zh")


def test_a_death_before_the_first_step() -> None:
    (finding,) = find(gone(step=None, phase=None), 3)
    assert said(finding) == "The process of rank 3 died before its first step without a word."


def test_a_failure_is_critical_and_says_what_it_was() -> None:
    (finding,) = find(failed("RuntimeError: mat1 and mat2 shapes cannot be multiplied\nmore lines"), 1)
    assert (finding.rule, finding.severity, finding.rank, finding.step) == ("training_failed", "critical", 1, 12)
    assert said(finding) == (
        "The training failed at step 12 on rank 1: RuntimeError: mat1 and mat2 shapes cannot be multiplied"
    )
    assert said(finding, "zh") == (
        "训练在第 12 步失败（rank 1）：RuntimeError: mat1 and mat2 shapes cannot be multiplied"
    )
    assert sentence(finding.rule, finding.parameters, step=12) == (
        "The training failed at step 12: RuntimeError: mat1 and mat2 shapes cannot be multiplied"
    )


def test_a_failure_before_the_first_step() -> None:
    (finding,) = find(failed("ValueError: no data", step=0), 0)
    assert said(finding) == "The training failed before its first step was done on rank 0: ValueError: no data"


@pytest.mark.parametrize("outcome", ["finished", "halted"])
def test_a_training_that_ends_otherwise_raises_nothing(outcome: Any) -> None:
    assert not find(RunEnded(time=6.0, step=12, outcome=outcome, reason="nonfinite_loss"), 0)


def test_the_sentence_is_about_the_newest_of_several_failures() -> None:
    """An alert keeps the greatest step of all its findings; a run that was resumed may fail at an earlier one."""
    (finding,) = find(failed("ValueError: again", step=7), 0)
    assert "at step 7" in sentence(finding.rule, finding.parameters, step=30)
    (finding,) = find(gone(step=7), 0)
    assert "after step 7" in sentence(finding.rule, finding.parameters, step=30)


@pytest.mark.parametrize(
    ("error", "short"),
    [
        ("", ""),
        ("KeyboardInterrupt: ", "KeyboardInterrupt"),
        ("\n\nOSError: disk\nsecond", "OSError: disk"),
        ("x" * 300, "x" * 300),
        ("x" * 301, "x" * 299 + "…"),
    ],
)
def test_errors_are_shortened(error: str, short: str) -> None:
    assert brief(error) == short


def test_an_interrupt_by_hand_is_a_note() -> None:
    (finding,) = TrainingFailed(Options()).observe(
        RunEnded(time=1.0, step=7, outcome="failed", error="KeyboardInterrupt: "), 0
    )
    assert finding.severity == "info"
    assert sentence(finding.rule, finding.parameters) == "The training was interrupted at step 7 (Ctrl-C)."
