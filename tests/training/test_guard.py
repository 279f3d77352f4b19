from __future__ import annotations

from typing import get_args

import pytest
import torch

from trainwatch.events import Policy
from trainwatch.training.guard import SCALER_PATIENCE, Guard, OptimizerGate, Verdict, drop_gradients
from trainwatch.training.safety import Safety


def judge(guard: Guard, pattern: str) -> list[Verdict]:
    """Shows a guard a step per character: `.` finite, `g` bad gradient, `l` bad loss, `s` overflow under a scaler."""
    return [guard.judge(loss_finite=mark != "l", gradient_finite=mark in ".l", scaled=mark == "s") for mark in pattern]


def test_protect_skips_one_bad_step_and_goes_on() -> None:
    verdicts = judge(Guard("protect"), "..g..l.")
    assert [verdict.skip for verdict in verdicts] == [False, False, True, False, False, True, False]
    assert not any(verdict.halt for verdict in verdicts)
    assert [verdict.recent for verdict in verdicts if verdict.nonfinite] == [1, 2]


def test_protect_halts_at_the_third_in_a_row() -> None:
    verdicts = judge(Guard("protect"), ".ggg")
    assert [verdict.halt for verdict in verdicts] == [False, False, False, True]
    assert verdicts[-1].in_a_row == 3


def test_protect_halts_when_more_than_5_percent_of_200_steps_are_bad() -> None:
    verdicts = judge(Guard("protect"), "g................" * 11)
    assert [index for index, verdict in enumerate(verdicts) if verdict.halt] == [170]
    assert verdicts[170].recent == 11


def test_bad_steps_leave_the_window_after_200() -> None:
    verdicts = judge(Guard("protect"), ("g" + "." * 20) * 20)
    assert max(verdict.recent for verdict in verdicts) == 10
    assert not any(verdict.halt for verdict in verdicts)


def test_halt_stops_at_the_first() -> None:
    assert [verdict.halt for verdict in judge(Guard("halt"), "..l")] == [False, False, True]


def test_record_never_interferes() -> None:
    verdicts = judge(Guard("record"), "ggggglll")
    assert all(verdict.nonfinite for verdict in verdicts)
    assert not any(verdict.skip or verdict.halt for verdict in verdicts)
    assert verdicts[-1].in_a_row == 8


def test_the_loss_scalers_own_skips_are_no_findings() -> None:
    verdicts = judge(Guard("halt"), "ss.s.sss")
    assert not any(verdict.nonfinite or verdict.halt for verdict in verdicts)
    assert verdicts[-1].action == "scaler"


def test_a_scaler_that_never_recovers_is_halted() -> None:
    verdicts = judge(Guard("protect"), "s" * SCALER_PATIENCE)
    assert [verdict.halt for verdict in verdicts] == [False] * (SCALER_PATIENCE - 1) + [True]


def test_an_unknown_policy_is_refused_with_the_known_ones() -> None:
    with pytest.raises(ValueError, match="protect"):
        Guard("stop")  # type: ignore[arg-type]
    assert get_args(Policy) == ("protect", "halt", "record")


@pytest.mark.parametrize("kind", [torch.optim.AdamW, torch.optim.SGD])
def test_an_optimizer_without_gradients_changes_nothing(kind: type[torch.optim.Optimizer]) -> None:
    parameter = torch.nn.Parameter(torch.randn(5))
    optimizer = kind([parameter], lr=0.1, weight_decay=0.1)  # type: ignore[call-arg]
    parameter.grad = torch.ones(5)
    optimizer.step()
    before, state = parameter.detach().clone(), repr(optimizer.state_dict())
    parameter.grad = torch.full((5,), float("nan"))
    drop_gradients([parameter])
    optimizer.step()
    assert torch.equal(parameter, before)
    assert repr(optimizer.state_dict()) == state


def test_the_gate_holds_one_step_back_and_lets_the_next_through() -> None:
    parameter = torch.nn.Parameter(torch.ones(3))
    optimizer = torch.optim.SGD([parameter], lr=1.0)
    gate = OptimizerGate(optimizer, Safety())
    gate.closed = True
    parameter.grad = torch.full((3,), float("inf"))
    optimizer.step()
    assert torch.equal(parameter, torch.ones(3))
    parameter.grad = torch.ones(3)
    optimizer.step()
    assert torch.equal(parameter, torch.zeros(3))
    gate.remove()


def test_the_gate_works_inside_a_grad_scaler() -> None:
    parameter = torch.nn.Parameter(torch.ones(3))
    optimizer = torch.optim.SGD([parameter], lr=1.0)
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    gate = OptimizerGate(optimizer, Safety())
    gate.closed = True
    scaler.scale(parameter.sum()).backward()
    scaler.step(optimizer)
    scaler.update()
    assert torch.equal(parameter, torch.ones(3))
