"""The autopsy inside a real training: when it is made, what it is told, and that the training does not notice."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch

import trainwatch
from tests.training.tiny import InOrder, TinyData, TinyModel, make_trainer, of, read_events, weights
from trainwatch.events import Autopsied, NonFiniteSeen, SignalsFound

POISON = 49


class Poisoned(torch.nn.Module):
    """Turns NaN wherever a token came by that is not good for it."""

    def forward(self, hidden: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
        return torch.where((ids == POISON)[..., None], torch.nan, hidden)


class PoisonedModel(TinyModel):
    def __init__(self) -> None:
        super().__init__()
        self.gate = Poisoned()
        self.embedding.register_forward_pre_hook(self.look)

    def look(self, module: torch.nn.Module, args: tuple[Any, ...]) -> None:
        (self.ids,) = args

    def hidden(self, embedded: torch.Tensor) -> torch.Tensor:
        return torch.tanh(self.gate(self.inner(embedded), self.ids))


class DroppingModel(PoisonedModel):
    def hidden(self, embedded: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.dropout(super().hidden(embedded), 0.3, self.training)


def poisoned_data(size: int, *bad: int) -> TinyData:
    data = TinyData(size)
    for index, tokens in enumerate(data.tokens):
        tokens[tokens == POISON] = 1
        if index in bad:
            tokens[1] = POISON
    return data


@pytest.mark.parametrize("tapped", [False, True])
@pytest.mark.parametrize("parts", [1, 2])
def test_the_module_the_batch_and_the_samples_are_named(
    home: Path, tmp_path: Path, parts: int, tapped: bool, caplog: pytest.LogCaptureFixture
) -> None:
    trainer = make_trainer(
        tmp_path / "out",
        steps=6,
        data=poisoned_data(40, 10),
        model=PoisonedModel(),
        policy=None if tapped else "protect",
        gradient_accumulation_steps=parts,
    )
    if tapped:
        trainwatch.watch(trainer)
    trainer.train()
    found = read_events(home)
    (seen,), (report,) = of(NonFiniteSeen, found), of(Autopsied, found)
    number = 10 // 2  # of the micro-batch, over all steps
    assert seen.step == report.step == number // parts + 1
    assert (report.cause, report.module, report.module_kind) == ("module_forward", "gate", "Poisoned")
    assert report.reproduced
    assert report.micro_batch == number % parts
    assert report.samples == [10, 11]
    assert report.supervised_tokens == report.tokens == sum(len(trainer.train_dataset.tokens[i]) for i in (10, 11))
    assert math.isnan(report.loss)
    assert "gate (Poisoned) is the first module" in caplog.text
    assert "samples" in of(SignalsFound, found)[-1].sources


def test_all_labels_ignored(home: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    trainer = make_trainer(tmp_path / "out", steps=4)
    collate = trainer.data_collator

    def ignoring(samples: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
        batch = collate(samples)
        if trainer.state.global_step == 0 and torch.equal(samples[0]["input_ids"], trainer.train_dataset.tokens[2]):
            batch["labels"].fill_(-100)
        return batch

    trainer.data_collator = ignoring
    trainer.train()
    (report,) = of(Autopsied, read_events(home))
    assert (report.step, report.cause, report.supervised_tokens) == (2, "no_supervised_tokens", 0)
    assert "labels of this batch are -100" in caplog.text


def test_only_the_first_and_the_last_are_looked_into(home: Path, tmp_path: Path) -> None:
    data = TinyData(200, scales={index: math.nan for index in (2, 6, 10, 14, 18, 20, 22)})
    make_trainer(tmp_path / "out", steps=40, data=data).train()
    found = read_events(home)
    assert [event.step for event in of(NonFiniteSeen, found)] == [2, 4, 6, 8, 10, 11, 12]
    assert [event.step for event in of(Autopsied, found)] == [2, 4, 6, 12]


@pytest.mark.parametrize("policy", ["protect", "record"])
def test_the_training_goes_on_as_if_nobody_had_looked(
    home: Path, tmp_path: Path, policy: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from trainwatch.training.coroner import Coroner

    ends = []
    torch.manual_seed(3)
    start = weights(DroppingModel())
    for looked in (True, False):
        if not looked:
            monkeypatch.setattr(Coroner, "examine", lambda *args: None)
        model = DroppingModel()
        model.load_state_dict(start)
        trainer = make_trainer(
            tmp_path / f"out{looked}", steps=8, data=poisoned_data(16, 5), model=model, policy=policy, kind=InOrder
        )
        trainer.train()
        ends.append(weights(trainer.model))
    for name, tensor in ends[0].items():
        assert torch.equal(tensor.nan_to_num(7.0), ends[1][name].nan_to_num(7.0))
    assert len(of(Autopsied, read_events(home))) >= 1
