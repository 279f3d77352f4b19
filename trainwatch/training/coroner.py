"""Orders the autopsies: of the first non-finite steps and of that which ends the run, on the rank it came from."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import msgspec

from trainwatch.events import Autopsied, NonFiniteSeen
from trainwatch.training.autopsy import examine
from trainwatch.training.redaction import redact
from trainwatch.training.retention import Retention
from trainwatch.training.step import StepReading

_MOST: Final = 3
"""Autopsies of one training beside that of its end: a training that goes on must not be slowed down for ever."""
_NO_LOSS: Final = "the loss is made outside of the model and could not be computed again: use trainwatch.watch(trainer)"
_SCALE: Final = "train/loss_scale"


class Coroner:
    """Looks into non-finite steps.

    Args:
        model: The model, unwrapped.
        retention: Has kept the step's micro-batches.
        compute_loss: Makes the loss from model and inputs, where the Trainer was handed over.
        owner: The Trainer itself, likewise.
        several_ranks: There are others, whose data may be to blame.
    """

    def __init__(
        self,
        model: Any,
        retention: Retention,
        compute_loss: Callable[[Any, Any], Any] | None,
        owner: Any,
        *,
        several_ranks: bool,
    ) -> None:
        self._several_ranks = several_ranks
        self._model = model
        self._retention = retention
        self._compute_loss = compute_loss
        self._owners = [] if owner is None else [owner]
        self._done = 0

    def examine(self, seen: NonFiniteSeen, reading: StepReading | None, learning_rate: float) -> Autopsied | None:
        """Looks into a step, with the weights that it was made with.

        Args:
            seen: What was not finite.
            reading: What was read of the step.
            learning_rate: Of the first parameter group.

        Returns:
            What was found; None when the step is another rank's business, the loss scaler's, or one too many.
        """
        # Where gradients are sharded nobody knows whose data it was: then every rank looks into its own.
        unknown = self._several_ranks and seen.culprit is None
        if not (seen.local or unknown) or seen.action == "scaler" or (self._done >= _MOST and seen.action != "halt"):
            return None
        self._done += 1
        report = examine(
            self._model,
            self._retention.micro_batches(),
            step=seen.step,
            where=seen.where,
            parameters=seen.parameters,
            learning_rate=learning_rate,
            loss_scale=None if reading is None else reading.values.get(_SCALE),
            compute_loss=self._compute_loss,
            owners=self._owners,
        )
        own_loss = reading is not None and not reading.loss_seen and self._compute_loss is None
        if own_loss and report.cause == "not_reproduced":
            # It was another computation that was made once more: without the loss that was trained on.
            note = "; ".join(filter(None, (report.note, _NO_LOSS)))
            report = msgspec.structs.replace(report, cause="not_examined", parameters={}, note=note)
        if unknown and report.cause == "not_reproduced":
            return None  # another rank's batch, then
        return msgspec.structs.replace(report, note=redact(report.note))
