"""The autopsy of a step that was not finite, from its retained micro-batches to one event."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, Literal

import msgspec
import torch

from trainwatch.events import Autopsied
from trainwatch.training.autopsy.batch import OUT_OF_RANGE, Batch, read_batch
from trainwatch.training.autopsy.cause import Evidence, Verdict, decide
from trainwatch.training.autopsy.limits import Budget, Notes, obstacle
from trainwatch.training.autopsy.rerun import ComputeLoss, Runner, Seen
from trainwatch.training.autopsy.traces import untouched
from trainwatch.training.autopsy.weights import Weights, read_weights
from trainwatch.training.recorder import now

SECONDS: Final = 20.0
"""What an autopsy may take. A single module cannot be interrupted, so that it may be a little more."""


class MicroBatch(msgspec.Struct, frozen=True):
    """One micro-batch of a step, as the model got it; only references are kept.

    Attributes:
        number: Its place in the step, from 0.
        inputs: Keyword arguments of the model's forward; what ``compute_loss`` got, if there is one of the user's own.
        args: Positional arguments of the model's forward.
        loss: Its raw loss, a number or a tensor; None when unknown.
        samples: Indices of its samples in the data set; empty when unknown.
        loss_arguments: What ``compute_loss`` was given besides model and inputs (``num_items_in_batch``).
    """

    number: int
    inputs: Mapping[str, Any]
    args: tuple[Any, ...] = ()
    loss: Any = None
    samples: Sequence[int] = ()
    loss_arguments: Mapping[str, Any] = {}

    @property
    def value(self) -> float | None:
        """The loss as a number. On an accelerator this waits."""
        if isinstance(self.loss, torch.Tensor):
            return float(self.loss.detach().float().mean())
        return None if self.loss is None else float(self.loss)


def examine(
    model: Any,
    micro_batches: Sequence[MicroBatch],
    *,
    step: int,
    where: Literal["loss", "gradient"],
    parameters: Sequence[str] = (),
    learning_rate: float | None = None,
    loss_scale: float | None = None,
    compute_loss: ComputeLoss | None = None,
    owners: Iterable[Any] = (),
    seconds: float = SECONDS,
) -> Autopsied:
    """Finds out why a step was not finite. Leaves no trace in the training, and never raises an Exception.

    To be called before the optimizer has made its step: with other weights it would be another model. Should be called
    before peak memory is read or after it was, but not in between: it is a forward pass, and maybe a backward pass.

    Args:
        model: The model, unwrapped.
        micro_batches: The step's micro-batches on this rank, in order; those that were kept.
        step: The step.
        where: What was not finite.
        parameters: Names of the parameters whose gradient was not finite.
        learning_rate: Of the first parameter group.
        loss_scale: The loss scaler's factor, if there is one.
        compute_loss: Makes the loss from the model and inputs, where it is not the model's own. It gets a fresh dict.
        owners: Objects whose plain attributes `compute_loss` may change (the Trainer).
        seconds: What it may take.
    """
    autopsy = _Autopsy(micro_batches, where, Budget(seconds))
    with autopsy.notes.guard("the autopsy"):
        model = getattr(model, "_orig_mod", model)
        autopsy.perform(model, list(parameters), loss_scale, compute_loss, list(owners))
    found: dict[str, Any] = {}
    with autopsy.notes.guard("the report"):
        found = autopsy.describe()
    return msgspec.structs.replace(
        Autopsied(time=now(), step=step, cause="not_examined", loss_scale=loss_scale, learning_rate=learning_rate),
        **found,
        seconds=autopsy.budget.used,
        note="; ".join(autopsy.notes.texts),
    )


class _Autopsy:
    """One autopsy. What has been found is kept as it is found, so that all of it is told however far this gets.

    Args:
        micro_batches: The step's micro-batches.
        where: What was not finite.
        budget: Time for it.
    """

    def __init__(self, micro_batches: Sequence[MicroBatch], where: Literal["loss", "gradient"], budget: Budget) -> None:
        self.budget = budget
        self.notes = Notes()
        self._micro_batches = list(micro_batches)
        self._where = where
        self._one: MicroBatch | None = None
        self._batch = Batch()
        self._weights = Weights()
        self._seen: Seen | None = None
        self._in_doubt = False
        self._verdict = Verdict("not_examined")

    def perform(
        self,
        model: torch.nn.Module,
        names: list[str],
        loss_scale: float | None,
        compute_loss: ComputeLoss | None,
        owners: list[Any],
    ) -> None:
        """Looks, runs, decides; see :func:`examine` for the arguments."""
        if not self._micro_batches:
            self.notes.add("its batch was not kept")
        bad = [one for one in self._micro_batches if _is_bad(one)]
        looked = self._look(model, bad or self._micro_batches)
        if looked and (bad or len(looked) == 1):
            self._one, self._batch = looked[0]
        runner = None
        wrong = next((pair for pair in looked if pair[1].cause in OUT_OF_RANGE), None)
        if wrong is not None:
            # Running it would end the process: an assertion on the device cannot be caught.
            self._one, self._batch = wrong
        elif reason := obstacle(model):
            self.notes.add(reason)
        else:
            # The Trainer divides by the number of micro-batches, unless the model does so by the number of tokens.
            parts = 1 if any(_by_tokens(one) for one, _ in looked) else len(self._micro_batches)
            with untouched(model, [one.inputs for one, _ in looked], owners) as rng:
                scale = (loss_scale or 1.0) / max(1, parts)
                runner = Runner(model, compute_loss, names, scale, rng, self.budget, self.notes)
                self._run(runner, looked, backward=self._where == "gradient" and not bad)
        with self.notes.guard("reading the weights"):
            read_weights(model, self._weights, self.budget)
        if self._in_doubt and (self._seen is None or not self._seen.bad):
            return  # another computation than the training's proves nothing
        evidence = Evidence(bool(bad), compute_loss is not None, self._weights)
        self._verdict = decide(evidence, self._batch, self._seen, runner)

    def _look(self, model: torch.nn.Module, suspects: list[MicroBatch]) -> list[tuple[MicroBatch, Batch]]:
        looked: list[tuple[MicroBatch, Batch]] = []
        for one in suspects:
            batch = Batch()
            with self.notes.guard("reading the batch"):
                read_batch(batch, model, one.inputs)
            looked.append((one, batch))
        return looked

    def _run(self, runner: Runner, looked: list[tuple[MicroBatch, Batch]], *, backward: bool) -> None:
        for one, batch in looked:
            seen = runner.run(one.args, one.inputs, one.loss_arguments, backward=backward)
            if seen is None:
                continue
            if backward and one.value is not None and seen.only_loss:
                self.notes.add("its loss was finite in the training: it could not be computed in the same way")
                self._in_doubt = True
                continue
            self._seen = seen
            if seen.bad:
                self._one, self._batch = one, batch
                return

    def describe(self) -> dict[str, Any]:
        """Returns what was found as fields of the event."""
        batch, one, verdict, seen = self._batch, self._one, self._verdict, self._seen
        labels = batch.labels
        return {
            "cause": verdict.cause,
            "parameters": verdict.parameters,
            "micro_batch": None if one is None else one.number,
            "samples": [] if one is None else _samples(one),
            "reproduced": seen is not None and seen.bad,
            "module": verdict.module,
            "module_kind": verdict.kind,
            "inputs": batch.inputs,
            "outputs": [] if seen is None else seen.outputs,
            "weights": self._weights.shown,
            "tokens": batch.tokens,
            "padded_tokens": batch.padded_tokens,
            "supervised_tokens": None if labels is None else labels.supervised,
            "loss": None if one is None else one.value,
        }


def _by_tokens(one: MicroBatch) -> bool:
    return any(given.get("num_items_in_batch") is not None for given in (one.inputs, one.loss_arguments))


def _is_bad(one: MicroBatch) -> bool:
    value = one.value
    return value is not None and not math.isfinite(value)


def _samples(one: MicroBatch) -> list[int]:
    """Returns the samples where they can be the batch's: some trainers make other batches of what was loaded."""
    sizes = {tensor.shape[0] for tensor in one.inputs.values() if getattr(tensor, "ndim", 0) >= 2}
    count = len(one.samples)
    # One row for all: packed, without padding. Two for each: DPO's chosen and rejected answers; a single pair could as
    # well be something else.
    fits = not sizes or sizes == {1} or count in sizes or (count > 1 and 2 * count in sizes)
    return list(one.samples) if fits else []
