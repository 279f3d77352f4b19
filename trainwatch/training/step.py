"""The signals of one step, put together: from the hooks' calls to the step's values on the host."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import msgspec

from trainwatch.events import Values
from trainwatch.training.retention import Retention
from trainwatch.training.safety import Safety
from trainwatch.training.signals.batch import BatchSignal
from trainwatch.training.signals.gradients import GradientSignal
from trainwatch.training.signals.layers import LayerSignal
from trainwatch.training.signals.loss import LossSignal, value_of
from trainwatch.training.signals.reading import to_host
from trainwatch.training.signals.samples import SampleTrail

if TYPE_CHECKING:
    import torch

    from trainwatch.training.signals.reading import Scalar


class StepReading(msgspec.Struct, frozen=True):
    """A step's values, before the optimizer has run.

    Attributes:
        values: Loss, gradient norms, sizes, under the catalogue's names.
        loss: The step's loss, NaN when none was seen.
        loss_seen: A loss was seen in use, though it may not be exactly what is trained on.
        loss_bad: A micro-batch of this rank had a non-finite loss.
        bad_micro_batches: How many had.
        norm: The gradient norm, None when it couldn't be read.
        squares: Sum of the squares of this rank's shard of the gradients, None unless they are sharded.
        gradient_bad: A gradient that the optimizer is about to use is not finite, or was when DeepSpeed looked.
        scaled: DeepSpeed's own loss scaler is at work.
        local_gradient_bad: It was so on this rank before any all-reduce.
        culprits: Names of the parameters whose gradient was not finite, on this rank.
    """

    values: Values
    loss: float = math.nan
    loss_seen: bool = False
    loss_bad: bool = False
    bad_micro_batches: int = 0
    norm: float | None = None
    squares: float | None = None
    gradient_bad: bool = False
    scaled: bool = False
    local_gradient_bad: bool = False
    culprits: list[str] = []


class StepObserver:
    """Collects what is seen of a step: by the hooks on the model, and by the tap on the Trainer where there is one.

    It is the observer of :class:`~trainwatch.training.hooks.ModelHook` and :class:`~trainwatch.training.tap.Tap`.

    Args:
        model: The model, unwrapped.
        safety: Where the hooks' failures are counted.
        is_last_micro_batch: Tells during a backward pass whether the optimizer steps after it.
        ranks: How many train together, and reduce their gradients after the local ones are complete.
        gradients_stay: They are there from the backward pass to the optimizer; not so under DeepSpeed.
        flat_shards: FSDP's first version holds the parameters.
        accumulation: Micro-batches of a full step.
        normalised_scale: Factor that makes a loss divided by the number of items of *all* ranks comparable.
        evaluating: Called at each forward pass in evaluation mode.
        trail: Is told when a micro-batch is over.

    Attributes:
        tapped: The Trainer itself tells which loss it trains on; the model's own is not counted.
        loss_is_exact: The loss that was seen last is what is trained on; None before the first.
        distrusted: It is not, whatever it looks like: somebody knows better.
        retention: Keeps the step's micro-batches; whoever begins a step clears it.
        look_at_layers: Keep the layers' norms in this step; ``closely`` counts zeros and measures updates too.
        in_step: The Trainer is between the begin and the end of a step.
        backward_passes: How many backward passes the step had.
        backward_ended_at: When the last one seen was over, in seconds of the performance counter; 0 for never.
    """

    def __init__(
        self,
        model: Any,
        safety: Safety,
        *,
        is_last_micro_batch: Callable[[], bool],
        ranks: int,
        gradients_stay: bool,
        flat_shards: bool,
        accumulation: int,
        normalised_scale: float,
        evaluating: Callable[[], None],
        trail: SampleTrail | None = None,
    ) -> None:
        self.safety = safety
        self.loss = LossSignal()
        self.eval_loss = LossSignal()
        self.batch = BatchSignal()
        self.gradients = GradientSignal(
            model.named_parameters() if gradients_stay else (), ranks, flat_shards=flat_shards
        )
        self.layers = LayerSignal(self.gradients)
        self.tapped = False
        self.loss_is_exact: bool | None = None
        self.distrusted = False
        self.look_at_layers = self.in_step = False
        self.backward_ended_at = 0.0
        self._is_last = is_last_micro_batch
        self.several_ranks = ranks > 1
        self.reduces = ranks > 1 and not self.gradients.sharded
        self._scale = normalised_scale
        self._parts = accumulation
        self._evaluating = evaluating
        self._trail = trail
        self.retention = Retention(trail, accumulation)
        self._saw_forward = self._saw_labels = False
        self._untouched = False
        self.begin()

    def begin(self) -> None:
        """Begins a step; costs nothing when nothing was seen since the last one."""
        if self._untouched:
            return
        self._untouched = True
        self._pending: tuple[Scalar, bool] | None = None
        self.trainer_norm: Scalar | None = None
        self._overflow = ""
        self._weight: Scalar = 0.0
        self.backward_passes = 0
        self.loss.reset()
        self.batch.reset()
        self.gradients.reset()

    # -- by the hooks on the model -------------------------------------------------------------------------------

    def saw_forward(
        self, training: bool, inputs: Mapping[str, Any], loss: torch.Tensor | None, args: tuple[Any, ...] = ()
    ) -> None:
        """See :class:`~trainwatch.training.hooks.ModelObserver`."""
        if not training:
            if not self.in_step:  # a model may be put to the test within a step, too: TRL generates
                self._evaluating()
            if loss is not None and not self.tapped:
                divided_by_all = inputs.get("num_items_in_batch") is not None
                self.eval_loss.fold(value_of(loss) * (self._scale if divided_by_all else 1.0))
            return
        self._untouched = False
        self._saw_forward, self._saw_labels = True, inputs.get("labels") is not None
        if not self.tapped:
            # Counted when the backward pass comes by: a custom compute_loss may train on something else.
            # Read now, since the Trainer may multiply it in place.
            self._pending = None if loss is None else (value_of(loss), inputs.get("num_items_in_batch") is not None)
            self.retention.keep(self.backward_passes, inputs, args)
        self.batch.fold(inputs)

    def loss_was_used(self, weight: torch.Tensor) -> None:
        """See :class:`~trainwatch.training.hooks.ModelObserver`."""
        if self._pending is not None:
            if weight.ndim:
                weight = weight.sum()  # a loss a replica, each with its part of the mean
            self._weight = self._weight + (weight.item() if weight.is_cpu else weight.detach().float())
            loss, normalised = self._pending
            self._pending = None
            self.retention.keep_loss(self.backward_passes, loss)
            self.loss.fold(loss, normalised=normalised)

    def _loss_is_exact(self, weight: float) -> bool:
        """Tells by the weights of the losses whether they add up to what is trained on, and to nothing else.

        Args:
            weight: The sum of the derivatives of what is trained on by each micro-batch's loss.
        """
        if self.distrusted:
            return False
        # A sum of the micro-batches, or their mean; older Trainers divide the last, incomplete step by the full number.
        count = self.loss.count
        if self.loss.normalised:
            return _is_about(weight, self._scale * count)
        return _is_about(weight, 1.0) or _is_about(weight, count / self._parts)

    def backward_ended(self) -> None:
        """See :class:`~trainwatch.training.hooks.ModelObserver`."""
        self._untouched = False
        if not self.tapped:
            self._note_backward()
        if self._is_last():
            self.gradients.measure_local()

    def reduction_ended(self) -> None:
        """See :class:`~trainwatch.training.hooks.ModelObserver`."""
        if self._is_last():
            self.gradients.measure_reduced()

    # -- by the tap on the Trainer -------------------------------------------------------------------------------

    def backward_begins(self, loss: torch.Tensor) -> None:
        """See :class:`~trainwatch.training.tap.TrainerObserver`."""
        self._untouched = False
        value = value_of(loss)
        self.loss.fold(value, normalised=True)
        self.retention.keep_loss(self.backward_passes, value)

    def backward_returned(self) -> None:
        """See :class:`~trainwatch.training.tap.TrainerObserver`."""
        self._note_backward()
        if self._is_last():
            if self.reduces:
                self.gradients.measure_reduced()
            else:
                self.gradients.measure_local()

    def clipped(self, norm: Any) -> None:
        """See :class:`~trainwatch.training.tap.TrainerObserver`."""
        if hasattr(norm, "full_tensor"):
            return  # of shards: the ranks add up theirs anyway, and one more collective may find a rank missing
        if hasattr(norm, "detach"):
            self.trainer_norm = norm.detach()
        elif isinstance(norm, int | float) and math.isfinite(norm) and norm >= 0:  # DeepSpeed gives -1 for an overflow
            self.trainer_norm = norm

    def overflowed(self, scaled: bool) -> None:
        """See :class:`~trainwatch.training.tap.TrainerObserver`."""
        self._overflow = "scaled" if scaled else "plain"

    def saw_inputs(self, inputs: Mapping[str, Any], num_items: Any) -> None:
        """See :class:`~trainwatch.training.tap.TrainerObserver`."""
        arguments = {} if num_items is None else {"num_items_in_batch": num_items}
        self.retention.keep(self.backward_passes, inputs, loss_arguments=arguments)
        labels = inputs.get("labels")
        if not self._saw_forward:  # no hook is called in a compiled model
            self._untouched = False
            self.batch.fold(inputs)
        elif labels is not None and not self._saw_labels:
            self.batch.fold_labels(labels)
        self._saw_forward = False

    def saw_eval_loss(self, loss: torch.Tensor) -> None:
        """See :class:`~trainwatch.training.tap.TrainerObserver`."""
        self._evaluating()
        self.eval_loss.fold(value_of(loss))

    def _note_backward(self) -> None:
        self.backward_passes += 1
        if self._trail is not None:
            self._trail.micro_batch_ended()
        self.backward_ended_at = time.perf_counter()

    # -- to the host ---------------------------------------------------------------------------------------------

    def read(self, loss_scale: Scalar | None = None) -> StepReading:
        """Brings the step's values to the host and forgets them; on an accelerator this is the step's one wait.

        Args:
            loss_scale: Factor that a loss scaler has put on the gradients, None without one.
        """
        try:
            return self._read(loss_scale)
        finally:
            # Whatever fails, a NaN of this step must not be taken for one of the next.
            self.begin()

    def _read(self, loss_scale: Scalar | None) -> StepReading:
        gradients = self.gradients
        scalars = self.batch.scalars()
        scalars["total"] = self.loss.total
        scalars["nonfinite"] = self.loss.nonfinite
        scalars["weight"] = self._weight
        if gradients.reduced is not None:
            scalars["norm"] = gradients.reduced
        if gradients.local is not None:
            scalars["local"] = gradients.local
        if self.trainer_norm is not None:
            scalars["trainer"] = self.trainer_norm
        if loss_scale is not None:
            scalars["train/loss_scale"] = loss_scale
        values = to_host(scalars)
        total, bad, weight = values.pop("total"), int(values.pop("nonfinite")), values.pop("weight")
        local, trainer = values.pop("local", None), values.pop("trainer", None)
        norm = values.pop("norm", local)
        scale = values.get("train/loss_scale", 1.0) or 1.0
        if self.backward_passes:
            values["train/micro_batches"] = self.backward_passes
        if bad:
            values["train/nonfinite_micro_batches"] = bad
        # The tap has seen what the Trainer made of it, scale included.
        loss = self.loss.mean(total, 1.0 if self.tapped else self._scale)
        if self.loss.count:
            self.loss_is_exact = self.tapped or self._loss_is_exact(weight / scale)
            if self.loss_is_exact:
                values["train/loss"] = loss
        elif self.backward_passes:
            self.loss_is_exact = False  # something was trained on, and it was not the model's loss
        # A norm can overflow although every gradient is finite, and clipping can have made everything NaN since.
        present = self._norm_now() if norm is None else norm
        gradient_bad = not math.isfinite(present) and bool(gradients.nonfinite_now())
        local_bad = local is not None and not math.isfinite(local)
        measured = norm is not None and not gradients.sharded
        squares = None
        if gradients.sharded and norm is not None:
            # A shard's norm is not the gradient's: the ranks add up the squares, or the Trainer has.
            squares, norm = (norm / scale) ** 2, None
        if norm is not None:
            values["train/grad_norm"] = norm / scale
            if self.several_ranks and local is not None:
                values["train/grad_norm_local"] = local / scale
        elif trainer is not None:
            # By then a loss scaler has been taken off.
            values["train/grad_norm"] = norm = trainer
        culprits: list[str] = []
        if gradient_bad:
            with self.safety.guard("culprits"):
                culprits = gradients.culprits()
        if measured and (self.look_at_layers or gradient_bad):
            # What is nice to know must not keep the guard from what it has to know.
            with self.safety.guard("layers"):
                self.layers.look(closely=self.look_at_layers, loss_scale=scale)
        return StepReading(
            values=values,
            loss=loss,
            loss_seen=self.loss.count > 0,
            loss_bad=bad > 0,
            bad_micro_batches=bad,
            norm=norm,
            squares=squares,
            gradient_bad=gradient_bad or bool(self._overflow),
            scaled=self._overflow == "scaled",
            # A shard's gradient is already everybody's.
            local_gradient_bad=local_bad and not gradients.sharded,
            culprits=culprits,
        )

    def _norm_now(self) -> float:
        """Returns the norm of the present gradients, clipped as they are, where none was measured before.

        One wait for the device; asking each parameter whether it is finite would be one each.
        """
        norm = self.gradients.measure()
        return 0.0 if norm is None else to_host({"norm": norm})["norm"]

    def read_evaluation(self, reported: float | None = None) -> Values:
        """Returns what an evaluation's forward passes gave, and forgets it.

        Args:
            reported: The loss that the framework makes of it, if it does.
        """
        signal = self.eval_loss
        values: Values = {}
        if signal.count and (self.tapped or self._evaluates_own_loss(reported)):
            read = to_host({"total": signal.total, "nonfinite": signal.nonfinite})
            values["eval/loss"] = signal.mean(read["total"])
            values["eval/batches"] = signal.count
            values["eval/nonfinite_batches"] = read["nonfinite"]
        signal.reset()
        return values

    def _evaluates_own_loss(self, reported: float | None) -> bool:
        """Tells whether the model's own loss is what is evaluated: as far as it is what is trained on."""
        if self.loss_is_exact is not None or reported is None:
            return self.loss_is_exact is not False
        # Nothing was trained yet. The two are averaged in other ways, hence the width.
        read = to_host({"total": self.eval_loss.total})["total"]
        own = self.eval_loss.mean(read)
        return not math.isfinite(own) or math.isclose(own, reported, rel_tol=0.2)


def _is_about(weight: float, expected: float) -> bool:
    """Tells whether a derivative is what is expected of it; one that is not finite may be anything."""
    return math.isclose(weight, expected, rel_tol=1e-3) or not math.isfinite(weight)
