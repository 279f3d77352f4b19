"""Between the end of the backward pass and the optimizer: look at the step, agree with the other ranks, judge, act."""

from __future__ import annotations

import math
from typing import Any, Final

import msgspec

from trainwatch.events import NonFiniteSeen
from trainwatch.rules import wording
from trainwatch.rules.halting import COMMAND, FOUND_AT
from trainwatch.rules.nonfinite import NONFINITE_GRADIENT, NONFINITE_LOSS, evidence
from trainwatch.shipment import Command
from trainwatch.training.agreement import Agreement, Flags
from trainwatch.training.control import Control
from trainwatch.training.guard import FINE, Guard, OptimizerGate, Verdict, drop_gradients
from trainwatch.training.hooks import ModelHook
from trainwatch.training.recorder import now
from trainwatch.training.safety import Safety, harmless
from trainwatch.training.step import StepObserver, StepReading

_NAMES: Final = 8
"""Names of parameters that one event holds at most."""
_FINE: Final = Flags()


class Halt(msgspec.Struct, frozen=True):
    """Why the run is to stop.

    Attributes:
        rule: The rule's id, or :data:`~trainwatch.rules.halting.COMMAND`.
        parameters: The evidence.
        step: The step at which it was decided.
    """

    rule: str
    parameters: dict[str, Any]
    step: int


