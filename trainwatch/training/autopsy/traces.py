"""Leaving no trace: what running a model once more would change is kept, and put back bit for bit."""

from __future__ import annotations

import functools
import random
import sys
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any, Final

import torch
from torch.utils.checkpoint import checkpoint

from trainwatch.training.autopsy.quiet import announced
from trainwatch.training.autopsy.tensors import tensors_in

_INTERNAL: Final = frozenset(torch.nn.Module().__dict__) - {"training"}
"""What torch keeps in every module; of these only buffers change by themselves."""
_CONTAINERS: Final = (list, dict, set, deque, OrderedDict, defaultdict)
_LARGE: Final = 10_000
"""Elements of a container that are not worth keeping: nobody makes one of these in a forward pass."""
_CHECKPOINTING: Final = "_gradient_checkpointing_func"

Undo = Callable[[], None]


@contextmanager
def untouched(model: torch.nn.Module, inputs: Iterable[Mapping[str, Any]], owners: Iterable[Any] = ()) -> Iterator[Rng]:
    """Keeps random number generators, buffers, gradients and plain attributes as they are.

    What a hook of the user's does outside of the model's modules is not undone.

    Args:
        model: What is going to run.
        inputs: What it is going to be given.
        owners: Objects besides the model whose plain attributes (numbers, lists …) may change: a Trainer, whose
            ``compute_loss`` counts.

    Yields:
        The generators, for those who need to go back to a state in between.
    """
    devices = {tensor.device for tensor in (*model.parameters(), *model.buffers())}
    devices |= {tensor.device for given in inputs for _, tensor in tensors_in(given)}
    rng = Rng(devices, model)
    with ExitStack() as stack, announced():
        # Undone in reverse order, each of them whatever happens to the others.
        stack.callback(rng.restore, rng.now())
        stack.callback(_keep_buffers(model))
        for owner in (*model.modules(), *owners):
            stack.callback(_keep_attributes(owner))
        _hide_gradients(model, stack)
        if "torch._dynamo" in sys.modules and hasattr(torch.compiler, "set_stance"):
            stack.enter_context(torch.compiler.set_stance("force_eager"))
        yield rng


class Rng:
    """The random number generators that a model may draw from.

    Args:
        devices: Devices that are used.
        model: Its modules may hold generators of their own.
    """

    def __init__(self, devices: Iterable[torch.device], model: torch.nn.Module) -> None:
        self._devices = [device for device in devices if device.type not in ("cpu", "meta")]
        self._own = [
            value for module in model.modules() for value in vars(module).values() if isinstance(value, torch.Generator)
        ]

    def now(self) -> list[Any]:
        """Returns the present states."""
        numpy = sys.modules.get("numpy")
        return [
            random.getstate(),
            None if numpy is None else numpy.random.get_state(),
            torch.get_rng_state(),
            [_generator(device, "get_rng_state")() for device in self._devices],
            [generator.get_state() for generator in self._own],
        ]

    def restore(self, states: list[Any]) -> None:
        """Goes back to states that were returned before."""
        python, numbers, host, on_devices, own = states
        random.setstate(python)
        if numbers is not None:
            sys.modules["numpy"].random.set_state(numbers)
        torch.set_rng_state(host)
        for device, state in zip(self._devices, on_devices, strict=True):
            _generator(device, "set_rng_state")(state)
        for generator, state in zip(self._own, own, strict=True):
            generator.set_state(state)

    def moved(self, states: list[Any]) -> bool:
        """Tells whether a torch generator has been used since."""
        before = [states[2], *states[3], *states[4]]
        now = self.now()
        return not all(torch.equal(*pair) for pair in zip(before, [now[2], *now[3], *now[4]], strict=True))


def _generator(device: torch.device, function: str) -> Callable[..., Any]:
    found = getattr(getattr(torch, device.type), function)
    return found if device.type == "mps" else functools.partial(found, device=device)  # there is one of these only


