"""``trainwatch.watch(trainer)``: attaches to a Trainer, and reads the loss where it is trained on."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

from trainwatch.events import Policy
from trainwatch.rules.settings import merged
from trainwatch.training.callback import TrainWatchCallback
from trainwatch.training.guard import Guard


def watch(
    trainer: Any, on_nonfinite: Policy | None = None, rules: Mapping[str, Mapping[str, Any]] | None = None
) -> TrainWatchCallback:
    """Watches a Trainer: ``trainwatch.watch(trainer)`` before ``trainer.train()``.

    It does what ``callbacks=[TrainWatchCallback()]`` does, and is told more, because a callback is never told the loss.
    That of a custom ``compute_loss``, of label smoothing and of the trainers of TRL is exact, and so are gradient norms
    under ``torch.compile``, FSDP and DeepSpeed. Until the training ends, ``compute_loss`` of the Trainer and two
    methods of its accelerator, ``backward`` and ``clip_grad_norm_``, are wrapped; ``train`` is too, to see how it ends.
    What they do is not changed.

    Args:
        trainer: A ``transformers.Trainer``, or what is derived from it. It may have a callback of ours already.
        on_nonfinite: See :class:`TrainWatchCallback`; None for what the callback that is there has.
        rules: See :class:`TrainWatchCallback`; option by option they go before those of the callback that is there.

    Returns:
        The callback.

    Raises:
        TypeError: This is no Trainer.
        ValueError: `on_nonfinite` is unknown, or the Trainer has a callback of ours with another one.
    """
    handler = getattr(trainer, "callback_handler", None)
    if handler is None or not hasattr(trainer, "compute_loss"):
        raise TypeError(f"trainwatch.watch() takes a transformers.Trainer, not {type(trainer).__name__}")
    callback = next((one for one in handler.callbacks if isinstance(one, TrainWatchCallback)), None)
    if callback is None:
        callback = TrainWatchCallback(on_nonfinite, rules)
        trainer.add_callback(callback)
    else:
        if callback.policy is not None and on_nonfinite not in (None, callback.policy):
            there = f"TrainWatchCallback({callback.policy!r})"
            raise ValueError(f"the Trainer has a {there} already: give on_nonfinite to one of the two")
        Guard(on_nonfinite or "protect")
        callback.policy = on_nonfinite or callback.policy
        callback.rules = merged(callback.rules or {}, rules or {}) if rules else callback.rules
    callback.attach(trainer)
    _watch_train(trainer, callback)
    return callback


def _watch_train(trainer: Any, callback: TrainWatchCallback) -> None:
    """Sees how each training ends: a notebook, or a script that catches the exception, goes on after it."""
    original = trainer.train
    if getattr(original, "watched_by", None) is callback:
        return

    @functools.wraps(original)
    def train(*args: Any, **kwargs: Any) -> Any:
        callback.resumed_from = args[0] if args else kwargs.get("resume_from_checkpoint")
        try:
            return original(*args, **kwargs)
        except BaseException as error:
            callback.failed(error)
            raise

    train.watched_by = callback  # type: ignore[attr-defined]
    trainer.train = train
