"""The tap on a Trainer: what only the Trainer knows, the loss that it really trains on above all.

Callbacks are not told the loss. The model's output holds one, which is not what is trained on where ``compute_loss`` is
the user's own, labels are smoothed, or a trainer of TRL computes something else. :func:`trainwatch.watch` hands the
Trainer over, and for the time of the training three of its methods are wrapped: ``accelerator.backward`` (the loss, and
the gradients when it returns), ``accelerator.clip_grad_norm_`` (the norm over all ranks' shards) and ``compute_loss``
(the loss of an evaluation, and the inputs). What they do is not changed.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from trainwatch.training.hooks import ModelHook
from trainwatch.training.safety import Safety, harmless


class TrainerObserver(Protocol):
    """Who is told."""

    tapped: bool
    reduces: bool

    def backward_begins(self, loss: Any) -> None:
        """A backward pass begins at this loss: a micro-batch's share of the step's loss, these add up to it."""

    def backward_returned(self) -> None:
        """A backward pass is over, with DDP's all-reduce."""

    def clipped(self, norm: Any) -> None:
        """The gradients are complete, unscaled and clipped; this was their norm before it."""

    def overflowed(self, scaled: bool) -> None:
        """DeepSpeed found gradients that are not finite, and has skipped the step.

        Args:
            scaled: A loss scaler is at work, whose business such steps are.
        """

    def saw_inputs(self, inputs: Mapping[str, Any], num_items: Any) -> None:
        """A micro-batch's loss was computed from these inputs.

        Args:
            inputs: What ``compute_loss`` got, before it took anything away (labels, to smooth them).
            num_items: What the loss is divided by, where the Trainer tells: the supervised tokens of the whole step.
        """

    def saw_eval_loss(self, loss: Any) -> None:
        """The loss of an evaluation batch."""


class Tap:
    """Wraps the methods of one Trainer.

    Args:
        trainer: A ``transformers.Trainer``, or what is derived from it.
        observer: Is told.
        hook: The observer's hook on the model.
        safety: Where our failures are counted.

    Attributes:
        compute_loss: The Trainer's own, without the wrapper.

    Raises:
        AttributeError: The Trainer lacks one of the methods.
    """

    def __init__(self, trainer: Any, observer: TrainerObserver, hook: ModelHook, safety: Safety) -> None:
        self.safety = safety
        self._observer = observer
        self._hook = hook
        self._undo: list[Callable[[], None]] = []
        self.compute_loss: Callable[..., Any] = trainer.compute_loss
        accelerator = trainer.accelerator
        # As accelerate's own backward divides; DeepSpeed's engine does so by itself.
        own_division = "DEEPSPEED" in str(accelerator.distributed_type)
        self._parts = 1 if own_division else int(accelerator.gradient_accumulation_steps)
        self._accelerator = accelerator
        self._asks_engine = own_division
        self._wrap(accelerator, "backward", self._around_backward)
        self._wrap(accelerator, "clip_grad_norm_", self._around_clipping)
        self._wrap(trainer, "compute_loss", self._around_compute_loss)
        observer.tapped = True

    def remove(self) -> None:
        """Takes the wrappers off."""
        self._observer.tapped = False
        for undo in self._undo:
            undo()
        self._undo.clear()

    def _wrap(self, owner: Any, name: str, around: Callable[..., Any]) -> None:
        original = getattr(owner, name)
        wrapper = functools.wraps(original)(functools.partial(around, original))
        before = vars(owner).get(name)
        setattr(owner, name, wrapper)

        def undo() -> None:
            if vars(owner).get(name) is not wrapper:
                return  # somebody wrapped it again: what is on top of ours must stay
            if before is None:
                delattr(owner, name)
            else:
                setattr(owner, name, before)

        self._undo.append(undo)

    def _around_backward(self, original: Callable[..., Any], loss: Any, *args: Any, **kwargs: Any) -> Any:
        self._before_backward(loss)
        result = original(loss, *args, **kwargs)
        self._after_backward()
        return result

    def _around_clipping(self, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        norm = original(*args, **kwargs)
        self._after_clipping(norm)
        return norm

    def _around_compute_loss(
        self, original: Callable[..., Any], model: Any, inputs: Any, *args: Any, **kwargs: Any
    ) -> Any:
        before = self._copy(inputs)
        result = original(model, inputs, *args, **kwargs)
        self._after_compute_loss(model, before, result, kwargs.get("num_items_in_batch"))
        return result

    @harmless
    def _before_backward(self, loss: Any) -> None:
        self._observer.backward_begins(loss.detach() / self._parts if self._parts > 1 else loss)
        if self._observer.reduces and loss.requires_grad:
            self._hook.announce(loss)

    @harmless
    def _after_backward(self) -> None:
        self._observer.backward_returned()
        if self._asks_engine:
            # It has clipped and stepped within the backward call.
            engine = getattr(self._accelerator.deepspeed_engine_wrapped, "engine", None)
            if engine is not None:
                self._observer.clipped(engine.get_global_grad_norm())
                if getattr(engine.optimizer, "overflow", False):
                    self._observer.overflowed(engine.fp16_enabled())

    @harmless
    def _after_clipping(self, norm: Any) -> None:
        self._observer.clipped(norm)

    @harmless
    def _copy(self, inputs: Any) -> dict[str, Any]:
        return dict(inputs)

    @harmless
    def _after_compute_loss(self, model: Any, inputs: dict[str, Any] | None, result: Any, num_items: Any) -> None:
        if not model.training:
            self._observer.saw_eval_loss(result[0] if isinstance(result, tuple) else result)
        elif inputs is not None:
            self._observer.saw_inputs(inputs, num_items)
