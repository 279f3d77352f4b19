"""What really happens in a training, seen without any code of TrainWatch and computed in float64.

The loss is what the Trainer hands to the backward pass. This rank's own gradients are summed up by hooks on the
parameters; the gradients that the optimizer is to use are read where the Trainer clips them, before it does.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import torch
from transformers import Trainer, TrainerCallback

from tests.matrix.faults import POISON


class Witness(TrainerCallback):
    """Watches one rank. Attach it with :meth:`attach` before TrainWatch."""

    def __init__(self, *, leaf_hooks: bool = True) -> None:
        self.steps: dict[int, dict[str, Any]] = {}
        self.evaluations: dict[int, dict[str, Any]] = {}
        self.weights_finite: dict[int, bool] = {}
        self.error = ""
        self._leaf_hooks = leaf_hooks
        self._training = False
        self._own: dict[str, torch.Tensor] = {}

    def attach(self, trainer: Trainer) -> None:
        """Looks into a trainer from now on."""
        self._trainer = trainer
        inner_step, inner_prediction = trainer.training_step, trainer.prediction_step
        accelerator = trainer.accelerator
        inner_backward, inner_clip = accelerator.backward, accelerator.clip_grad_norm_
        inner_loss = trainer.compute_loss

        def training_step(model: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
            self._began()
            self._training = True
            try:
                return inner_step(model, inputs, *args, **kwargs)
            finally:
                self._training = False

        def compute_loss(model: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
            if self._training:  # and not when a batch is looked at once more
                self._count(inputs)
            elif not model.training:
                at = self.evaluations.setdefault(trainer.state.global_step, {"losses": [], "poisoned": 0})
                at["poisoned"] += _poisoned(inputs)
            return inner_loss(model, inputs, *args, **kwargs)

        def prediction_step(model: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
            found = inner_prediction(model, inputs, *args, **kwargs)
            at = self.evaluations.setdefault(trainer.state.global_step, {"losses": [], "poisoned": 0})
            if found[0] is not None:
                at["losses"].append(found[0].detach().double().mean().item())
            return found

        def backward(loss: torch.Tensor, **kwargs: Any) -> Any:
            assert self._training, "nobody but the training may go through the accelerator"
            parts = 1 if "DEEPSPEED" in str(accelerator.distributed_type) else accelerator.gradient_accumulation_steps
            self._now["losses"].append(loss.detach().double().item() / parts)  # by which accelerate divides it
            return inner_backward(loss, **kwargs)

        def clip_grad_norm_(*args: Any, **kwargs: Any) -> Any:
            self._look()
            return inner_clip(*args, **kwargs)

        trainer.training_step = training_step  # type: ignore[method-assign]
        trainer.prediction_step = prediction_step  # type: ignore[method-assign]
        trainer.compute_loss = compute_loss  # type: ignore[method-assign]
        accelerator.backward = backward
        accelerator.clip_grad_norm_ = clip_grad_norm_
        trainer.add_callback(self)

    # -- steps -------------------------------------------------------------------------------------------------

    @property
    def _now(self) -> dict[str, Any]:
        return self.steps[self._trainer.state.global_step + 1]

    def _began(self) -> None:
        step = self._trainer.state.global_step + 1
        if step not in self.steps:
            self._own.clear()
            self.steps[step] = {
                "losses": [],
                "samples": 0,
                "tokens": 0,
                "supervised": 0,
                "poisoned": [],
                "norm": None,
                "own_norms": {},
            }

    def _count(self, inputs: dict[str, Any]) -> None:
        now = self._now
        if _poisoned(inputs):
            now["poisoned"].append(len(now["losses"]))
        if "input_ids" in inputs:
            now["samples"] += len(inputs["input_ids"])
            now["tokens"] += int(inputs["attention_mask"].sum())
        else:  # GRPO: what was generated belongs to a prompt
            now["samples"] += len(inputs["prompt_ids"])
            now["tokens"] += int(inputs["prompt_mask"].sum() + inputs["completion_mask"].sum())
        if "labels" in inputs:
            now["supervised"] += int((inputs["labels"] != -100).sum())
        elif "completion_mask" in inputs:
            now["supervised"] += int(inputs["completion_mask"].sum())

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if self._leaf_hooks:
            for name, parameter in kwargs["model"].named_parameters():
                if parameter.requires_grad:
                    parameter.register_hook(self._adder(name))

    def _adder(self, name: str) -> Any:
        def add(gradient: torch.Tensor) -> None:
            if not self._training:
                return
            gradient = gradient.detach().double()
            self._own[name] = self._own[name] + gradient if name in self._own else gradient.clone()

        return add

    def _look(self) -> None:
        """The backward pass is over, the optimizer not yet at work."""
        now = self._now
        parameters: Any = self._trainer.model.named_parameters()  # type: ignore[union-attr]
        norms = {
            _plain_name(name): _whole(parameter.grad).double().norm().item()
            for name, parameter in parameters
            if parameter.grad is not None
        }
        if norms:
            now["norm"] = math.hypot(*norms.values())
        alone = self._trainer.args.world_size == 1
        now["own_norms"] = {name: own.norm().item() for name, own in self._own.items()} or (norms if alone else {})

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if self._now["norm"] is None:
            self._look_behind()

    def _look_behind(self) -> None:
        """Where the gradients are gone or in pieces by now (DeepSpeed): the mean of all ranks' own ones."""
        now = self._now
        now["own_norms"] = {name: own.norm().item() for name, own in self._own.items()}
        if not self._own:
            return
        several = torch.distributed.is_available() and torch.distributed.is_initialized()
        norms = []
        for _, own in sorted(self._own.items()):
            mean = own.clone()
            if several:
                torch.distributed.all_reduce(mean)
                mean /= torch.distributed.get_world_size()
            norms.append(mean.norm().item())
        now["norm"] = math.hypot(*norms)

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        parameters = kwargs["model"].parameters()
        self.weights_finite[state.global_step] = all(bool(_piece(p.detach()).isfinite().all()) for p in parameters)

    def write(self, path: Path) -> None:
        """Writes the testimony; NaN and Inf as Python's JSON writes them."""
        testimony = {
            "steps": self.steps,
            "evaluations": self.evaluations,
            "weights_finite": self.weights_finite,
            "error": self.error,
        }
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(testimony))


def _poisoned(inputs: Any) -> bool:
    """Tells whether a batch, of whatever form, has the poison in it."""
    if isinstance(inputs, torch.Tensor):
        return not inputs.is_floating_point() and bool((inputs == POISON).any())
    if isinstance(inputs, dict):
        return any(_poisoned(value) for key, value in inputs.items() if "label" not in key)
    if isinstance(inputs, list | tuple):
        return any(_poisoned(value) for value in inputs)
    return isinstance(inputs, str) and f"t{POISON}" in inputs.split()


def _plain_name(name: str) -> str:
    return name.replace("_orig_mod.", "")


def _whole(gradient: torch.Tensor) -> torch.Tensor:
    return gradient.full_tensor() if hasattr(gradient, "full_tensor") else gradient


def _piece(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor
