"""The faults of the matrix, carried by data: a sample with the token :data:`POISON` spoils one module.

So a fault follows its sample through samplers, ranks, accumulation and a second run of the batch, as a real one does.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

POISON = 63
"""A token that no healthy sample has."""


@dataclass(frozen=True)
class Fault:
    """One fault.

    Attributes:
        name: Short name, part of test ids.
        title: Column of the table.
        module: Which module it spoils; empty in a healthy run.
        how: What becomes non-finite.
        evaluation: The poisoned sample lies in the evaluation set.
    """

    name: str
    title: str
    module: str = ""
    how: str = ""
    evaluation: bool = False


HEALTHY = Fault("healthy", "healthy run")
NAN_LOSS = Fault("nan-loss", "NaN loss", "model.norm", "nan")
NAN_GRADIENT = Fault("nan-gradient", "NaN gradients only", "model.layers.1.mlp", "gradient")
INF_LAYER = Fault("inf-layer", "Inf in a layer", "model.layers.0.mlp", "inf")
NAN_EVAL = Fault("nan-eval", "NaN in evaluation", "model.norm", "nan", evaluation=True)
FAULTS = (HEALTHY, NAN_LOSS, NAN_GRADIENT, INF_LAYER, NAN_EVAL)


class _Mark:
    """Which rows of the batch that is going through the model are poisoned."""

    rows: torch.Tensor | None = None
    generating = False


class _NaNGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(rows)
        return tensor.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:  # type: ignore[override]
        (rows,) = ctx.saved_tensors
        return torch.where(rows[:, None, None], torch.nan, gradients[0]), None


def plant(model: torch.nn.Module, fault: Fault, *, spare_generation: bool = False) -> None:
    """Makes `model` (a causal language model with ``model.embed_tokens``) fall ill of poisoned samples.

    Classes of modules are exchanged and nothing is wrapped, so that modules and parameters keep their names.

    Args:
        model: The model.
        fault: What is to happen.
        spare_generation: It is not ill while it generates, which ends with an exception when logits are NaN.
    """
    if not fault.how:
        return
    mark = _Mark()
    embedding = model.get_submodule("model.embed_tokens")
    kind = type(embedding)

    class Embedding(kind):  # type: ignore[misc, valid-type]
        def forward(self, input: torch.Tensor) -> torch.Tensor:
            mark.rows = (input == POISON).any(dim=1)
            output: torch.Tensor = super().forward(input)
            return output

    embedding.__class__ = Embedding
    sick = model.get_submodule(fault.module)
    healthy = type(sick)
    how = fault.how

    class Sick(healthy):  # type: ignore[misc, valid-type]
        def forward(self, *args: Any, **kwargs: Any) -> torch.Tensor:
            output: torch.Tensor = super().forward(*args, **kwargs)
            rows = mark.rows
            assert rows is not None
            if mark.generating:
                return output
            if how == "gradient":
                spoilt: torch.Tensor = _NaNGradient.apply(output, rows)
                return spoilt
            if how == "inf":
                return torch.where(rows[:, None, None], torch.inf, output)
            return output * torch.where(rows, torch.nan, 1.0)[:, None, None].to(output.dtype)

    if spare_generation:
        _tell_of_generation(model, mark)
    Sick.__name__ = Sick.__qualname__ = healthy.__name__
    Embedding.__name__ = Embedding.__qualname__ = kind.__name__
    sick.__class__ = Sick


def _tell_of_generation(model: Any, mark: _Mark) -> None:
    inner = model.generate

    def generate(*args: Any, **kwargs: Any) -> Any:
        mark.generating = True
        try:
            return inner(*args, **kwargs)
        finally:
            mark.generating = False

    model.generate = generate
