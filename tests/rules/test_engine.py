"""The engine and its alerts: what is reported when, by whose options, and by whose clock."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from decimal import Decimal
from typing import Any

import pytest

from trainwatch.events import FindingRaised, RulesSet, RunStarted, Sampled, StepEnded
from trainwatch.rules import RULES, Engine
from trainwatch.rules.base import Options, Positive, Rule
from trainwatch.rules.settings import SettingsError, check


class HighOptions(Options, frozen=True, kw_only=True):
    limit: Positive = 10.0


class High(Rule[HighOptions]):
    """Finds a value over a limit; the excess tells how bad it is."""

    id = "high"
    listens = (StepEnded,)
    options_type = HighOptions

    def observe(self, event: StepEnded, rank: int | None) -> Iterator[FindingRaised]:
        value = event.values["x"]
        if value > self.options.limit:
            yield self.finding(
                event, "critical" if value > 10 * self.options.limit else "warning", rank=rank, evidence={"x": value}
            )
        else:
            yield self.cleared(event, rank=rank)


class Broken(Rule[Options]):
    id = "broken"
    listens = (StepEnded,)

    def observe(self, event: StepEnded, rank: int | None) -> Iterator[FindingRaised]:
        raise ZeroDivisionError
        yield


def step(number: int, x: float) -> StepEnded:
    return StepEnded(time=float(number), step=number, values={"x": x})


def told(values: list[float], settings: dict[str, Any] | None = None) -> list[tuple[int | None, str, str, str]]:
    engine = Engine((High,), {"high": settings or {}})
    return [
        (found.step, found.state, found.severity, found.action)
        for number, x in enumerate(values)
        for found in engine.observe(step(number, x), 0)
    ]


def test_a_match_fires_and_is_resolved() -> None:
    assert told([1, 20, 30, 1, 1, 20]) == [
        (1, "firing", "warning", "notify"),
        (2, "firing", "warning", "notify"),
        (3, "resolved", "warning", "notify"),
        (5, "firing", "warning", "notify"),
    ]


def test_a_match_that_must_hold_is_pending_until_it_has() -> None:
    assert told([1, 20, 20, 20, 20], {"for": 2}) == [
        (1, "pending", "warning", "notify"),
        (3, "firing", "warning", "notify"),
        (4, "firing", "warning", "notify"),
    ]
    assert told([20, 1, 1], {"for": 2}) == [(0, "pending", "warning", "notify"), (1, "resolved", "warning", "notify")]


def test_what_is_pending_fires_when_time_has_passed_whatever_happens() -> None:
    engine = Engine((High,), {"high": {"for": 5.0}})
    engine.observe(step(1, 20), 0)
    (fired,) = engine.observe(RunStarted(time=6.0, name="other"), 1)
    assert (fired.state, fired.step, fired.time) == ("firing", 1, 6.0)
    assert engine.observe(RunStarted(time=7.0, name="other"), 2) == []


def test_a_finding_is_repeated_seldom_unless_it_becomes_worse() -> None:
    assert told([20, 20, 20, 200, 200], {"repeat": 100}) == [
        (0, "firing", "warning", "notify"),
        (3, "firing", "critical", "notify"),
    ]


def test_an_action_is_taken_from_its_severity_on() -> None:
    assert told([20, 200], {"action": "halt", "act_at": "critical"}) == [
        (0, "firing", "warning", "notify"),
        (1, "firing", "critical", "halt"),
    ]
    assert told([200], {"action": "halt", "at_most": "info"}) == [(0, "firing", "info", "notify")]


def test_ranks_are_alerts_of_their_own() -> None:
    engine = Engine((High,))
    assert engine.observe(step(1, 20), 0)
    assert engine.observe(step(1, 1), 1) == []
    assert len(engine.alerts.open) == 1


def test_the_script_goes_before_the_project_and_both_before_the_defaults() -> None:
    engine = Engine((High,))
    engine.observe(RulesSet(time=0.0, rules={"high": {"limit": 1, "action": "halt"}}), None)
    engine.observe(RunStarted(time=0.0, name="x", rules={"high": {"limit": 5}}), 0)
    assert engine.observe(step(1, 4), 0) == []
    (found,) = engine.observe(step(2, 6), 0)
    assert found.action == "halt"
    engine.observe(RulesSet(time=3.0, rules={"high": {"enabled": False}}), None)
    assert engine.observe(step(4, 60), 0) == []
    assert not engine.alerts.open


def test_the_alerts_of_a_rule_that_is_turned_off_are_over() -> None:
    engine = Engine((High,))
    engine.observe(step(1, 20), 0)
    (found,) = engine.observe(RulesSet(time=3.0, rules={"high": {"enabled": False}}), None)
    assert (found.rule, found.state, found.severity, found.time, found.step) == ("high", "resolved", "warning", 3.0, 1)
    assert engine.observe(RulesSet(time=4.0, rules={"high": {"enabled": False}}), None) == []


class Once(Rule[Options]):
    """Says once that it saw something, and keeps quiet then."""

    id = "once"
    listens = (StepEnded,)

    def __init__(self, options: Options) -> None:
        super().__init__(options)
        self.said = False

    def observe(self, event: StepEnded, rank: int | None) -> tuple[FindingRaised, ...]:
        if self.said:
            return ()
        self.said = True
        return (self.finding(event, "info", evidence={}),)


def test_a_rule_that_is_turned_on_again_begins_anew() -> None:
    engine = Engine((Once,))
    assert engine.observe(step(1, 1), 0)
    assert engine.observe(step(2, 1), 0) == []
    engine.observe(RulesSet(time=3.0, rules={"once": {"enabled": False}}), None)
    engine.observe(RulesSet(time=4.0, rules={"once": {"for": 0.5}}), None)
    assert [found.state for found in engine.observe(step(5, 1), 0)] == ["pending"]
    engine.observe(RulesSet(time=5.0, rules={"once": {"for": 0.6}}), None)
    assert [found.state for found in engine.observe(step(6, 1), 0)] == ["firing"]  # other options: it goes on


def test_a_clock_that_is_set_back_holds_up_no_alert() -> None:
    engine = Engine((High,), {"high": {"for": 5.0}})
    engine.observe(StepEnded(time=10_000.0, step=1, values={"x": 20}), 0)
    engine.observe(RunStarted(time=100.0, name="other"), 1)
    (fired,) = engine.observe(RunStarted(time=106.0, name="other"), 2)
    assert (fired.state, fired.time) == ("firing", 106.0)
    again = Engine((High,), {"high": {"repeat": 60.0}})
    assert again.observe(StepEnded(time=10_000.0, step=1, values={"x": 20}), 0)
    assert again.observe(StepEnded(time=100.0, step=2, values={"x": 20}), 0)
    assert again.observe(StepEnded(time=120.0, step=3, values={"x": 20}), 0) == []


def test_without_a_guard_the_fault_of_a_rule_is_seen() -> None:
    with pytest.raises(ZeroDivisionError):
        Engine((Broken, High)).observe(step(1, 20), 0)


def test_options_of_another_version_are_left_out_and_told() -> None:
    engine = Engine((High,))
    engine.observe(RulesSet(time=0.0, rules={"high": {"limit": "much"}, "unheard_of": {}}), None)
    assert engine.observe(step(1, 20), 0)
    assert "rules.high" in engine.rejected["high"]


def test_a_rule_that_fails_costs_no_other_its_finding() -> None:
    failed: list[str] = []

    @contextmanager
    def guard(what: str) -> Iterator[None]:
        try:
            yield
        except Exception:
            failed.append(what)

    engine = Engine((Broken, High), guard=guard)
    assert [found.rule for found in engine.observe(step(1, 20), 0)] == ["high"]
    assert failed == ["rule broken"]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"hihg": {}}, r"rules\.hihg is no rule \(did you mean high\?\)"),
        ({"high": {"limt": 3}}, r"rules\.high\.limt is no option \(did you mean limit\?\)"),
        ({"high": {"limit": -3}}, r"rules\.high: Expected `float` > 0.0 - at `rules\.high\.limit`"),
        ({"high": {"for": "long"}}, r"rules\.high\.for"),
        ({"high": {"action": "skip"}}, r'action = "skip" is not possible for this rule: it takes "notify"'),
        ({"high": 3}, r"a table of options is wanted, and this is 3"),
        ([], r"a table of rules is wanted"),
    ],
)
def test_wrong_settings_are_refused_with_a_sentence(settings: Any, message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        check(settings, (High, Broken))


def test_every_rule_can_be_made_and_set() -> None:
    assert len({rule.id for rule in RULES}) == len(RULES)
    for rule in RULES:
        assert check({rule.id: {"enabled": False}}, RULES)
        assert rule.__doc__


@pytest.mark.parametrize("rule", ["divergence", "loss_spike", "overfitting"])
def test_a_window_can_be_set_by_the_script(rule: str) -> None:
    # The engine is there before the script's settings are: they come with the run's first event.
    early, late = Engine(RULES, {rule: {"window": 12}}), Engine(RULES)
    late.observe(RunStarted(time=0.0, name="run", rules={rule: {"window": 12}}), 0)

    def kept(engine: Engine) -> int:
        for number in range(1, 101):
            values = {"train/loss": 2.0 + (number * 7 % 5) / 100}
            engine.observe(StepEnded(time=float(number), step=number, values=values), 0)
        found: Any = next(one for one in engine._rules if one.id == rule)
        return len(found._train if rule == "overfitting" else found._window._values)

    assert kept(early) == kept(late) == 12


def test_a_server_of_another_version_does_not_overrule_the_script() -> None:
    engine = Engine(RULES)
    engine.observe(RunStarted(time=0.0, name="run", rules={"oom_forecast": {"action": "notify"}}), 0)
    engine.observe(RulesSet(time=1.0, rules={"oom_forecast": {"of_another_version": 1}}), None)
    assert "oom_forecast" in engine.rejected
    assert engine.options()["oom_forecast"].action == "notify"


@pytest.mark.parametrize(
    "options",
    [{"window": 10**30}, {"for": 10**30}, {"for": math.inf}, {"for": Decimal("1.5")}, {5: 1}],
    ids=["whole", "real", "infinite", "odd", "key"],
)
def test_what_no_message_can_hold_is_refused(options: dict[Any, Any]) -> None:
    with pytest.raises(SettingsError, match=r"rules\.loss_spike\."):
        check({"loss_spike": options}, RULES)


def test_what_is_still_wrong_after_a_restart_is_said_again() -> None:
    engine = Engine(RULES)

    def life(begin: float, first: int) -> list[tuple[str, str]]:
        said = engine.observe(RunStarted(time=begin, name="run", max_steps=1000, first_step=first), 0)
        for number in range(first + 1, first + 51):
            values = {"train/loss": 2.0 if number < 25 else 0.0, "train/grad_norm": math.nan if number >= 25 else 1.0}
            said += engine.observe(StepEnded(time=begin + number, step=number, values=values), 0)
        size = {"checkpoint/size": 5e9} if not first else {}
        said += engine.observe(Sampled(time=begin + 60, devices={"disk": {"disk/free": 1e9, **size}}), None)
        return [(one.rule, one.state) for one in said if one.severity == "critical"]

    assert life(0.0, 0) == [("zero_loss", "firing"), ("disk_space", "firing")]
    # Resumed from its last step, so that the curve shows no seam.
    again = life(1000.0, 50)
    assert again[:2] == [("zero_loss", "resolved"), ("disk_space", "resolved")]
    assert again[2:] == [("zero_loss", "firing"), ("disk_space", "firing")]


def test_ranks_that_start_side_by_side_end_nothing() -> None:
    engine = Engine((High,))
    engine.observe(RunStarted(time=0.0, name="run"), 0)
    assert engine.observe(step(1, 20.0), 0) != []
    assert engine.observe(RunStarted(time=2.0, name="run"), 1) == []
    assert [one.state for one in engine.observe(RunStarted(time=3.0, name="run", first_step=1), 0)] == ["resolved"]
