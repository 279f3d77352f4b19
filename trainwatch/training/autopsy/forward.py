"""The forward pass under observation: which module was the first to make something that is not finite."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any, Final, NamedTuple

import torch

from trainwatch.events import TensorSummary
from trainwatch.training.autopsy.limits import Budget
from trainwatch.training.autopsy.tensors import Extremes, Memory, is_float, look, summarise, tensors_in

_ORIGINAL: Final = "_orig_mod"
"""Where a module that torch.compile has wrapped keeps the module that it is."""


class OutOfRange(Exception):
    """An index lies outside of the table that it is looked up in; on a GPU the lookup would end the process.

    Args:
        name: The embedding's name.
        value: The index.
        size: Rows of the table.
    """

    def __init__(self, name: str, value: int, size: int) -> None:
        super().__init__(f"index {value} is out of range for {name} with {size} entries")
        self.name = name
        self.value = value
        self.size = size


class Call:
    """One call of a module.

    Attributes:
        module: The module.
        name: Its name, as in ``named_modules``; empty for the model itself.
        turn: Which call of this module it is, from 1.
        parent: The call within which it is made.
        began: Number of the first autograd node that could be made in it; ``ended`` of the first one after it.
        inputs_fine: No input was NaN or +Inf. (-Inf is what masks are made of.)
        outputs: Name, tensor in few words, and what is in it, of each output that can hold a NaN.
        bad: Names and contents of the outputs that were not finite.
        explained: A call within this one was not finite either.
    """

    __slots__ = ("bad", "began", "ended", "explained", "inputs_fine", "module", "name", "outputs", "parent", "turn")

    def __init__(self, module: torch.nn.Module, name: str, turn: int, parent: Call | None, fine: bool) -> None:
        self.module = module
        self.name = name
        self.turn = turn
        self.parent = parent
        self.began = self.ended = 0
        self.inputs_fine = fine
        self.explained = False
        self.outputs: list[TensorSummary] = []
        self.bad: list[tuple[str, torch.Size, torch.dtype, Extremes]] = []

    @property
    def kind(self) -> str:
        """The module's class."""
        return type(self.module).__name__

    @property
    def swallowed(self) -> bool:
        """What was not finite did not get out of a module around it: a mask, say."""
        around = self.parent
        while around is not None and around.parent is not None:
            if around.outputs and not around.bad:
                return True
            around = around.parent
        return False


class Fed(NamedTuple):
    """A call that was given something not finite before any module had made it.

    Attributes:
        call: The call.
        size: Elements of the first such tensor.
        found: What is in it.
    """

    call: Call
    size: int
    found: Extremes


Closer = Callable[[Call, tuple[Any, ...], dict[str, Any]], None]


