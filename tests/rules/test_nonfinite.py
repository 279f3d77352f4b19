from __future__ import annotations

import math

import pytest

from trainwatch.events import AnyEvent, Evaluated, FindingRaised, Logged, NonFiniteSeen, StepEnded
from trainwatch.rules import RULES, Engine
from trainwatch.rules.wording import sentence


def run(*events: AnyEvent, rank: int = 0) -> list[FindingRaised]:
    engine = Engine(RULES)
    return [finding for event in events for finding in engine.observe(event, rank)]


def seen(step: int, **fields: object) -> NonFiniteSeen:
    defaults: dict[str, object] = {"where": "gradient", "value": math.nan, "action": "skipped"}
    return NonFiniteSeen(time=float(step), step=step, **{**defaults, **fields})  # type: ignore[arg-type]


def step(number: int, loss: float) -> StepEnded:
    return StepEnded(time=float(number), step=number, values={"train/loss": loss})


def evaluated(number: int, bad: int, batches: int = 10, reported: float = 2.5) -> Evaluated:
    values = {
        "eval/loss": math.nan if bad else 2.5,
        "eval/batches": batches,
        "eval/nonfinite_batches": bad,
        "eval/loss_reported": reported,
    }
    return Evaluated(time=float(number), step=number, values=values)


def test_a_passing_gradient_is_a_note_and_a_lasting_one_a_disaster() -> None:
    assert [finding.severity for finding in run(seen(5), seen(6, in_a_row=2), seen(7, in_a_row=3))] == [
        "info",
        "info",
        "critical",
    ]


def test_a_bad_loss_is_a_warning_at_once() -> None:
    (finding,) = run(seen(5, where="loss", micro_batches=1))
    assert (finding.rule, finding.severity, finding.step, finding.rank) == ("nonfinite_loss", "warning", 5, 0)


def test_a_bad_gradient_that_reached_the_weights_is_critical() -> None:
    (finding,) = run(seen(5, action="recorded", parameter_count=2, parameters=["a", "b"]))
    assert finding.severity == "critical"
    assert "weights are ruined" in sentence(finding.rule, finding.parameters, step=5)


def test_the_loss_scalers_work_is_no_finding() -> None:
    assert not run(seen(5, action="scaler"))


def test_only_the_culprit_speaks() -> None:
    assert not run(seen(5, local=False, culprit=1), rank=0)
    assert run(seen(5, local=True, culprit=1), rank=1)[0].rank == 1


def test_an_unguarded_nan_loss_is_found_from_the_steps_alone() -> None:
    findings = run(step(1, 2.0), step(2, math.nan), step(3, math.inf))
    assert [(finding.rule, finding.step, finding.parameters["value"]) for finding in findings] == [
        ("nonfinite_loss", 2, "NaN"),
        ("nonfinite_loss", 3, "Inf"),
    ]


def test_a_guarded_step_is_found_once() -> None:
    assert len(run(seen(5, where="loss"), step(5, math.nan))) == 1


def test_hidden_eval_batches_are_counted_since_the_first() -> None:
    findings = run(evaluated(100, 0), evaluated(200, 7), evaluated(300, 9))
    assert [finding.severity for finding in findings] == ["warning", "warning"]
    text = sentence(findings[-1].rule, findings[-1].parameters, step=300)
    assert text == "The eval loss is NaN in 9 of 10 batches since step 200; the Trainer reports 2.5."


def test_an_eval_without_a_finite_batch_is_critical() -> None:
    (finding,) = run(evaluated(200, 10, reported=math.nan))
    assert finding.severity == "critical"


def test_an_eval_that_recovers_begins_anew() -> None:
    findings = run(evaluated(100, 3), evaluated(200, 0), evaluated(300, 3))
    assert [(finding.state, finding.parameters["since"]) for finding in findings] == [
        ("firing", 100),
        ("resolved", 100),
        ("firing", 300),
    ]


def test_healthy_events_find_nothing() -> None:
    assert not run(*(step(number, 2.0 / number) for number in range(1, 200)), evaluated(100, 0))


