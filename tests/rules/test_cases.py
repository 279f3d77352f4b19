"""Every rule against its cases: tests/rules/cases/<rule id>.yaml, in the notation of :mod:`tests.rules.notation`."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import pytest

from tests.rules.notation import Case, CaseError, Expected, played, read
from trainwatch.events import FindingRaised, NonFiniteSeen, OutOfMemorySeen, ProcessGone
from trainwatch.rules import RULES, Engine
from trainwatch.rules.base import Rule
from trainwatch.rules.settings import SettingsError
from trainwatch.rules.wording import sentence

CASES: Final = Path(__file__).parent / "cases"
BY_ID: Final = {rule.id: rule for rule in RULES}
FILES: Final = sorted(CASES.glob("*.yaml"))
TROUBLE: Final = frozenset({NonFiniteSeen, OutOfMemorySeen, ProcessGone})
"""Events that a healthy run has none of; a rule that hears of nothing else is silent there without having looked."""


def _read(path: Path) -> list[Any]:
    try:
        return [pytest.param(path.stem, case, id=f"{path.stem}: {case.name}") for case in read(path)]
    except CaseError as error:
        # A file that cannot be read must not hide the cases of the others.
        return [pytest.param(path.stem, error, id=f"{path.stem}: cannot be read")]


@pytest.mark.parametrize(("rule", "case"), [one for path in FILES for one in _read(path)])
def test_case(rule: str, case: Case | CaseError) -> None:
    if isinstance(case, CaseError):
        raise case
    assert rule in BY_ID, f"tests/rules/cases/{rule}.yaml: there is no rule {rule!r} in RULES"
    problems = judge(BY_ID[rule], case)
    assert not problems, "\n".join(problems)


@pytest.mark.parametrize("rule", list(BY_ID))
def test_every_rule_has_cases_and_one_of_a_healthy_run(rule: str) -> None:
    path = CASES / f"{rule}.yaml"
    assert path.exists(), f"rule {rule} has no cases: write tests/rules/cases/{rule}.yaml"
    cases = read(path)
    assert any(case.silent for case in cases), f"{path.name} has no healthy run, one with `silent: true`"
    assert any(
        expected.rule in (None, rule) and expected.state == "firing" for case in cases for expected in case.expect
    ), f"{path.name} has no run in which {rule} fires"


def judge(rule: type[Rule[Any]], case: Case) -> list[str]:
    """Plays a case through the engine.

    Returns:
        What is not as expected, in sentences; empty when all is well.
    """
    rules = RULES if case.rules == "all" else (rule,)
    try:
        found = play(rules, rule, case)
        again = play(rules, rule, case)
    except SettingsError as error:
        return [f"settings: {error}"]
    problems = [] if found == again else ["the same events gave other findings the second time"]
    if not set(rule.listens) <= TROUBLE and not any(isinstance(event, rule.listens) for event, _ in played(case)):
        problems.append(f"{rule.id} saw nothing: it listens to {', '.join(kind.__name__ for kind in rule.listens)}")
    problems += [text for report in found for text in _wording(report)]
    left = list(found)
    met: list[FindingRaised] = []
    for wanted in case.expect:
        expected = wanted if wanted.rule else _owned(wanted, rule.id)
        if expected.rule not in BY_ID and expected.rule != rule.id:
            problems.append(f"there is no rule {expected.rule!r} to expect something of")
            continue
        candidate = next((report for report in left if expected.is_about(report)), None)
        if candidate is None:
            problems.append(f"did not come: {_show(expected)}")
            continue
        left.remove(candidate)
        met.append(candidate)
        problems += _differences(expected, candidate)
    repeated = {_kind(report) for report in met}
    problems += [f"not expected: {_told(report)}" for report in left if _kind(report) not in repeated]
    if problems and found:
        problems.append("All that came:\n" + "\n".join(f"  {_told(report)}" for report in found[:40]))
    return problems


def play(rules: tuple[type[Rule[Any]], ...], own: type[Rule[Any]], case: Case) -> list[FindingRaised]:
    """Returns what the rules report of a case."""
    engine = Engine(rules, {own.id: case.settings})
    return [report for event, rank in played(case) for report in engine.observe(event, rank)]


def _owned(expected: Expected, rule: str) -> Expected:
    return Expected(**{name: getattr(expected, name) for name in expected.__struct_fields__} | {"rule": rule})


def _kind(report: FindingRaised) -> tuple[Any, ...]:
    return report.rule, report.rank, report.key, report.state, report.severity


def _differences(expected: Expected, report: FindingRaised) -> list[str]:
    step, problems = report.step, []
    if expected.step is not None and step != expected.step:
        problems.append(f"came at step {step}, not {expected.step}: {_told(report)}")
    if expected.between is not None and not (step is not None and expected.between[0] <= step <= expected.between[1]):
        problems.append(f"came at step {step}, not within {list(expected.between)}: {_told(report)}")
    if expected.action is not None and report.action != expected.action:
        problems.append(f"does {report.action}, not {expected.action}: {_told(report)}")
    text = sentence(report.rule, report.parameters, step=step, rank=report.rank)
    for part in [expected.says] if isinstance(expected.says, str) else expected.says:
        if part not in text:
            problems.append(f"does not say {part!r}: {text!r}")
    return problems


def _wording(report: FindingRaised) -> list[str]:
    texts = [
        sentence(report.rule, report.parameters, language=language, step=report.step, rank=report.rank)
        for language in ("en", "zh")
    ]
    bare = report.rule.replace("_", " ")
    problems = [f"{report.rule} has no wording for {report.parameters}"] if bare in texts else []
    if not any("\u4e00" <= letter <= "\u9fff" for letter in texts[1]):
        problems.append(f"{report.rule} has no Chinese wording: {texts[1]!r}")
    return problems


def _show(expected: Expected) -> str:
    fields = ((name, getattr(expected, name)) for name in expected.__struct_fields__)
    return ", ".join(f"{name} {value}" for name, value in fields if value not in (None, []))


def _told(report: FindingRaised) -> str:
    text = sentence(report.rule, report.parameters, step=report.step, rank=report.rank)
    key = f" [{report.key}]" if report.key else ""
    return f"{report.rule}{key} {report.severity} {report.state}, step {report.step}, rank {report.rank}: {text}"