class Inspection:
    """Inspects every update before it is made.

    Args:
        safety: Where failures of ours are counted.
        guard: Judges.
        observer: Has seen the step's forward and backward passes.
        hook: The observer's hook on the model.
        agreement: Meets the other ranks.
        control: Knows the commands that came for the run.
        optimizer: The framework's optimizer; with a ``scaler`` under fp16.
        rank: This rank.

    Attributes:
        reading: What was seen of the present step; None before :meth:`inspect`.
        verdict: What was decided about it.
        halt: Set once the run is to stop.
        save: A person or a rule asked for a checkpoint: why, in a sentence; None when nobody did.
    """

    def __init__(
        self,
        *,
        safety: Safety,
        guard: Guard,
        observer: StepObserver,
        hook: ModelHook,
        agreement: Agreement,
        control: Control,
        optimizer: Any,
        rank: int,
    ) -> None:
        self.safety = safety
        self.reading: StepReading | None = None
        self.verdict: Verdict = FINE
        self.halt: Halt | None = None
        self.save: str | None = None
        self._guard = guard
        self._observer = observer
        self._hook = hook
        self._agreement = agreement
        self._control = control
        self._rank = rank
        self._scaler = getattr(optimizer, "scaler", None)
        self._gate: OptimizerGate | None = None
        if self._scaler is not None:
            self._gate = OptimizerGate(getattr(optimizer, "optimizer", optimizer), safety)

    def begin(self) -> None:
        """Begins a step."""
        self.reading = None
        self.verdict = FINE
        if self._gate is not None:
            self._gate.closed = False  # the scaler may have skipped the last step by itself, past the gate
        self._observer.begin()

    def inspect(self, step: int) -> NonFiniteSeen | None:
        """Inspects the update that is about to be made. With several ranks this is a collective call.

        Args:
            step: The update's number.

        Returns:
            What to record when the step was not finite.
        """
        # Each part on its own: whatever fails on this rank, it must still meet the others.
        own = self._look() or _FINE
        agreed = own if self._agreement.alone else self._agree(own) or self._part()
        return self._act(step, agreed)

    def read(self) -> StepReading:
        """Returns what was seen of the step, also where no inspection came by."""
        return self.reading or self._observer.read()

    def remove(self) -> None:
        """Takes the hook off the optimizer."""
        if self._gate is not None:
            self._gate.remove()

    @harmless
    def _look(self) -> Flags:
        scale = None
        if self._scaler is not None and self._scaler.is_enabled():
            scale = self._scaler._get_scale_async()
        reading = self.reading = self._observer.read(scale)
        self._hook.hook_everything = not reading.loss_seen or (reading.norm is None and reading.squares is None)
        command = self._commanded()
        own = reading.loss_bad or reading.local_gradient_bad
        if not (own or reading.gradient_bad or command) and reading.squares is None:
            return _FINE
        return Flags(
            reading.loss_bad,
            reading.gradient_bad,
            self._rank + 1 if own else 0,
            (command,) if command else (),
            squares=reading.squares,
        )

    @harmless
    def _commanded(self) -> int:
        return self._control.next(now())

    @harmless
    def _agree(self, own: Flags) -> Flags:
        return self._agreement.agree(own)

    def _part(self) -> Flags:
        """Meets nobody from now on: the ranks could not agree, and none may act alone."""
        self._guard.policy = "record"
        self._agreement.leave()
        return _FINE

    @harmless
    def _act(self, step: int, agreed: Flags) -> NonFiniteSeen | None:
        if agreed.squares is not None:
            self._add_up(agreed.squares)
        if not (agreed.loss_bad or agreed.gradient_bad or agreed.commands):
            self._guard.judge(loss_finite=True, gradient_finite=True, scaled=False)
            return None
        verdict = self.verdict = self._guard.judge(
            loss_finite=not agreed.loss_bad,
            gradient_finite=not agreed.gradient_bad,
            scaled=self._scaler is not None or (self.reading is not None and self.reading.scaled),
        )
        if verdict.skip and not self._skip() and not verdict.halt:
            # DeepSpeed and layer-wise optimizers have taken the gradients away already: nothing was held back.
            verdict = self.verdict = msgspec.structs.replace(verdict, skip=False, action="recorded")
        for number in agreed.commands:
            if self._control.obey(number):
                self._obey(step, number)
        if not verdict.nonfinite:
            return None
        seen = self._describe(step, agreed, verdict)
        if verdict.halt:
            self.halt = Halt(NONFINITE_LOSS if agreed.loss_bad else NONFINITE_GRADIENT, evidence(seen), step)
        return seen

    def _add_up(self, squares: float) -> None:
        if self.reading is not None:
            norm = math.sqrt(squares)
            self.reading.values["train/grad_norm"] = norm
            self.reading = msgspec.structs.replace(self.reading, norm=norm)

    def _skip(self) -> bool:
        if self._gate is not None:
            self._gate.closed = True
            return True
        return drop_gradients(self._observer.gradients.parameters) > 0

    def _describe(self, step: int, agreed: Flags, verdict: Verdict) -> NonFiniteSeen:
        reading = self.reading or StepReading({})
        value = reading.loss if agreed.loss_bad else reading.norm
        return NonFiniteSeen(
            time=now(),
            step=step,
            where="loss" if agreed.loss_bad else "gradient",
            # Another rank's value is not known here, and the norm of a NaN that clipping has spread was not Inf.
            value=math.nan if value is None or math.isfinite(value) else value,
            action=verdict.action,
            micro_batches=reading.bad_micro_batches,
            # A sum over ranks can overflow although no rank's own gradient did: then rank 0 speaks for all.
            local=reading.loss_bad or reading.local_gradient_bad or not (agreed.culprit or self._rank),
            culprit=agreed.culprit - 1 if agreed.culprit and not self._agreement.alone else None,
            parameters=reading.culprits[:_NAMES],
            parameter_count=len(reading.culprits),
            in_a_row=verdict.in_a_row,
            recent=verdict.recent,
        )

    @harmless
    def _known(self, number: int) -> Command | None:
        return self._control.find(number)

    def _obey(self, step: int, number: int) -> None:
        # One that this node has not got yet, or cannot read, is obeyed all the same: the other ranks do so too. One of
        # them can say what it was for.
        command = self._known(number) or Command(id=number >> 1, run="", action="halt")
        if not Control.is_halt(number):
            reason = wording.sentence(command.rule, command.parameters, step=command.step, rank=command.rank)
            self.save = reason if command.rule else command.reason
        elif self.halt is None:
            self.halt = _halt(command, step)


def _halt(command: Command, step: int) -> Halt:
    if not command.rule:
        return Halt(COMMAND, {"reason": command.reason}, step)
    where = {"culprit": command.rank, FOUND_AT: command.step}
    return Halt(command.rule, {**command.parameters, **where}, step)
