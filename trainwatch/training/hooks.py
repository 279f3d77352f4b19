"""The hooks on the model: forward passes go by here, and the end of each backward pass is announced.

Hooks travel with a model that is copied or pickled. Ours must neither break that nor watch the copy, hence a class.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import torch

from trainwatch.training.autopsy import is_running
from trainwatch.training.safety import Safety, harmless
from trainwatch.training.signals.loss import find_loss


class ModelObserver(Protocol):
    """What is told about a model's passes."""

    safety: Safety
    reduces: bool
    """Gradients are reduced over ranks behind the backward pass, and that is to be announced too."""
    tapped: bool
    """The Trainer itself says what it trains on, and when: the hook only shows what goes through the model."""

    def saw_forward(
        self, training: bool, inputs: Mapping[str, Any], loss: torch.Tensor | None, args: tuple[Any, ...]
    ) -> None:
        """A forward pass of the model is over, with these keyword arguments and others, and this loss in its output."""

    def loss_was_used(self, weight: torch.Tensor) -> None:
        """The backward pass goes through the loss of the last forward pass.

        Args:
            weight: The derivative of what is trained on by that loss. It tells whether they are the same.
        """

    def backward_ended(self) -> None:
        """A backward pass through the model's output is over; under DDP its all-reduce is not."""

    def reduction_ended(self) -> None:
        """Behind the callbacks that were queued during the backward pass, DDP's all-reduce among them."""


class ModelHook:
    """A forward hook.

    Args:
        model: The model, unwrapped.
        observer: Who is told.

    Attributes:
        hook_everything: The model's own loss is not what the backward pass begins at (a custom ``compute_loss``): look
            for it at every tensor of the output. So it is until the loss has been seen in use.
    """

    def __init__(self, model: Any, observer: ModelObserver) -> None:
        self._model = weakref.ref(model)
        self.safety = observer.safety
        self._observer = observer
        self.hook_everything = True
        self._queued = False
        self._handle = model.register_forward_hook(self, with_kwargs=True)

    @harmless
    def __call__(self, module: Any, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
        """Called by torch after each forward pass."""
        if is_running():
            return  # an autopsy of ours, not the training
        if torch.compiler.is_compiling():
            return  # traced into a graph it would break it; a compiled model's passes are not seen
        model = self._model()
        if model is None or module is not model:
            return  # a copy of the model took the hook along
        loss = find_loss(output, kwargs.get("labels") is not None)
        if module.training:
            if not torch.is_grad_enabled():
                return  # a reference model (DPO) or a generation (GRPO) within the step: nothing is trained on it
            self._queued = False
        if module.training and not self._observer.tapped:
            if loss is not None and loss.requires_grad:
                # On the node and not on the tensor: a third of the time.
                node = loss.grad_fn
                if node is None:
                    loss.register_hook(self._begin_from_loss)  # type: ignore[no-untyped-call]
                else:
                    node.register_prehook(functools.partial(self._begin_from_node, loss.output_nr))
            if loss is None or self.hook_everything:
                for tensor in _tensors(output, loss):
                    tensor.register_hook(self._begin_backward)
        self._observer.saw_forward(module.training, kwargs, loss, args)

    def announce(self, loss: Any) -> None:
        """Announces the end of the backward pass that is about to begin at `loss`, before any all-reduce.

        Args:
            loss: A tensor that requires gradients.
        """
        self._queued = False
        loss.register_hook(self._begin_backward)

    def __deepcopy__(self, memo: dict[int, Any]) -> ModelHook:
        return self

    def __reduce__(self) -> tuple[Callable[[], Any], tuple[()]]:
        return _no_hook, ()

    def is_on(self, model: Any) -> bool:
        """Tells whether it hooks a model."""
        return self._model() is model

    def remove(self) -> None:
        """Takes the hook off the model."""
        self._handle.remove()

    @harmless
    def _begin_from_node(self, place: int, gradients: tuple[Any, ...]) -> None:
        self._announce_end(gradients[place])

    @harmless
    def _begin_from_loss(self, gradient: Any) -> None:
        self._announce_end(gradient)

    def _announce_end(self, gradient: Any) -> None:
        if not self._queued:
            self._queued = True
            _queue_callback(self._end_backward)
        self._observer.loss_was_used(gradient)

    @harmless
    def _begin_backward(self, _gradient: Any) -> None:
        # Several outputs (loss, logits) may carry the hook; the first to get a gradient announces the end, once.
        if not self._queued:
            self._queued = True
            _queue_callback(self._end_backward)

    def _end_backward(self) -> None:
        self._local_complete()
        if self._observer.reduces and not self._observer.tapped:
            # Callbacks queued by callbacks run too, behind those that were queued during the pass.
            self._queue_reduction()

    @harmless
    def _local_complete(self) -> None:
        self._observer.backward_ended()

    @harmless
    def _queue_reduction(self) -> None:
        _queue_callback(self._end_reduction)

    @harmless
    def _end_reduction(self) -> None:
        self._observer.reduction_ended()


def _no_hook() -> Callable[..., None]:
    return _nothing


def _nothing(*args: Any, **kwargs: Any) -> None:
    """What a pickled hook becomes."""


_queue_callback: Callable[[Callable[[], None]], None] = torch.autograd.Variable._execution_engine.queue_callback


def _tensors(output: Any, loss: Any) -> list[Any]:
    """Returns the tensors of an output, but for the loss, that a backward pass may begin at."""
    if isinstance(output, Mapping):
        values = list(output.values())
    else:
        values = list(output) if isinstance(output, list | tuple) else [output]
    found = [value for value in values if getattr(value, "requires_grad", False) and hasattr(value, "register_hook")]
    return [tensor for tensor in found if tensor is not loss][:4]
