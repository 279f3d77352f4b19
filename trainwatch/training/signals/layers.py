"""Gradients and updates layer by layer, every few steps: which layer learns, which is dead, which explodes."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Final

from trainwatch.events import LayersMeasured
from trainwatch.training.signals.reading import to_host

if TYPE_CHECKING:
    import torch

    from trainwatch.training.signals.gradients import GradientSignal
    from trainwatch.training.signals.reading import Scalar

_SLICE: Final = 16_384
"""Elements of each weight that its update is measured on: a copy of all weights would be a second model in memory."""


class LayerSignal:
    """Groups the parameters of a model into layers.

    Args:
        gradients: Knows the parameters and their gradients.

    Attributes:
        layers: Their names, in the model's order.
        measured: This step was looked at, and is yet to be reported.
        known: Any step was.
        seconds: What the last look and report cost.
    """

    def __init__(self, gradients: GradientSignal) -> None:
        self._gradients = gradients
        self.layers: list[str] = []
        self._layer_of: list[int] = []
        known: dict[str, int] = {}
        for name in gradients.names:
            layer = layer_of(name)
            self._layer_of.append(known.setdefault(layer, len(known)))
        self.layers = list(known)
        self._norms: list[float | None] = []
        self._zeros: list[float | None] = []
        self._zero_share = math.nan
        self._before: list[tuple[int, torch.Tensor]] = []
        self.measured = self.known = False
        self.seconds = 0.0

    def look(self, *, closely: bool, loss_scale: float = 1.0) -> None:
        """Keeps the layers' norms; to be called before the optimizer has the gradients.

        Args:
            closely: Count zeros too, and keep a part of the weights to compare them after the update.
            loss_scale: Factor that a loss scaler has put on the gradients.
        """
        began = time.perf_counter()
        self._look(closely=closely, loss_scale=loss_scale)
        self.measured = self.known = True
        self.seconds = time.perf_counter() - began

    def _look(self, *, closely: bool, loss_scale: float) -> None:
        squares = self._per_layer((place, (norm / loss_scale) ** 2) for place, norm in self._gradients.norms())
        self._norms = [None if square is None else math.sqrt(square) for square in squares]
        self._zeros, self._before, self._zero_share = [], [], math.nan
        if not closely:
            return
        counted = self._gradients.zeros()
        zeros = self._per_layer((place, float(zero)) for place, zero, _ in counted)
        sizes = self._per_layer((place, float(size)) for place, _, size in counted)
        self._zeros = [
            zero / size if zero is not None and size else None for zero, size in zip(zeros, sizes, strict=True)
        ]
        everything = sum(size for _, _, size in counted)
        if everything:
            self._zero_share = sum(zero for _, zero, _ in counted) / everything
        self._before = [(place, _part(parameter).clone()) for place, parameter in self._trained()]

    def report(self, moment: float, step: int, *, updated: bool) -> tuple[LayersMeasured, dict[str, float]]:
        """Makes the event of what was looked at, after the update.

        Args:
            moment: Now, in Unix seconds.
            step: The step.
            updated: The optimizer has used the gradients.

        Returns:
            The event, and the step's values over all layers under the catalogue's names.
        """
        began = time.perf_counter()
        values: dict[str, float] = {}
        if not math.isnan(self._zero_share):
            values["train/zero_gradients"] = self._zero_share
        updates: list[float | None] = []
        if updated and self._before:
            changes, sizes = self._changes()
            updates = [
                math.sqrt(change / size) if change is not None and size else None
                for change, size in zip(self._per_layer(changes), self._per_layer(sizes), strict=True)
            ]
            total = sum(size for _, size in sizes)
            if total:
                values["train/update_ratio"] = math.sqrt(sum(change for _, change in changes) / total)
        event = LayersMeasured(
            time=moment, step=step, layers=self.layers, norms=self._norms, zeros=self._zeros, updates=updates
        )
        self.measured = False
        self._before = []
        self.seconds += time.perf_counter() - began
        return event, values

    def _changes(self) -> tuple[list[tuple[int, float]], list[tuple[int, float]]]:
        """Squares of the update and of the weights before it, parameter by parameter."""
        parameters = self._gradients.parameters
        squares: dict[str, Scalar] = {}
        for place, before in self._before:
            before = before.float()
            squares[f"change {place}"] = (_part(parameters[place]).float() - before).square().sum()
            squares[f"size {place}"] = before.square().sum()
        host = to_host(squares)
        places = [place for place, _ in self._before]
        return [(p, host[f"change {p}"]) for p in places], [(p, host[f"size {p}"]) for p in places]

    def _trained(self) -> list[tuple[int, torch.nn.Parameter]]:
        return [(place, p) for place, p in enumerate(self._gradients.parameters) if p.grad is not None]

    def _per_layer(self, values: Iterable[tuple[int, float]]) -> Sequence[float | None]:
        sums: list[float | None] = [None] * len(self.layers)
        for place, value in values:
            layer = self._layer_of[place]
            sums[layer] = value + (sums[layer] or 0.0)
        return sums


def layer_of(parameter: str) -> str:
    """Returns the layer that a parameter belongs to.

    Args:
        parameter: Its name: ``"transformer.h.3.mlp.c_fc.weight"``.

    Returns:
        What stands before its first number, and the number (``"transformer.h.3"``); without one, its module.
    """
    parts = parameter.split(".")
    for place, part in enumerate(parts):
        if part.isdigit():
            return ".".join(parts[: place + 1])
    return ".".join(parts[:-1]) or parameter


def _part(parameter: torch.nn.Parameter) -> torch.Tensor:
    tensor = parameter.detach()
    if hasattr(tensor, "to_local"):
        tensor = tensor.to_local()
    # Spread over the whole of it: the first rows of an embedding are the first words, which may not have come by.
    if tensor.is_contiguous():
        flat = tensor.view(-1)
        return flat[:: max(1, flat.numel() // _SLICE)][:_SLICE]
    rows = tensor[:: max(1, math.ceil(tensor.numel() / _SLICE))]
    return rows.reshape(-1)[:_SLICE]
