"""Whatever goes wrong at the begin or at the end, nothing of ours stays on somebody's training."""

from __future__ import annotations

import gc
import weakref
from pathlib import Path
from typing import Any

import pytest
import torch

import trainwatch
from tests.training.tiny import TinyData, TinyModel, make_trainer, of, read_events
from trainwatch.events import LayersMeasured, RunEnded, StepEnded, TroubleCounted
from trainwatch.training import watcher as watcher_module
from trainwatch.training.hooks import ModelHook
from trainwatch.training.safety import Safety


def ours(model: torch.nn.Module) -> list[Any]:
    return [hook for hook in model._forward_hooks.values() if isinstance(hook, ModelHook)]


def test_a_begin_that_fails_halfway_takes_everything_off_again(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(*args: Any, **kwargs: Any) -> Any:
        raise RuntimeError("planted")

    monkeypatch.setattr(watcher_module, "introduce", failing)
    trainer = make_trainer(tmp_path / "out", steps=3, policy=None)
    callback = trainwatch.watch(trainer)
    trainer.train()
    assert trainer.state.global_step == 3
    assert "Watcher.start" in callback.safety.errors
    assert not ours(trainer.model)
    assert "compute_loss" not in vars(trainer)
    assert "backward" not in vars(trainer.accelerator)


def test_a_training_that_failed_unseen_ends_when_the_next_one_begins_on_its_model(home: Path, tmp_path: Path) -> None:
    class Broken(TinyData):
        def __getitem__(self, index: int) -> dict[str, Any]:
            if index == 5:
                raise RuntimeError("out of memory, say")
            return super().__getitem__(index)

    model = TinyModel()
    first = make_trainer(tmp_path / "a", data=Broken(16), model=model)
    with pytest.raises(RuntimeError):
        first.train()
    assert len(ours(model)) == 1, "a callback alone is not told of exceptions"
    second = make_trainer(tmp_path / "b", steps=4, model=model)
    second.train()
    assert not ours(model)
    ends = {event.outcome: event for event in of(RunEnded, read_events(home))}
    assert set(ends) == {"failed", "finished"}
    assert "another training of the same model began" in ends["failed"].error


def test_batches_are_not_kept_beyond_their_step(home: Path, tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path / "out", steps=4)
    seen: list[weakref.ref[Any]] = []
    collate = trainer.data_collator

    def noting(samples: Any) -> Any:
        batch = collate(samples)
        seen.append(weakref.ref(batch["input_ids"]))
        return batch

    trainer.data_collator = noting
    trainer.train()
    gc.collect()
    assert [reference() for reference in seen] == [None] * len(seen)


def test_gradients_that_come_late_do_not_blind_the_guard(home: Path, tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path / "out", steps=3)
    unused = torch.nn.Parameter(torch.ones(3))
    trainer.model.register_parameter("unused", unused)

    class Late(trainwatch.TrainWatchCallback.__mro__[1]):  # type: ignore[misc]
        """Gives a parameter its gradient behind the backward pass, as an all-reduce does to one that was not used."""

        def on_pre_optimizer_step(self, *args: Any, **kwargs: Any) -> None:
            unused.grad = torch.zeros(3)
            trainer.model.head.bias.grad = None

    trainer.callback_handler.callbacks.insert(0, Late())
    trainer.train()
    found = read_events(home)
    assert not of(TroubleCounted, found)
    assert all("train/grad_norm" in event.values for event in of(StepEnded, found))
    assert len(of(LayersMeasured, found)) == 1


def test_an_exception_without_a_message_is_swallowed_too() -> None:
    class Mute(Exception):
        def __str__(self) -> str:
            raise RuntimeError("no text")

    safety = Safety(quiet=True)
    with safety.guard("place"):
        raise Mute
    assert safety.errors == {"place": 1}
