"""Running a batch once more: forward, and where only gradients were bad backward too, under observation."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from typing import Any, Final

import torch

from trainwatch.events import TensorSummary
from trainwatch.training.autopsy.backward import BackwardWatch, Birth, asked_for
from trainwatch.training.autopsy.forward import Call, Fed, ForwardWatch, OutOfRange
from trainwatch.training.autopsy.half import HALF, HalfTest, Overflow
from trainwatch.training.autopsy.limits import Alone, Budget, Notes, several_ranks
from trainwatch.training.autopsy.traces import Rng, checkpointing
from trainwatch.training.signals.loss import find_loss

ComputeLoss = Callable[..., Any]
"""Called with the model, a dict of inputs, and what else the loss function was given."""

_ATTEMPTS: Final = 4
"""How often a batch is run when the model draws random numbers: a NaN may depend on dropout."""


class Seen:
    """What one run of a batch showed.

    Attributes:
        loss: Its loss, None when there was none or the run did not get so far.
        call: The first module whose output was not finite although its inputs were.
        root: The call of the model itself.
        fed: The first call that was given something not finite by code between modules.
        overflow: Evidence that it was the range of a half-precision type.
        birth: The first operation whose gradient was not finite.
        birth_call: The module in whose call the operation was.
        scaled_away: The gradient is finite without the loss scaler's factor.
        outputs: The outputs that lead to `call` or `birth_call`.
        turns: How often that module was called.
        lookup: An index that lies outside of its table; the run ended there.
    """

    def __init__(self) -> None:
        self.loss: torch.Tensor | None = None
        self.call: Call | None = None
        self.root: Call | None = None
        self.fed: Fed | None = None
        self.overflow: Overflow | None = None
        self.birth: Birth | None = None
        self.birth_call: Call | None = None
        self.scaled_away = False
        self.outputs: list[TensorSummary] = []
        self.turns = 1
        self.lookup: OutOfRange | None = None

    @property
    def bad_loss(self) -> float | None:
        """The loss, when it is not finite."""
        if self.loss is None:
            return None
        value = float(self.loss.detach().float().mean())
        return None if math.isfinite(value) else value

    @property
    def only_loss(self) -> bool:
        """The loss is not finite, and nothing that it is made of."""
        return self.bad_loss is not None and self.call is None and self.fed is None

    @property
    def bad(self) -> bool:
        """The run was not finite, at its end."""
        if self.lookup is not None or self.birth is not None or self.bad_loss is not None:
            return True
        # Without a loss to see: something not finite got out of the model.
        return self.loss is None and (self.call is not None or bool(self.root is not None and self.root.bad))


class Runner:
    """Runs batches of one model.

    Args:
        model: The model.
        compute_loss: Makes the loss from the model and a batch; None for the loss in the model's output.
        names: Parameters whose gradient was not finite.
        scale: What the backward pass begins with.
        rng: The random number generators.
        budget: Time for it.
        notes: What did not work.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        compute_loss: ComputeLoss | None,
        names: list[str],
        scale: float,
        rng: Rng,
        budget: Budget,
        notes: Notes,
    ) -> None:
        self._model = model
        self._compute_loss = compute_loss
        self._names = names
        self._scale = scale
        self._rng = rng
        self._budget = budget
        self._notes = notes
        self.attempts = 0
        self.random = False

    def run(
        self,
        args: tuple[Any, ...],
        given: Mapping[str, Any],
        loss_arguments: Mapping[str, Any] | None = None,
        *,
        backward: bool,
    ) -> Seen | None:
        """Runs a batch until it is not finite, several times if the model draws random numbers.

        Args:
            args: Positional arguments of the model's forward.
            given: Keyword arguments.
            loss_arguments: What else ``compute_loss`` is given.
            backward: The loss was finite and only gradients were not.

        Returns:
            What was seen; of several runs the first bad one or the last. None when none got to an end.
        """
        seen: Seen | None = None
        self._loss_arguments = dict(loss_arguments or {})
        for _ in range(_ATTEMPTS):
            before = self._rng.now()
            seen = self._once(args, given, backward)
            self.attempts += 1
            if seen is None or seen.bad or not self._rng.moved(before):
                break
            self.random = True
        return seen

    def _once(self, args: tuple[Any, ...], given: Mapping[str, Any], backward: bool) -> Seen | None:
        seen = Seen()
        ended = False
        self._notes.last = None
        with self._notes.guard("running the batch once more"):
            self._passes(seen, args, given, gradients=backward, backward=backward)
            ended = True
        if not ended and not backward and seen.call is None and _needs_gradients(self._notes.last):
            self._notes.texts.pop()  # a force field, say, whose forward pass takes gradients itself
            seen = Seen()
            with self._notes.guard("running the batch once more"):
                self._passes(seen, args, given, gradients=True, backward=False)
                ended = True
        return seen if ended or seen.call is not None or seen.birth is not None else None

    def _passes(
        self, seen: Seen, args: tuple[Any, ...], given: Mapping[str, Any], *, gradients: bool, backward: bool
    ) -> None:
        half = HalfTest(self._rng, self._notes)
        with ExitStack() as stack:
            stack.enter_context(checkpointing(self._model, backward=gradients))
            if several_ranks():
                stack.enter_context(Alone())  # type: ignore[no-untyped-call]
            stack.enter_context(torch.set_grad_enabled(gradients))
            watch = stack.enter_context(ForwardWatch(self._model, self._budget, half.look))
            try:
                seen.loss = self._forward(args, given)
            except OutOfRange as error:
                seen.lookup = error.with_traceback(None)  # its frames hold the activations
                return
            finally:
                watch.stop()
                seen.root, seen.fed = watch.root, watch.fed
                seen.call = watch.first_bad()
                if seen.call is not None:
                    seen.overflow = half.found.get(seen.call)
                    seen.outputs = watch.shown(seen.call)
                    seen.turns = watch.turns(seen.call)
            if backward and seen.bad_loss is None:
                self._backward(seen, watch)

    def _forward(self, args: tuple[Any, ...], given: Mapping[str, Any]) -> torch.Tensor | None:
        if self._compute_loss is not None:
            result = self._compute_loss(self._model, dict(given), **self._loss_arguments)
            loss: torch.Tensor | None = result[0] if isinstance(result, tuple) else result
            return loss
        output = self._model(*args, **given)
        return find_loss(output, given.get("labels") is not None)

    def _backward(self, seen: Seen, watch: ForwardWatch) -> None:
        loss = seen.loss
        if loss is None or loss.grad_fn is None:
            self._notes.add("running the batch once more: there is no loss to begin a backward pass at")
            return
        wanted = asked_for(self._model, self._names)
        scaled = self._scale != 1.0
        birth = BackwardWatch(self._budget).run(loss, wanted, self._scale, keep=scaled)
        if birth is None:
            return
        seen.birth = birth
        seen.birth_call = call = watch.innermost(birth.number)
        if call is not None:
            seen.outputs = watch.shown(call)
            seen.turns = watch.turns(call)
        if scaled and birth.dtype in HALF:
            seen.scaled_away = BackwardWatch(self._budget).run(loss, wanted, 1.0) is None


def _needs_gradients(error: Exception | None) -> bool:
    return isinstance(error, RuntimeError) and ("does not require grad" in str(error) or "grad_fn" in str(error))
