"""What a framework's adapter and the watcher tell each other."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import msgspec

from trainwatch.events import RuleSettings
from trainwatch.training.resume import Origin


class Facts(msgspec.Struct, frozen=True, kw_only=True):
    """What the framework knows of a training when it begins.

    Attributes:
        name: The run's name for people.
        first_step: Optimizer updates already done (resumed from a checkpoint).
        max_steps: The update at which training is to end, 0 when unknown.
        is_last_micro_batch: Tells during a backward pass whether the optimizer steps after it.
        devices: On how many this process computes by itself (torch.nn.DataParallel).
        accumulation: Micro-batches of a full step.
        normalised_scale: See :class:`~trainwatch.training.step.StepObserver`.
        arguments: The framework's settings.
        half: It computes in half precision.
        origin: The run whose checkpoint it begins with, if it does.
        trainer: The Trainer itself, where it was handed over.
        dataloader: Gives the training's batches.
        training_set: The data set.
        evaluation_set: The one for evaluations, or several under their names.
        output_dir: Where checkpoints go.
        rules: What the script and its ``trainwatch.toml`` set of the rules.
    """

    name: str
    first_step: int
    max_steps: int
    is_last_micro_batch: Callable[[], bool]
    devices: int = 1
    accumulation: int = 1
    normalised_scale: float = 1.0
    arguments: dict[str, Any] = {}
    output_dir: str = ""
    half: bool = False
    origin: Origin | None = None
    trainer: Any = None
    dataloader: Any = None
    training_set: Any = None
    evaluation_set: Any = None
    rules: RuleSettings = {}


class Wish(msgspec.Struct, frozen=True):
    """What the framework shall do after a step.

    Attributes:
        save: Save a checkpoint.
        stop: End the training, on every rank.
    """

    save: bool = False
    stop: bool = False


NOTHING: Final = Wish()
"""Nothing to do."""