def _keep_buffers(model: torch.nn.Module) -> Undo:
    kept = [(module._buffers, dict(module._buffers)) for module in model.modules() if module._buffers]
    tensors = {buffer for _, names in kept for buffer in names.values() if buffer is not None}
    values = [(buffer, buffer.detach().clone()) for buffer in tensors if buffer.device.type != "meta"]

    def undo() -> None:
        for names, before in kept:
            if names.keys() != before.keys() or any(names[name] is not before[name] for name in before):
                names.clear()
                names.update(before)
        with torch.no_grad():
            for buffer, value in values:
                if not _identical(buffer, value):
                    buffer.copy_(value)

    return undo


def _identical(first: torch.Tensor, second: torch.Tensor) -> bool:
    # Byte by byte: NaN is NaN, and 0 is not -0.
    return first.shape == second.shape and torch.equal(*(t.reshape(-1).view(torch.uint8) for t in (first, second)))


def _keep_attributes(owner: Any) -> Undo:
    attributes = vars(owner)
    skip = _INTERNAL if isinstance(owner, torch.nn.Module) else frozenset()
    before = {name: value for name, value in attributes.items() if name not in skip}
    contents = [_keep_contents(value) for value in before.values() if type(value) in _CONTAINERS]

    def undo() -> None:
        for name in [name for name in attributes if name not in skip and name not in before]:
            del attributes[name]
        for name, value in before.items():
            if attributes.get(name, undo) is not value:
                attributes[name] = value
        for restore in contents:
            restore()

    return undo


def _keep_contents(container: Any) -> Undo:
    if len(container) > _LARGE:
        return _nothing
    keyed = isinstance(container, dict)
    before = list(container.items()) if keyed else list(container)
    parts = [part for _, part in before] if keyed else before
    inner = [_keep_contents(part) for part in parts if type(part) in _CONTAINERS]

    def undo() -> None:
        now = list(container.items()) if keyed else list(container)
        same = len(now) == len(before) and all(
            (a[0] is b[0] and a[1] is b[1]) if keyed else a is b for a, b in zip(now, before, strict=True)
        )
        if not same:
            container.clear()
            (container.update if isinstance(container, dict | set) else container.extend)(before)
        for restore in inner:
            restore()

    return undo


def _nothing() -> None:
    """Undoes nothing."""


def _hide_gradients(model: torch.nn.Module, stack: ExitStack) -> None:
    """Takes the gradients out of reach, so that whatever is accumulated goes into others, which are dropped."""
    for parameter in model.parameters():
        gradient = parameter.grad
        if gradient is None:
            stack.callback(_put_back, parameter, None)
            continue
        parameter.grad = gradient  # raises where torch would not take it back, and then it stays where it is
        stack.callback(_put_back, parameter, gradient)
        parameter.grad = None


def _put_back(parameter: torch.nn.Parameter, gradient: torch.Tensor | None) -> None:
    if parameter.grad is not gradient:
        parameter.grad = gradient


@contextmanager
def checkpointing(model: torch.nn.Module, *, backward: bool) -> Iterator[None]:
    """Lets gradient checkpointing be run by an autopsy.

    Without a backward pass it only warns. With one, the reentrant kind refuses to work for ``torch.autograd.grad``,
    which an autopsy uses because it leaves the gradients alone.

    Args:
        model: The model; what a module of it calls is kept in an attribute by transformers.
        backward: There will be a backward pass.
    """
    replaced: list[tuple[dict[str, Any], Any]] = []
    for module in model.modules():
        attributes = vars(module)
        function = attributes.get(_CHECKPOINTING)
        if function is None:
            continue
        replaced.append((attributes, function))
        if not backward:
            attributes[_CHECKPOINTING] = _call
        elif isinstance(function, functools.partial) and function.func is checkpoint:
            attributes[_CHECKPOINTING] = functools.partial(function, use_reentrant=False)
        elif function is checkpoint:
            attributes[_CHECKPOINTING] = functools.partial(checkpoint, use_reentrant=False)
    try:
        yield
    finally:
        for attributes, function in replaced:
            attributes[_CHECKPOINTING] = function


def _call(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    return function(*args)