class ForwardWatch:
    """Hooks on every module, for one forward pass: ``with ForwardWatch(model, budget) as watch: model(**inputs)``.

    Args:
        model: The model.
        budget: Looked at in each hook.
        closer: Called with a module whose output was not finite, within the forward pass, with what it was given.

    Attributes:
        calls: The calls that are over, in the order in which they ended.
        fed: The first call that got something not finite although the call around it did not.
    """

    def __init__(self, model: torch.nn.Module, budget: Budget, closer: Closer | None = None) -> None:
        self._model = model
        self._budget = budget
        self._closer = closer
        self._names: dict[torch.nn.Module, str] = {}
        self._turns: dict[torch.nn.Module, int] = {}
        self._stack: list[tuple[Call, tuple[int, ...]]] = []
        self._memory = Memory()
        self._thread = threading.get_ident()
        self._on = False
        self._handles: list[Any] = []
        self.calls: list[Call] = []
        self.fed: Fed | None = None

    def __enter__(self) -> ForwardWatch:
        for name, module in self._model.named_modules():
            if hasattr(module, _ORIGINAL):
                continue  # only a shell
            self._names[module] = ".".join(part for part in name.split(".") if part != _ORIGINAL)
            # Behind the user's own hooks, which may change what goes in and comes out.
            self._handles.append(module.register_forward_pre_hook(self._before, with_kwargs=True))
            self._handles.append(module.register_forward_hook(self._after, with_kwargs=True))
        self._on = True
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
        for handle in self._handles:
            handle.remove()

    def stop(self) -> None:
        """Stops looking: what is called from now on belongs to a backward pass (gradient checkpointing)."""
        self._on = False

    @property
    def root(self) -> Call | None:
        """The last call of the model itself."""
        return next((call for call in reversed(self.calls) if call.module is self._model), None)

    def first_bad(self) -> Call | None:
        """Returns the first call whose output was not finite although its inputs were; not the model's own."""
        return next((call for call in self.calls if self._is_bad(call) and not call.swallowed), None)

    def innermost(self, number: int) -> Call | None:
        """Returns the innermost call in which the autograd node of this number was made."""
        around = [call for call in self.calls if call.began <= number < call.ended]
        return max(around, key=lambda call: (call.began, -call.ended), default=None)

    def shown(self, last: Call, count: int = 4) -> list[TensorSummary]:
        """Returns the outputs of the modules without parts that ran before a call, and its own, in forward order."""
        place = self.calls.index(last)
        before = [call for call in self.calls[:place] if not _parts(call.module) and call.outputs]
        return [summary for call in (*before[-count:], last) for summary in call.outputs[:2]]

    def turns(self, call: Call) -> int:
        """How often the call's module was called."""
        return self._turns[call.module]

    def _is_bad(self, call: Call) -> bool:
        return bool(call.bad) and call.inputs_fine and call.module is not self._model

    def _ours(self, module: torch.nn.Module) -> bool:
        return self._on and module in self._names and threading.get_ident() == self._thread

    def _before(self, module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if not self._ours(module):
            return
        self._budget.check()
        name = self._names[module]
        _check_range(module, name, args, kwargs)
        turn = self._turns[module] = self._turns.get(module, 0) + 1
        given = [tensor for _, tensor in tensors_in((args, kwargs))]
        looked = ((tensor.numel(), self._memory.look(tensor)) for tensor in given if is_float(tensor))
        bad = next(((size, found) for size, found in looked if not found.harmless), None)
        parent = self._stack[-1][0] if self._stack else None
        call = Call(module, name, turn, parent, bad is None)
        if bad is not None and self.fed is None and parent is not None and parent.inputs_fine:
            self.fed = Fed(call, *bad)
        call.began = next_node()
        self._stack.append((call, _versions(given)))

    def _after(self, module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
        if not self._ours(module):
            return
        self._budget.check()
        while self._stack and self._stack[-1][0].module is not module:
            self._stack.pop()  # left by an exception that the model has caught
        if not self._stack:
            return
        call, versions = self._stack.pop()
        call.ended = next_node()
        shown = call.name or call.kind
        for name, tensor in tensors_in(output):
            if not is_float(tensor):
                continue
            found = self._memory.look(tensor)
            call.outputs.append(summarise(f"{shown}.{name}" if name not in ("", "0") else shown, tensor, found))
            if not found.finite:
                call.bad.append((name, tensor.shape, tensor.dtype, found))
        self.calls.append(call)
        if not call.bad:
            return
        explained = call.explained
        if call.parent is not None:
            call.parent.explained = True
        if explained or self._closer is None or not self._is_bad(call):
            return
        if _versions([tensor for _, tensor in tensors_in((args, kwargs))]) == versions:
            self._on = False
            try:
                self._closer(call, args, kwargs)
            finally:
                self._on = True


def next_node() -> int:
    """Returns the number that the next autograd node of this thread is going to have."""
    peek = getattr(torch.autograd, "_get_sequence_nr", None)
    if peek is not None:
        return int(peek())
    with torch.enable_grad():
        node: Any = torch.empty(0, requires_grad=True).clone().grad_fn
    return int(node._sequence_nr()) + 1


def _versions(tensors: list[torch.Tensor]) -> tuple[int, ...]:
    return tuple(0 if tensor.is_inference() else tensor._version for tensor in tensors)


def _parts(module: torch.nn.Module) -> bool:
    return next(module.children(), None) is not None


def _check_range(module: torch.nn.Module, name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
    own_way = "forward" in vars(module) and not hasattr(module, "_hf_hook")  # the latter is accelerate's device map
    if type(module).forward is not torch.nn.Embedding.forward or own_way:
        return
    ids = args[0] if args else kwargs.get("input")
    size = module.weight.shape[0]  # type: ignore[index]
    if isinstance(ids, torch.Tensor) and (wrong := out_of_range(ids, int(size))) is not None:
        raise OutOfRange(name, wrong, int(size))


def out_of_range(ids: torch.Tensor, size: int) -> int | None:
    """Returns an index that is not in a table of this size, or None."""
    found = look(ids)
    if found.low is None or found.high is None:
        return None
    if found.high >= size:
        return int(found.high)
    return int(found.low) if found.low < 0 else None