def test_the_rules_have_words_in_both_languages() -> None:
    for rule in ("nonfinite_loss", "nonfinite_gradient", "nonfinite_eval_loss"):
        parameters = {"value": "NaN", "action": "skipped", "nonfinite": 1, "batches": 2, "since": 3, "reported": "1.0"}
        english = sentence(rule, parameters, step=7, rank=1)
        chinese = sentence(rule, parameters, language="zh", step=7, rank=1)
        assert english != rule.replace("_", " ")
        assert any("\u4e00" <= character <= "\u9fff" for character in chinese)


@pytest.mark.parametrize("rule", ["nonfinite_loss", "process_gone", "command", "of the future"])
def test_wording_never_raises(rule: str) -> None:
    assert sentence(rule, {})
    assert sentence(rule, {"action": object(), "parameters": 5}, language="zh", step=1)


def test_a_halt_says_where_to_go_on() -> None:
    parameters = {"value": "NaN", "action": "halt", "in_a_row": 3, "recent": 3, "checkpoint": "out/checkpoint-7"}
    assert sentence("nonfinite_loss", {**parameters, "culprit": 1}, step=7) == (
        "Halted: the loss is NaN in steps 5 to 7 on rank 1; "
        "these steps were skipped and the weights were not touched. Resume from out/checkpoint-7."
    )


def test_a_rank_whose_own_batches_were_finite_is_not_blamed_for_what_was_gathered() -> None:
    # Older Trainers average the losses of all ranks into what each of them reports.
    counted = {"eval/nonfinite_batches": 0.0, "eval/batches": 3.0, "eval/loss_reported": math.nan}
    reported = {"eval/loss_reported": math.nan}
    assert not Engine(RULES).observe(Evaluated(time=1.0, step=5, values=counted), 0)
    assert Engine(RULES).observe(Evaluated(time=1.0, step=5, values=reported), 0)


def logged(number: int, **values: float) -> Logged:
    return Logged(time=float(number), step=number, values={f"train/{name}": value for name, value in values.items()})


def told(*events: AnyEvent) -> list[tuple[str, str, int | None, str]]:
    found = run(*events)
    return [(one.rule, one.severity, one.step, one.state) for one in found if one.rule.startswith("nonfinite")]


def test_an_imported_gradient_is_a_note_when_it_passes_and_a_disaster_when_it_lasts() -> None:
    passing = [logged(n, grad_norm=math.nan if n == 5 else 1.0, loss_logged=2.0) for n in range(1, 10)]
    assert told(*passing) == [
        ("nonfinite_gradient", "info", 5, "firing"),
        ("nonfinite_gradient", "info", 6, "resolved"),
    ]
    lasting = [logged(n, grad_norm=math.nan if n >= 5 else 1.0, loss_logged=2.0) for n in range(1, 10)]
    assert told(*lasting) == [
        ("nonfinite_gradient", "info", 5, "firing"),
        ("nonfinite_gradient", "critical", 7, "firing"),
    ]
    assert sentence("nonfinite_gradient", run(*lasting)[-1].parameters, step=7) == (
        "The gradient is NaN at step 7 in the log and has been since step 5: 3 logged values in a row."
    )


def test_a_loss_scaler_may_search_for_its_scale_while_the_loss_is_alive() -> None:
    searching = [logged(n, grad_norm=math.inf if n < 10 else 1.0, loss_logged=2.0) for n in range(1, 12)]
    assert [severity for _, severity, _, _ in told(*searching)] == ["info", "info"]
    dead = [logged(n, grad_norm=math.nan, loss_logged=0.0) for n in range(1, 5)]
    assert ("nonfinite_gradient", "critical", 3, "firing") in told(*dead)
    for_ever = [logged(n, grad_norm=math.inf, loss_logged=2.0) for n in range(1, 40)]
    assert ("nonfinite_gradient", "critical", 21, "firing") in told(*for_ever)


def test_an_imported_nan_loss_is_critical_once() -> None:
    assert told(logged(1, loss_logged=2.0), *(logged(n, loss_logged=math.nan) for n in range(2, 6))) == [
        ("nonfinite_loss", "critical", 2, "firing")
    ]


def test_the_log_of_a_run_whose_steps_are_known_says_nothing_new() -> None:
    assert not told(step(1, 2.0), logged(1, grad_norm=math.nan, loss_logged=math.nan))
