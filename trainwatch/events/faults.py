"""What went wrong in a step, seen from inside."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from trainwatch.events.base import Cause, Event, Phase


class NonFiniteSeen(Event, frozen=True, kw_only=True, tag="nonfinite_seen"):
    """A step had a NaN or an Inf in its loss or in its gradients.

    Attributes:
        where: Where it was seen first.
        value: The offending value as it was (NaN, Inf, -Inf).
        micro_batches: How many of the step's micro-batches on this rank had a non-finite loss.
        local: This rank's own loss or gradient was not finite, before any all-reduce.
        culprit: The rank whose own values were not finite (the highest, when several were); None in a run of one rank.
        parameters: Names of the first parameters (in model order) whose gradient was not finite; at most 8.
        parameter_count: How many parameters had a non-finite gradient.
        action: What was done about it.
        in_a_row: Non-finite steps in a row, this one included.
        recent: Non-finite steps among the last 200, this one included.
    """

    step: int
    where: Literal["loss", "gradient"]
    value: float
    action: Literal["recorded", "skipped", "scaler", "halt"]
    micro_batches: int = 0
    local: bool = True
    culprit: int | None = None
    parameters: list[str] = []
    parameter_count: int = 0
    in_a_row: int = 1
    recent: int = 1


class TensorSummary(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A tensor in few words.

    Attributes:
        name: Its name: of an input, a parameter, or the module whose output it is.
        shape: Its shape.
        dtype: Its type (``"float16"``).
        device: Where it lies.
        low: Smallest finite value; None when there is none.
        high: Largest finite value.
        nan: How many values are NaN.
        inf: How many are infinite.
    """

    name: str
    shape: list[int] = []
    dtype: str = ""
    device: str = ""
    low: float | None = None
    high: float | None = None
    nan: int = 0
    inf: int = 0


class Autopsied(Event, frozen=True, kw_only=True, tag="autopsied"):
    """What a non-finite step looked like from inside: its batch was run once more, with clean weights and hooks.

    Attributes:
        step: The step that was not finite.
        cause: What was found.
        parameters: What the sentence for `cause` needs (module, counts, ranges), as plain values.
        micro_batch: Which of the step's micro-batches on this rank, from 0; None when it could not be told.
        samples: Indices of its samples in the data set, where the sampler tells; empty otherwise.
        reproduced: The batch was not finite again when it was run once more.
        module: The first module in forward order whose output was not finite, or the first layer in backward order
            whose gradient was not; empty when none was found.
        module_kind: Its class.
        inputs: The batch, tensor by tensor.
        outputs: Outputs of the last finite modules before `module`, and its own, in forward order.
        weights: Parameters with the most extreme or non-finite values.
        tokens: Real tokens of the batch; None when unknown.
        padded_tokens: Tokens with padding.
        supervised_tokens: Labels that are not -100.
        loss: The micro-batch's raw loss.
        loss_scale: The loss scaler's factor, if there is one.
        learning_rate: Of the first parameter group.
        seconds: What the autopsy took.
        note: What it could not look at, and why.
    """

    step: int
    cause: Cause
    parameters: dict[str, Any] = {}
    micro_batch: int | None = None
    samples: list[int] = []
    reproduced: bool = False
    module: str = ""
    module_kind: str = ""
    inputs: list[TensorSummary] = []
    outputs: list[TensorSummary] = []
    weights: list[TensorSummary] = []
    tokens: int | None = None
    padded_tokens: int | None = None
    supervised_tokens: int | None = None
    loss: float | None = None
    loss_scale: float | None = None
    learning_rate: float | None = None
    seconds: float = 0.0
    note: str = ""


class OutOfMemorySeen(Event, frozen=True, kw_only=True, tag="out_of_memory_seen"):
    """The framework's allocator could not serve a request, and is about to raise.

    Attributes:
        device: Which device.
        requested: Bytes that were asked for.
        allocated: Bytes held by tensors of this process.
        free: Bytes that the device had left.
        step: The last finished step.
        phase: What the rank was doing.
        summary: The allocator's own memory summary, as text.
    """

    device: str
    requested: int
    allocated: int = 0
    free: int = 0
    step: int = 0
    phase: Phase | None = None
    summary: str = ""
