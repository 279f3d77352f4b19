"""What evaluating, saving and the first update take beyond a step: from those seen, and before that from sizes."""

from __future__ import annotations

import math
from typing import Any, Final

import msgspec

from trainwatch.events import Phase, RunStarted

_WIDTHS: Final = {"float64": 8, "float32": 4, "bfloat16": 2, "float16": 2, "float8_e4m3fn": 1, "float8_e5m2": 1}
_TWO_STATES: Final = ("adamw_torch", "adamw_torch_fused", "adamw_hf", "adamw_apex_fused", "stable_adamw", "adam")
_LEAST_READINGS: Final = 12
_STRAIGHT: Final = 0.95


class Need(msgspec.Struct, frozen=True):
    """What a phase will need.

    Attributes:
        peak: Bytes expected.
        low: Least that one of those seen would need now.
        high: Most.
        seen: How many it rests on; 0 when it follows from sizes.
    """

    peak: float
    low: float
    high: float
    seen: int


class PhaseMemory:
    """What the phases of one rank take on one device."""

    __slots__ = ("_extras", "resting")

    def __init__(self) -> None:
        self.resting = math.nan
        self._extras: dict[Phase, tuple[int, float, float, float]] = {}

    def rests(self, held: float) -> None:
        """Takes what is held between steps.

        Args:
            held: Bytes.
        """
        if 0 < held < math.inf:
            self.resting = held

    def left(self, phase: Phase, peak: float) -> None:
        """Takes the peak of a phase that is over.

        Args:
            phase: Which.
            peak: Its peak in bytes.
        """
        extra = peak - self.resting
        if not 0 <= extra < math.inf:
            return
        seen, low, high, _ = self._extras.get(phase, (0, extra, extra, extra))
        self._extras[phase] = (seen + 1, min(low, extra), max(high, extra), extra)

    def need(self, phase: Phase) -> Need | None:
        """Returns what the next such phase will need; None when none was seen."""
        known = self._extras.get(phase)
        if known is None or not self.resting > 0:
            return None
        seen, low, high, last = known
        return Need(self.resting + last, self.resting + low, self.resting + high, seen)


class EvalRise:
    """Whether memory rises all through an evaluation: its results are gathered where the model computes.

    A line through the readings of one evaluation; what merely warms up is no line.
    """

    __slots__ = ("_begin", "_count", "_first", "_sums", "_time")

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """An evaluation begins."""
        self._count = 0
        self._sums = [0.0] * 5  # of t, y, t², ty, y²
        self._begin = self._time = 0.0
        self._first = 0.0

    def add(self, time: float, used: float) -> None:
        """Takes a reading within the evaluation.

        Args:
            time: In seconds.
            used: Bytes.
        """
        if not (math.isfinite(time) and 0 <= used < 1e18):
            return
        if not self._count:
            self._begin, self._first = time, used
        elif time <= self._time:
            return
        self._time = time
        self._count += 1
        t, y = time - self._begin, used - self._first
        for place, value in enumerate((t, y, t * t, t * y, y * y)):
            self._sums[place] += value

    def rate(self) -> float | None:
        """Returns the rise in bytes a second; None while there is none that goes on."""
        count = self._count
        if count < _LEAST_READINGS:
            return None
        t, y, tt, ty, yy = self._sums
        var_t, var_y, both = tt - t * t / count, yy - y * y / count, ty - t * y / count
        if var_t <= 0 or var_y <= 0 or both <= 0 or both * both < _STRAIGHT * var_t * var_y:
            return None
        return both / var_t

    @property
    def seconds(self) -> float:
        """How long it was watched."""
        return self._time - self._begin

    @property
    def count(self) -> int:
        """How many readings were taken."""
        return self._count


class Sizes(msgspec.Struct, frozen=True):
    """What a model's parts take, from what is known before the first step.

    Attributes:
        weights: Bytes that a checkpoint's weights take (of the adapters alone, where there are such); 0 when unknown.
        state: Bytes of the optimizer's states; 0 when unknown, or not on the device as a whole.
        gradients: Bytes of the gradients; 0 likewise.
    """

    weights: float = 0.0
    state: float = 0.0
    gradients: float = 0.0


def sizes_of(event: RunStarted) -> Sizes:
    """Reads sizes out of a rank's introduction.

    Args:
        event: It.
    """
    model, arguments = event.model, event.arguments
    parameters, trainable = _count(model.get("parameters")), _count(model.get("trainable_parameters"))
    dtypes = model.get("dtypes")
    widths = [_WIDTHS.get(str(name), 0) for name in dtypes] if isinstance(dtypes, list) else []
    if not widths or 0 in widths or model.get("quantization"):
        return Sizes()
    saved = trainable if model.get("adapters") else parameters
    weights = float(saved * min(widths))
    devices = model.get("devices")
    whole = (
        isinstance(devices, list)
        and len(devices) == 1
        and not arguments.get("fsdp")
        and not arguments.get("deepspeed")
        and len(widths) == 1
    )
    if not whole:
        return Sizes(weights)
    gradients = float(trainable * widths[0])
    two = str(arguments.get("optim", "")).rpartition(".")[2].lower() in _TWO_STATES
    return Sizes(weights, 2 * gradients if two else 0.0, gradients)


def next_at(event: RunStarted, phase: Phase, step: int) -> int | None:
    """Returns the next step after which a phase comes by the Trainer's own schedule; None when that is not known.

    Args:
        event: The rank's introduction.
        phase: ``"eval"`` or ``"save"``.
        step: The last step that is over.
    """
    arguments = event.arguments
    strategy = str(arguments.get(f"{phase}_strategy", "")).rpartition(".")[2].lower()
    every = arguments.get(f"{phase}_steps")
    if strategy != "steps" or not isinstance(every, int | float) or not every > 0:
        return None
    if every < 1:
        every = math.ceil(event.max_steps * every)
    if not 0 < every < 1e12:
        return None
    at = (step // int(every) + 1) * int(every)
    return at if not event.max_steps or at <= event.max_steps else None


def _count(value: Any) -> int:
    return value if isinstance(value, int) and 0 < value < 1 << 60 else 0
