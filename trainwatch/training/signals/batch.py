"""Size of the batches: samples, tokens, padding. Padding is what makes memory saw."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    import torch

    from trainwatch.training.signals.reading import Scalar

_INPUTS: Final = ("input_ids", "inputs_embeds", "input_values", "input_features", "pixel_values", "decoder_input_ids")
_IGNORED_LABEL: Final = -100


class BatchSignal:
    """Adds up the micro-batches of a step."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Forgets everything."""
        self.samples = 0
        self.padded_tokens = 0
        self.length = 0
        self.tokens: Scalar = 0
        self.supervised: Scalar = 0
        self._has_tokens = False
        self._has_labels = False

    def fold(self, inputs: Mapping[str, Any]) -> None:
        """Adds one micro-batch.

        Args:
            inputs: The keyword arguments of the model's forward.
        """
        name = "input_ids" if "input_ids" in inputs else next((name for name in _INPUTS if name in inputs), "")
        shape = getattr(inputs.get(name), "shape", ())
        if not shape:
            return
        self.samples += shape[0]
        if len(shape) < 2 or name == "pixel_values":
            return
        rows, length = shape[0], shape[1]
        self._has_tokens = True
        self.padded_tokens += rows * length
        if length > self.length:
            self.length = length
        mask = inputs.get("attention_mask")
        if getattr(mask, "shape", None) == (rows, length):
            self.tokens = self.tokens + _count(mask)
        else:
            self.tokens = self.tokens + rows * length
        labels = inputs.get("labels")
        if labels is not None:
            self.fold_labels(labels)

    def fold_labels(self, labels: Any) -> None:
        """Counts the supervised tokens of one micro-batch.

        Args:
            labels: Whole numbers, samples × tokens; anything else is passed over.
        """
        if len(getattr(labels, "shape", ())) == 2 and not labels.is_floating_point():
            self._has_labels = True
            self.supervised = self.supervised + _count(labels != _IGNORED_LABEL)

    def scalars(self) -> dict[str, Scalar]:
        """Returns what was added up, under the catalogue's names; only what the inputs told."""
        values: dict[str, Scalar] = {}
        if self.samples:
            values["train/samples"] = self.samples
        if self._has_tokens:
            values["train/tokens"] = self.tokens
            values["train/padded_tokens"] = self.padded_tokens
            values["train/batch_length"] = self.length
        if self._has_labels:
            values["train/supervised_tokens"] = self.supervised
        return values


def _count(tensor: Any) -> Scalar:
    count: torch.Tensor = tensor.count_nonzero()
    return count.item() if count.is_cpu else count
