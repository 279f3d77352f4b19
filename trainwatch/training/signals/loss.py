"""The raw loss of every micro-batch, as the model returned it.

The Trainer replaces a NaN train loss by the average of the losses before it, and leaves NaN batches out of its
eval_loss. This sees the tensor before that.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

    from trainwatch.training.signals.reading import Scalar


def find_loss(output: Any, has_labels: bool) -> torch.Tensor | None:
    """Returns the loss in a model's output, or None.

    Args:
        output: What the model returned: a mapping with ``loss``, an object with that attribute, or a tuple.
        has_labels: The model was given labels, so that the first of a tuple is the loss.
    """
    if isinstance(output, (dict, Mapping)):  # a dictionary is known for one at once
        loss = output.get("loss")
    elif isinstance(output, tuple):
        loss = output[0] if has_labels and output else None
    else:
        loss = getattr(output, "loss", None)
    if loss is None or not hasattr(loss, "is_floating_point") or not loss.is_floating_point() or not loss.numel():
        return None
    found: torch.Tensor = loss
    return found


def value_of(loss: torch.Tensor) -> Scalar:
    """Returns a copy of a loss: a number on a CPU, else a scalar on its device, without waiting for it.

    Args:
        loss: The loss; of several numbers (one a device or a sample) the mean.
    """
    if loss.ndim:
        loss = loss.detach().mean()
    if loss.is_cpu:
        return loss.item()
    copied: torch.Tensor = loss.detach().clone().float()
    return copied


class LossSignal:
    """Folds the losses of a step, or of an evaluation, into a few scalars.

    On an accelerator the scalars stay on it.
    """

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Forgets everything."""
        self.count = 0
        self.normalised = False
        self.total: Scalar = 0.0
        self.nonfinite: Scalar = 0
        self._shown: float | None = None

    def fold(self, loss: Scalar, *, normalised: bool = False) -> None:
        """Adds one micro-batch.

        Args:
            loss: The loss, as :func:`value_of` gives it.
            normalised: The loss is already divided by the number of items of the whole step, so that the step's
                loss is the sum and not the mean of its micro-batches'.
        """
        self.count += 1
        self.normalised = normalised
        if isinstance(loss, float):
            self.total += loss
            if not math.isfinite(loss):
                self.nonfinite += 1
                if self._shown is None:
                    self._shown = loss
            return
        self.total = self.total + loss
        # x - x is 0 for a finite x and NaN otherwise: fewer kernels than isfinite.
        self.nonfinite = self.nonfinite + (loss - loss != 0)

    def mean(self, total: float, scale: float = 1.0) -> float:
        """Makes the step's loss from the total read back.

        Args:
            total: The value of :attr:`total` on the host.
            scale: Factor for a normalised loss (see the watcher: token averages across devices).
        """
        if self._shown is not None:
            return self._shown  # Inf - Inf would have made a NaN of what was an Inf
        if not self.count:
            return math.nan
        return total * scale if self.normalised else total / self.count
