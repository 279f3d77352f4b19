"""What a batch tells by itself, before the model is run: token counts, labels, ranges, NaN."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec
import torch

from trainwatch.events import Cause, TensorSummary
from trainwatch.training.autopsy.forward import out_of_range
from trainwatch.training.autopsy.tensors import is_float, look, summarise, tensors_in

IGNORED: Final = -100
OUT_OF_RANGE: Final = ("label_out_of_range", "input_out_of_range")
"""Causes with which the model must not be run."""
_SHOWN: Final = 16
_PIXELS: Final = ("pixel_values", "input_features", "input_values", "inputs_embeds")
"""With these, ids outside of the vocabulary may be placeholders that the model fills in."""
_MASKS: Final = ("mask", "bias")


class Labels(msgspec.Struct, frozen=True):
    """The labels of a batch.

    Attributes:
        total: How many there are.
        supervised: How many are not -100.
        used: How many of these the loss can use: a causal model has nothing to predict a sample's first token from.
        wrong: A label that is no class, None when all are.
        classes: How many classes there are, None when unknown.
    """

    total: int
    supervised: int
    used: int
    wrong: int | None = None
    classes: int | None = None


class Batch(msgspec.Struct):
    """A batch, seen without running the model.

    Attributes:
        inputs: Its tensors.
        tokens: Real tokens; None when unknown.
        padded_tokens: Tokens with padding.
        labels: None when they are not classes.
        cause: What is wrong with it, None for nothing that could be seen.
        parameters: The evidence for it.
    """

    inputs: list[TensorSummary] = []
    tokens: int | None = None
    padded_tokens: int | None = None
    labels: Labels | None = None
    cause: Cause | None = None
    parameters: dict[str, Any] = {}


def read_batch(batch: Batch, model: torch.nn.Module, given: Mapping[str, Any]) -> None:
    """Looks at a batch. Decides on what would end the process, were the model run: indices outside of their table.

    Args:
        batch: Where what is found is put, as it is found.
        model: The model.
        given: Keyword arguments of its forward.
    """
    nonfinite: TensorSummary | None = None
    for name, tensor in tensors_in(given):
        summary = summarise(name, tensor, found := look(tensor))
        batch.inputs.append(summary)
        # A mask is made of -Inf.
        bad = not found.harmless if any(part in name for part in _MASKS) else not found.finite
        if nonfinite is None and is_float(tensor) and bad:
            nonfinite = summary
    batch.inputs = batch.inputs[:_SHOWN]
    _count_tokens(batch, given)
    batch.labels = read_labels(model, given)
    wrong = _wrong_input(model, given)
    labels = batch.labels
    if wrong is not None:
        batch.cause, batch.parameters = "input_out_of_range", wrong
    elif labels is not None and labels.wrong is not None:
        batch.cause, batch.parameters = "label_out_of_range", {"label": labels.wrong, "classes": labels.classes}
        if _output_size(model) == labels.classes:
            batch.parameters["vocabulary"] = labels.classes
    elif nonfinite is not None:
        batch.cause = "nonfinite_input"
        batch.parameters = {
            "input": nonfinite.name,
            "nan": nonfinite.nan,
            "inf": nonfinite.inf,
            "size": torch.Size(nonfinite.shape).numel(),
        }


def _count_tokens(batch: Batch, given: Mapping[str, Any]) -> None:
    ids = given.get("input_ids")
    if getattr(ids, "ndim", 0) != 2:
        return
    batch.padded_tokens = batch.tokens = ids.numel()  # type: ignore[union-attr]
    mask = given.get("attention_mask")
    if getattr(mask, "shape", None) == ids.shape:  # type: ignore[union-attr]
        batch.tokens = int(mask.count_nonzero())  # type: ignore[union-attr]


def read_labels(model: torch.nn.Module, given: Mapping[str, Any]) -> Labels | None:
    """Looks at labels that are classes: whole numbers. None for others (regression, several labels each).

    Args:
        model: Tells how many classes there are.
        given: Keyword arguments of its forward.
    """
    shifted = given.get("shift_labels")
    labels = given.get("labels") if shifted is None else shifted
    if not isinstance(labels, torch.Tensor) or not labels.ndim or labels.dtype in (torch.bool, torch.uint8):
        return None
    if labels.is_floating_point() or labels.is_complex() or not labels.numel():
        return None
    classes = count_classes(model, labels)
    if classes == 1:
        return None  # a regression on whole numbers
    real = labels != IGNORED
    supervised = used = int(real.sum())
    if shifted is None and labels.ndim == 2 and _is_causal(model, given):
        used = int(real[:, 1:].sum())
    wrong = None if classes is None or not supervised else out_of_range(labels[real], classes)
    return Labels(labels.numel(), supervised, used, wrong, classes)


def _kind(model: torch.nn.Module) -> str:
    """Returns the class name of the model, below an adapter of peft."""
    base = getattr(model, "get_base_model", None)
    return type(base() if callable(base) else model).__name__


def _is_causal(model: torch.nn.Module, given: Mapping[str, Any]) -> bool:
    kind = _kind(model)
    return ("CausalLM" in kind or kind.endswith("LMHeadModel")) and "decoder_input_ids" not in given


def count_classes(model: torch.nn.Module, labels: torch.Tensor) -> int | None:
    """Returns how many classes labels may name, None when the model does not tell."""
    config = getattr(model, "config", None)
    kind = _kind(model)
    if "Classification" in kind:
        number = getattr(config, "num_labels", None)
        several = getattr(config, "problem_type", None) == "multi_label_classification"
        return int(number) if number is not None and not several else None
    size = _output_size(model)
    if size is not None and labels.ndim == 2:
        return size
    vocabulary = getattr(config, "vocab_size", None)
    return int(vocabulary) if kind.endswith("ForCTC") and vocabulary else None


def _table(model: torch.nn.Module, getter: str) -> int | None:
    get = getattr(model, getter, None)
    try:
        weight = getattr(get(), "weight", None) if callable(get) else None
    except (NotImplementedError, AttributeError):
        return None  # transformers' models without one
    if getattr(weight, "ndim", 0) != 2 or hasattr(weight, "ds_id"):
        return None
    return int(weight.shape[0])  # type: ignore[union-attr]


def _output_size(model: torch.nn.Module) -> int | None:
    return _table(model, "get_output_embeddings")


def _wrong_input(model: torch.nn.Module, given: Mapping[str, Any]) -> dict[str, Any] | None:
    ids = given.get("input_ids")
    if not isinstance(ids, torch.Tensor) or ids.is_floating_point() or any(name in given for name in _PIXELS):
        return None
    size = _table(model, "get_input_embeddings")
    if size is None:
        tables = [module for module in model.modules() if isinstance(module, torch.nn.Embedding)]
        size = tables[0].num_embeddings if len(tables) == 1 else None
    if size is None or (wrong := out_of_range(ids, size)) is None:
        return None
    return {"input": "input_ids", "id": wrong, "size": size}
