"""From the evidence to the cause, the most specific one that it proves."""

from __future__ import annotations

from typing import Any

import msgspec
import torch

from trainwatch.events import Cause
from trainwatch.training.autopsy.batch import OUT_OF_RANGE, Batch
from trainwatch.training.autopsy.forward import Call
from trainwatch.training.autopsy.rerun import Runner, Seen
from trainwatch.training.autopsy.tensors import Extremes
from trainwatch.training.autopsy.weights import Weight, Weights, bad_weight


class Evidence(msgspec.Struct, frozen=True):
    """What is known beside the batch and its run.

    Attributes:
        loss_was_bad: The raw loss of the micro-batch was not finite.
        own_loss: The loss is not the one in the model's output.
        weights: What the weights look like.
    """

    loss_was_bad: bool
    own_loss: bool
    weights: Weights


class Verdict(msgspec.Struct, frozen=True):
    """The cause.

    Attributes:
        cause: Its word.
        parameters: What its sentence needs.
        module: The module concerned; empty for the model itself or none.
        kind: Its class.
    """

    cause: Cause
    parameters: dict[str, Any] = {}
    module: str = ""
    kind: str = ""


def decide(evidence: Evidence, batch: Batch, seen: Seen | None, runner: Runner | None) -> Verdict:
    """Names the cause.

    Args:
        evidence: What is known beside them.
        batch: What the batch tells by itself.
        seen: What a run of the batch showed; None when it was not run, or did not get to an end.
        runner: What ran it.
    """
    if batch.cause is not None and batch.cause in OUT_OF_RANGE:
        return Verdict(batch.cause, batch.parameters)
    if seen is None or runner is None:
        return _without_run(evidence, batch)
    if seen.lookup is not None:
        wrong = seen.lookup
        return Verdict("input_out_of_range", {"id": wrong.value, "size": wrong.size}, wrong.name, "Embedding")
    if not seen.bad:
        return Verdict("not_reproduced", {"attempts": runner.attempts, "random": runner.random})
    if seen.call is not None and (_serious(seen.call) or not (seen.birth is not None or _unsupervised(batch))):
        return _forward(seen, seen.call)
    if batch.cause == "nonfinite_input":
        return Verdict("nonfinite_input", batch.parameters)
    if seen.birth is not None:
        return _backward(seen)
    return _loss(evidence, batch, seen)


def _without_run(evidence: Evidence, batch: Batch) -> Verdict:
    """What can be said without having run the batch."""
    if evidence.loss_was_bad and _unsupervised(batch):
        return Verdict("no_supervised_tokens", _label_counts(batch))
    if batch.cause is not None:
        return Verdict(batch.cause, batch.parameters)
    weight = evidence.weights.bad
    if weight is not None:
        return Verdict("nonfinite_weights", {"parameter": weight[0], **_weight_counts(weight)})
    return Verdict("not_examined")


def _serious(call: Call | None) -> bool:
    """A NaN or +Inf; a mask is made of -Inf."""
    return call is not None and any(not found.harmless for _, _, _, found in call.bad)


def _forward(seen: Seen, call: Call) -> Verdict:
    output, shape, dtype, found = call.bad[0]
    parameters = {**_counts(found, shape.numel()), "dtype": str(dtype).removeprefix("torch.")}
    if output not in ("", "0"):
        parameters["output"] = output
    if seen.turns > 1:
        parameters |= {"call": call.turn, "calls": seen.turns}
    cause: Cause = "module_forward"
    if (weight := bad_weight(call.module)) is not None:
        cause = "nonfinite_weights"
        parameters = {"parameter": ".".join(filter(None, (call.name, weight[0]))), **_weight_counts(weight)}
    elif seen.overflow is not None:
        cause = "half_overflow"
        parameters |= msgspec.to_builtins(seen.overflow)
    return Verdict(cause, parameters, call.name, call.kind)


def _backward(seen: Seen) -> Verdict:
    birth, call = seen.birth, seen.birth_call
    if birth is None:
        return Verdict("not_reproduced")
    parameters = {
        **_counts(birth.extremes, birth.size),
        "operation": birth.operation,
        "dtype": str(birth.dtype).removeprefix("torch."),
        "backward": True,
    }
    if call is None:
        return Verdict("loss_function", parameters)
    if seen.turns > 1:
        parameters |= {"call": call.turn, "calls": seen.turns}
    cause: Cause = "module_backward"
    if seen.scaled_away:
        cause = "half_overflow"
        parameters["limit"] = torch.finfo(birth.dtype).max
    return Verdict(cause, parameters, call.name, call.kind)


def _loss(evidence: Evidence, batch: Batch, seen: Seen) -> Verdict:
    """Every module was fine: it is the loss, or code of the model outside of its modules."""
    if _unsupervised(batch):
        return Verdict("no_supervised_tokens", _label_counts(batch))
    root, fed = seen.root, seen.fed
    kind = "" if root is None else root.kind
    bad = [] if root is None else [one for one in root.bad if one[0] != "loss"]
    if fed is not None or bad:
        weight = evidence.weights.bad
        if weight is not None:
            return Verdict("nonfinite_weights", {"parameter": weight[0], **_weight_counts(weight)}, "", kind)
        if fed is not None:
            return Verdict("module_forward", {**_counts(fed.found, fed.size), "into": fed.call.name}, "", kind)
        name, shape, dtype, found = bad[0]
        parameters = {**_counts(found, shape.numel()), "dtype": str(dtype).removeprefix("torch."), "output": name}
        return Verdict("module_forward", parameters, "", kind)
    return Verdict("loss_function", {"value": _name(seen.bad_loss), "own": not evidence.own_loss}, "", kind)


def _unsupervised(batch: Batch) -> bool:
    return batch.labels is not None and not batch.labels.used


def _label_counts(batch: Batch) -> dict[str, Any]:
    labels = batch.labels
    return {} if labels is None else {"labels": labels.total, "supervised": labels.supervised}


def _counts(found: Extremes, size: int) -> dict[str, Any]:
    return {
        "nan": found.nan,
        "inf": found.inf + found.minus_inf,
        "size": size,
        "low": found.low,
        "high": found.high,
    }


def _weight_counts(weight: Weight) -> dict[str, Any]:
    return _counts(weight[2], weight[1].numel())


def _name(value: float | None) -> str:
    if value is None:
        return ""
    return "NaN" if value != value else "Inf" if value > 0 else "-Inf"
