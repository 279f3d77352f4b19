"""The guard: what happens before the optimizer touches the weights.

It decides from two facts (was this step finite on any rank, is a loss scaler at work) and carries the decision out by
taking the gradients away. With every ``p.grad`` None an optimizer leaves the weights bit for bit as they were, its own
moments included.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Final, Literal

import msgspec

from trainwatch.events import Policy
from trainwatch.rules.nonfinite import PERSISTENT_WINDOW, is_persistent
from trainwatch.training.safety import Safety, harmless

if TYPE_CHECKING:
    import torch

SCALER_PATIENCE: Final = 25
"""Steps in a row that a loss scaler may skip. Each halves the scale: after 25 any overflow would have vanished."""


class Verdict(msgspec.Struct, frozen=True):
    """What to do with a step.

    Attributes:
        nonfinite: The step had a NaN or an Inf that is no business of the loss scaler.
        skip: Keep the optimizer from using the gradients.
        halt: Stop after this step.
        action: The word for it in :class:`~trainwatch.events.NonFiniteSeen`.
        in_a_row: Non-finite steps in a row, this one included.
        recent: Non-finite steps among the last 200, this one included.
    """

    nonfinite: bool = False
    skip: bool = False
    halt: bool = False
    action: Literal["recorded", "skipped", "scaler", "halt"] = "recorded"
    in_a_row: int = 0
    recent: int = 0


FINE: Final = Verdict()
"""The verdict on a step without fault."""


class Guard:
    """Judges step by step. The same inputs give the same verdicts, so ranks that agree on the inputs stop together.

    Args:
        policy: What to do about non-finite values.

    Raises:
        ValueError: The policy is unknown.
    """

    def __init__(self, policy: Policy) -> None:
        if policy not in ("protect", "halt", "record"):
            raise ValueError(f'on_nonfinite={policy!r} is unknown: use "protect", "halt" or "record"')
        self.policy = policy
        self._in_a_row = 0
        self._scaler_in_a_row = 0
        self._step = 0
        self._bad_steps: deque[int] = deque()

    def judge(self, *, loss_finite: bool, gradient_finite: bool, scaled: bool) -> Verdict:
        """Judges the next step.

        Args:
            loss_finite: Every raw loss of the step was finite, on all ranks.
            gradient_finite: Every gradient was finite, on all ranks.
            scaled: The gradients are scaled by a loss scaler, which looks for overflows and skips steps by itself.
        """
        self._step += 1
        if loss_finite and gradient_finite:
            self._in_a_row = self._scaler_in_a_row = 0
            return FINE
        while self._bad_steps and self._bad_steps[0] <= self._step - PERSISTENT_WINDOW:
            self._bad_steps.popleft()
        if scaled and loss_finite:
            self._in_a_row = 0
            self._scaler_in_a_row += 1
            if self._scaler_in_a_row < SCALER_PATIENCE:
                return Verdict(action="scaler", in_a_row=self._scaler_in_a_row, recent=len(self._bad_steps))
            self._in_a_row = self._scaler_in_a_row
        else:
            self._scaler_in_a_row = 0
            self._in_a_row += 1
        self._bad_steps.append(self._step)
        in_a_row, recent = self._in_a_row, len(self._bad_steps)
        if self.policy == "record":
            return Verdict(True, action="recorded", in_a_row=in_a_row, recent=recent)
        if self.policy == "halt" or is_persistent(in_a_row, recent):
            return Verdict(True, skip=True, halt=True, action="halt", in_a_row=in_a_row, recent=recent)
        return Verdict(True, skip=True, action="skipped", in_a_row=in_a_row, recent=recent)


def drop_gradients(parameters: Iterable[torch.nn.Parameter]) -> int:
    """Takes all gradients away, so that the optimizer's next step changes nothing.

    Args:
        parameters: Whose gradients.

    Returns:
        How many there were.
    """
    dropped = 0
    for parameter in parameters:
        if parameter.grad is not None:
            parameter.grad = None
            dropped += 1
    return dropped


class OptimizerGate:
    """Takes the gradients away at the last moment: inside ``optimizer.step``, after a loss scaler had its look.

    ``GradScaler.step`` insists on gradients being there, so that they can't be dropped before it.

    Args:
        optimizer: The torch optimizer, unwrapped.
        safety: Where a failure of the gate is counted.
    """

    def __init__(self, optimizer: Any, safety: Safety) -> None:
        self.closed = False
        self.safety = safety
        self._handle = optimizer.register_step_pre_hook(self._before_step)

    @harmless
    def _before_step(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        if self.closed:
            self.closed = False
            drop_gradients(parameter for group in optimizer.param_groups for parameter in group["params"])

    def remove(self) -> None:
        """Takes the hook off the optimizer."""
        self._handle.remove()
