"""Time of a step: how it is split, and what our own dearer looks may take of it."""

from __future__ import annotations

import math
import time
from typing import Final

from trainwatch.events import Values

_SHARE: Final = 0.005
"""Of the time of the steps, what a dearer look may cost."""
_LEAST: Final = 10
_MOST: Final = 1000
_PER_HISTORY: Final = 500


class StepClock:
    """Splits the time of the steps; on an accelerator as the host sees it, which runs ahead of the device."""

    def __init__(self) -> None:
        self._began = self._ready = 0.0

    def begin(self) -> None:
        """A step begins: its data is there."""
        self._began = time.perf_counter()

    def ready(self) -> None:
        """Something beside the steps is over (an evaluation, a save): waiting for data counts from here."""
        self._ready = time.perf_counter()

    def end(self, values: Values, backward_ended_at: float) -> None:
        """A step is over.

        Args:
            values: The step's values, to which its times are added.
            backward_ended_at: When its last backward pass was over, by the performance counter; 0 when not known.
        """
        ended = time.perf_counter()
        whole = values["train/step_seconds"] = ended - self._began
        if self._ready:
            waited = values["train/data_seconds"] = self._began - self._ready
            whole += waited
        if backward_ended_at > self._began:
            values["train/compute_seconds"] = backward_ended_at - self._began
            values["train/optimizer_seconds"] = ended - backward_ended_at
        tokens, padded = values.get("train/tokens"), values.get("train/padded_tokens")
        if tokens is not None and padded:
            values["train/tokens_per_second"] = tokens / whole
            values["train/padding_share"] = 1 - tokens / padded
        self._ready = ended


class Pace:
    """Says when something that costs time is due again, so that it stays a small share of the training.

    The longer a training runs the farther apart: a run of a million steps keeps some thousand measurements.
    """

    def __init__(self) -> None:
        self._next = 0
        self._taken = 0

    def due(self, step: int) -> bool:
        """Tells whether it is time.

        Args:
            step: The present step.
        """
        return step >= self._next

    def took(self, step: int, seconds: float, step_seconds: float) -> None:
        """Notes that it was done.

        Args:
            step: The step at which it was.
            seconds: What it cost.
            step_seconds: What the step took, this included.
        """
        self._taken += 1
        interval: float = _LEAST
        if self._taken > 1:  # the first time is dear, because everything is new to the caches
            interval = min(max(seconds / max(_SHARE * step_seconds, 1e-9), _LEAST), _MOST)
        self._next = step + max(math.ceil(interval), step // _PER_HISTORY)
