"""The backward pass under observation: which operation was the first to make a gradient that is not finite.

Hooks sit on the autograd nodes and not on the modules: module backward hooks put operations of their own into the
graph, which breaks models that work in place, and a tensor's gradient is the sum over all its uses, so that it does not
tell which of them went wrong. A node belongs to the module in whose call it was made: nodes are numbered.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import Any, Final

import torch

from trainwatch.events import TensorSummary
from trainwatch.training.autopsy.limits import Budget
from trainwatch.training.autopsy.tensors import Extremes, look, summarise

_LEAF: Final = "AccumulateGrad"
_ROOM: Final = 512 << 20
"""Bytes of gradients that are asked for at once; what is asked for stays in memory until the end."""


class Birth:
    """An operation whose gradient was not finite although what it was given was.

    Attributes:
        operation: Its name (``"Sqrt"``).
        number: Its autograd node's number.
        given: The gradients it was given, in few words.
        made: The gradients it made.
        extremes: What is in the first bad one of these.
        dtype: The type of that one.
        size: Its elements.
    """

    def __init__(
        self, node: Any, given: list[TensorSummary], made: list[TensorSummary], bad: torch.Tensor, extremes: Extremes
    ) -> None:
        self.node = node
        self.operation = operation(node.name())
        self.number = int(node._sequence_nr())
        self.given = given
        self.made = made
        self.extremes = extremes
        self.dtype = bad.dtype
        self.size = bad.numel()


class BackwardWatch:
    """Runs the backward pass of a loss and leaves every gradient as it is.

    Args:
        budget: Looked at in each hook.
    """

    def __init__(self, budget: Budget) -> None:
        self._budget = budget
        self._births: list[Birth] = []
        self._bad: dict[Any, list[int]] = {}

    def run(
        self, loss: torch.Tensor, parameters: list[torch.nn.Parameter], scale: float, *, keep: bool = False
    ) -> Birth | None:
        """Runs it.

        Args:
            loss: Where it begins.
            parameters: Whose gradients are asked for.
            scale: What it begins with: a loss scaler's factor, say.
            keep: The graph will be needed again.

        Returns:
            The first operation whose bad gradient reached a parameter, None when there is none.
        """
        nodes = self._nodes(loss.grad_fn)
        reached = {node.variable for node in nodes if _is_leaf(node)}
        wanted = [parameter for parameter in parameters if parameter in reached]
        if not wanted:
            return None
        handles = [node.register_hook(self._hook(node)) for node in nodes if not _is_leaf(node)]
        try:
            torch.autograd.grad(loss, wanted, torch.full_like(loss, scale), retain_graph=keep, allow_unused=True)
        finally:
            for handle in handles:
                handle.remove()
        return next((birth for birth in self._births if self._reaches_leaf(birth.node)), None)

    def _nodes(self, root: Any) -> list[Any]:
        found, waiting = {root}, [root]
        while waiting:
            self._budget.check()
            for node, _ in waiting.pop().next_functions:
                if node is not None and node not in found:
                    found.add(node)
                    waiting.append(node)
        return list(found)

    def _hook(self, node: Any) -> Callable[[Any, Any], None]:
        def seen(made: tuple[Any, ...], given: tuple[Any, ...]) -> None:
            self._budget.check()
            self._saw(node, made, given)

        return seen

    def _saw(self, node: Any, made: tuple[Any, ...], given: tuple[Any, ...]) -> None:
        looked = [(place, tensor, look(tensor)) for place, tensor in _present(made)]
        bad = [one for one in looked if not one[2].finite]
        if not bad:
            return
        self._bad[node] = [place for place, _, _ in bad]
        received = [(place, tensor, look(tensor)) for place, tensor in _present(given)]
        if received and all(found.finite for _, _, found in received):
            name = operation(node.name())
            self._births.append(
                Birth(
                    node,
                    [summarise(f"gradient into {name}", tensor, found) for _, tensor, found in received[:2]],
                    [summarise(f"gradient out of {name}", tensor, found) for _, tensor, found in looked[:2]],
                    bad[0][1],
                    bad[0][2],
                )
            )

    def _reaches_leaf(self, start: Any) -> bool:
        """Follows what is not finite: a mask may have swallowed it on its way."""
        waiting, done = [start], {start}
        while waiting:
            node = waiting.pop()
            for place in self._bad.get(node, ()):
                below = node.next_functions[place][0] if place < len(node.next_functions) else None
                if below is None or below in done:
                    continue
                if _is_leaf(below):
                    return True
                done.add(below)
                waiting.append(below)
        return False


def asked_for(model: torch.nn.Module, names: Iterable[str]) -> list[torch.nn.Parameter]:
    """Chooses parameters whose gradients lead through the bad part of the graph, small ones first.

    Args:
        model: The model.
        names: Parameters whose gradient was not finite; of none, all are taken.
    """
    named = dict(model.named_parameters())
    chosen = [named[name] for name in names if name in named] or list(named.values())
    chosen = sorted((one for one in chosen if one.requires_grad), key=lambda one: one.numel())
    room = _ROOM
    kept: list[torch.nn.Parameter] = []
    for parameter in chosen:
        room -= parameter.numel() * parameter.element_size()
        if kept and room < 0:
            break
        kept.append(parameter)
    return kept


def operation(name: str) -> str:
    """Names what a node is the backward of: ``"SqrtBackward0"`` is ``"Sqrt"``."""
    return re.sub(r"Backward\d*$", "", name.rpartition(":")[2]) or name


def _is_leaf(node: Any) -> bool:
    return str(node.name()).endswith(_LEAF)


def _present(gradients: tuple[Any, ...]) -> list[tuple[int, torch.Tensor]]:
    return [(place, value) for place, value in enumerate(gradients) if isinstance(value, torch.Tensor)]
