"""Setups that are legal, seen in the wild, and easy to get wrong. Each once harmed a training or hid a NaN."""

from __future__ import annotations

import math
import os
import pickle
import sys
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from transformers import TrainerCallback

from tests.training.tiny import InOrder, TinyData, make_trainer, of, read_events, weights
from trainwatch import TrainWatchCallback
from trainwatch.events import CheckpointSaved, Logged, NonFiniteSeen, StepEnded, TroubleCounted
from trainwatch.training import failures
from trainwatch.training.hooks import ModelHook
from trainwatch.training.redaction import redact
from trainwatch.training.safety import Safety

NAN = math.nan


class FromLogits(InOrder):
    """Trains on a loss of its own; the model's is NaN for some samples and nobody uses it."""

    def compute_loss(self, model: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        logits = model(**inputs)["logits"]
        return torch.nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), inputs["labels"][:, 1:].flatten())


def test_a_loss_that_nobody_trains_on_halts_nothing(home: Path, tmp_path: Path) -> None:
    data = TinyData(16, scales={index: NAN for index in range(4, 16)})
    trainer = make_trainer(tmp_path / "out", data=data, kind=FromLogits)
    trainer.train()
    assert trainer.state.global_step == 8
    found = read_events(home)
    assert not of(NonFiniteSeen, found)
    assert not any("train/loss" in event.values for event in of(StepEnded, found)), "the wrong loss is worse than none"


@pytest.mark.filterwarnings("default")  # Dynamo itself warns, of graph breaks in the test's model
def test_a_compiled_model_trains_as_without_us(home: Path, tmp_path: Path) -> None:
    torch._dynamo.reset()
    trainer = make_trainer(
        tmp_path / "out", steps=3, torch_compile=True, torch_compile_backend="eager", data=TinyData(6)
    )
    trainer.train()
    assert trainer.state.global_step == 3
    found = read_events(home)
    assert len(of(StepEnded, found)) == 3
    assert not of(TroubleCounted, found)
    logged = [event.values for event in of(Logged, found)]
    assert all(values["train/grad_norm"] > 0 and values["train/loss_logged"] > 0 for values in logged[:3])


@pytest.mark.filterwarnings("default")
def test_a_nan_in_a_compiled_model_is_kept_from_the_weights(home: Path, tmp_path: Path) -> None:
    torch._dynamo.reset()
    data = TinyData(8, kinks=[4])
    trainer = make_trainer(tmp_path / "out", steps=4, torch_compile=True, torch_compile_backend="eager", data=data)
    trainer.train()
    (seen,) = of(NonFiniteSeen, read_events(home))
    assert (seen.step, seen.where, seen.action) == (3, "gradient", "skipped")
    assert trainer.model is not None
    assert all(tensor.isfinite().all() for tensor in weights(trainer.model).values())  # type: ignore[arg-type]


def test_the_hook_does_not_break_a_graph() -> None:
    class Observer:
        safety = Safety()

        def __getattr__(self, name: str) -> Any:
            raise AssertionError(f"{name}: the hook looked into a graph that is being traced")

    model = torch.nn.Linear(2, 2)
    hook = ModelHook(model, Observer())  # type: ignore[arg-type]
    torch._dynamo.reset()
    compiled = torch.compile(model, backend="eager", fullgraph=True)
    assert compiled(torch.ones(1, 2)).shape == (1, 2)
    assert not Observer.safety.errors
    hook.remove()


class Unfreeze(TrainerCallback):
    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        kwargs["model"].inner.weight.requires_grad_(False)

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.global_step == 3:
            kwargs["model"].inner.weight.requires_grad_(True)


def test_a_parameter_unfrozen_in_mid_epoch_is_guarded(home: Path, tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path / "out", data=TinyData(16, kinks=[8]), callbacks=[Unfreeze()])
    trainer.train()
    (seen,) = of(NonFiniteSeen, read_events(home))
    assert (seen.step, seen.parameters, seen.action) == (5, ["inner.weight"], "skipped")
    assert trainer.model is not None
    assert all(tensor.isfinite().all() for tensor in weights(trainer.model).values())  # type: ignore[arg-type]


def test_a_halt_saves_once_and_evaluates_nothing_at_the_epochs_end(home: Path, tmp_path: Path) -> None:
    make_trainer(
        tmp_path / "out",
        data=TinyData(8, scales={2: NAN}),
        evaluation=TinyData(2),
        policy="halt",
        eval_strategy="epoch",
        save_strategy="epoch",
    ).train()
    found = read_events(home)
    assert [(event.step, event.reason) for event in of(CheckpointSaved, found)] == [(2, "halt")]


def test_numbers_of_numpy_and_broken_text_are_recorded(home: Path, tmp_path: Path) -> None:
    msgspec.msgpack.encode(redact({"rate": np.float64(0.1), "text": "a\udcff"}))
    make_trainer(tmp_path / "out", steps=2, learning_rate=np.float64(0.01)).train()
    assert len(of(StepEnded, read_events(home))) == 2


def test_the_callback_can_be_pickled_after_a_training(home: Path, tmp_path: Path) -> None:
    callback = TrainWatchCallback("halt")
    make_trainer(tmp_path / "out", steps=2, policy=None, callbacks=[callback]).train()
    assert isinstance(pickle.loads(pickle.dumps(callback)), TrainWatchCallback)


def test_an_exception_in_a_forked_child_ends_as_usual(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "excepthook", sys.__excepthook__)
    monkeypatch.setattr(failures, "_installed_in", 0)

    class Training:
        safety: Any = None

        def failed(self, error: str, trace: str) -> None:
            """Nobody asks."""

    failures.watch(Training())
    monkeypatch.setattr(failures, "_installed_in", os.getpid() + 1)  # as after a fork
    failures.watch(Training())
    assert failures._previous_hook is sys.__excepthook__
