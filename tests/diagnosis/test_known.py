"""Versions that are known for what went wrong: they speak when it has gone wrong, and only where they fit."""

from __future__ import annotations

from typing import Any

import pytest

from trainwatch.diagnosis.known import KNOWN, is_within, known_harms
from trainwatch.events import AnyEvent, Evaluated, FindingRaised, RunStarted
from trainwatch.rules import RULES, Engine
from trainwatch.rules.wording import sentence


def started(torch: str = "2.5.0+cu118", device: str = "cuda:0", **more: Any) -> RunStarted:
    environment = {"packages": {"torch": torch, "transformers": "4.48.0"}, "device": device}
    return RunStarted(time=0.0, name="run", environment=environment, **more)


def evaluated(bad: int) -> Evaluated:
    values = {"eval/nonfinite_batches": float(bad), "eval/batches": 10.0, "eval/loss": float("nan") if bad else 1.0}
    return Evaluated(time=200.0, step=200, values=values)


def found(*events: AnyEvent) -> list[FindingRaised]:
    engine = Engine(RULES)
    return [f for event in events for f in engine.observe(event, 0) if f.rule == "known_versions"]


def test_a_version_speaks_when_what_it_is_known_for_has_happened() -> None:
    assert found(started(), evaluated(0)) == []
    findings = found(started(), evaluated(7), evaluated(7))
    assert [finding.key for finding in findings] == ["torch-2.5.0-cudnn-attention", "torch-2.5.0-padded-evaluation"]
    assert findings[0].step == 200
    text = sentence(findings[1].rule, findings[1].parameters)
    assert text.startswith(
        "torch 2.5.0+cu118 is known for this, as users report: with more than one sample in a padded"
    )
    assert "Use torch 2.4.1" in text
    assert "2.4.1" in sentence(findings[1].rule, findings[1].parameters, language="zh")


@pytest.mark.parametrize("start", [started("2.4.1+cu118"), started("2.5.1"), started(device="cpu"), started("")])
def test_another_version_or_device_says_nothing(start: RunStarted) -> None:
    assert found(start, evaluated(7)) == []


def test_an_argument_or_a_model_may_be_needed() -> None:
    environment = {"packages": {"torch": "2.2.0", "transformers": "4.43.3"}}
    ids = {entry.id for entry in known_harms(environment, {"torch_compile": True}, {"class": "Gemma2ForCausalLM"})}
    assert ids == {"torch-2.3.0-compile-leak", "transformers-gemma2-sdpa-padding"}
    assert known_harms(environment, {"torch_compile": False}, {"class": "LlamaForCausalLM"}) == ()
    assert known_harms({"packages": "none"}, {}, {}) == ()


@pytest.mark.parametrize(
    ("version", "wanted", "expected"),
    [
        ("2.5.0+cu118", "==2.5.0", True),
        ("2.5.0.dev20240824", "==2.5.0", True),
        ("2.5", "==2.5.0", True),
        ("2.5.1", "==2.5.0", False),
        ("2.10.0", ">=2.2,<2.11", True),
        ("2.9", ">2.10", False),
        ("2.3.0a0+git", "<=2.3", True),
        ("", ">=0", False),
        ("unknown", "<9", False),
        ("2.5.0", "2.5.0", False),
    ],
)
def test_versions_are_compared_as_numbers(version: str, wanted: str, expected: bool) -> None:
    assert is_within(version, wanted) is expected


def test_every_entry_is_complete() -> None:
    rules = {rule.id for rule in RULES}
    assert len({entry.id for entry in KNOWN}) == len(KNOWN)
    for entry in KNOWN:
        assert entry.source.startswith("https://")
        assert entry.symptoms & (rules | {"zero_loss", "divergence", "memory_growth"})
        for wanted in entry.packages.values():
            assert not is_within("0.0.0.1" if wanted.startswith("=") else "99.0", wanted)
