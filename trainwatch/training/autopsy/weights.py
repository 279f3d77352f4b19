"""The model's weights: which are not finite, and which are the most extreme."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import msgspec
import torch

from trainwatch.events import TensorSummary
from trainwatch.training.autopsy.limits import Budget
from trainwatch.training.autopsy.tensors import Extremes, is_float, look, summarise

_SHOWN: Final = 8


Weight = tuple[str, torch.Tensor, Extremes]
"""A parameter or buffer: its name, itself, and what is in it."""


class Weights(msgspec.Struct):
    """What the weights look like.

    Attributes:
        shown: Those that are not finite, and behind them the ones with the largest magnitude.
        bad: The first that is not finite.
    """

    shown: list[TensorSummary] = []
    bad: Weight | None = None


def read_weights(model: torch.nn.Module, weights: Weights, budget: Budget) -> None:
    """Looks at all parameters and buffers.

    Args:
        model: The model.
        weights: Where what is found is put, so that it is there when time is up.
        budget: Time for it.

    Raises:
        OutOfTime: Not all could be looked at.
    """
    found: list[Weight] = []
    try:
        for weight in _all(model):
            found.append(weight)
            if weights.bad is None and not weight[2].finite:
                weights.bad = weight
            budget.check()
    finally:
        found.sort(key=lambda one: (one[2].finite, -one[2].largest))
        weights.shown = [summarise(*one) for one in found[:_SHOWN]]


def bad_weight(module: torch.nn.Module) -> Weight | None:
    """Returns the first parameter or buffer of a module, or of its parts, that is not finite."""
    return next((weight for weight in _all(module) if not weight[2].finite), None)


def _all(module: torch.nn.Module) -> Iterator[Weight]:
    for name, parameter in module.named_parameters():
        if is_float(parameter):
            yield name, parameter, look(parameter)
    for name, buffer in module.named_buffers():
        if is_float(buffer) and not (found := look(buffer)).harmless:  # masks are made of -Inf
            yield name, buffer, found
