"""When the longest batches come: told before the training, held against the batches that really came."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, SequentialSampler
from transformers import Trainer, TrainingArguments
from transformers.trainer_pt_utils import LengthGroupedSampler

from tests.patience import timing
from tests.training.tiny import TinyModel, collate, of, read_events
from trainwatch import TrainWatchCallback
from trainwatch.events import RunStarted, StepEnded
from trainwatch.training.describe.order import FIRST, LONGEST, Plan, order_of

LENGTHS = [int(length) for length in np.random.default_rng(7).integers(3, 90, 61)]
SAMPLES = [{"input_ids": torch.ones(length, dtype=torch.long), "scale": 1.0, "kink": False} for length in LENGTHS]


def train(home: Path, kind: type[Trainer] = Trainer, **arguments: Any) -> tuple[dict[str, Any], list[StepEnded]]:
    torch.manual_seed(0)
    settings = {"num_train_epochs": 3, "per_device_train_batch_size": 2, "learning_rate": 1e-3, **arguments}
    trainer = kind(
        model=TinyModel(),
        args=TrainingArguments(
            str(home / "out"),
            report_to=[],
            disable_tqdm=True,
            use_cpu=True,
            save_strategy="no",
            dataloader_pin_memory=False,
            remove_unused_columns=False,
            **settings,
        ),
        train_dataset=SAMPLES,
        data_collator=collate,
        callbacks=[TrainWatchCallback()],
    )
    trainer.train()
    found = read_events(home)
    return of(RunStarted, found)[0].dataset["train"], of(StepEnded, found)


def assert_foretold(order: dict[str, Any], steps: list[StepEnded]) -> None:
    """What was told of the order is what came."""
    lengths = {event.step: event.values["train/batch_length"] for event in steps}
    shown = len(order["first"])
    assert 10 < shown <= FIRST
    assert order["first"] == [lengths[step] for step in sorted(lengths)[:shown]]
    assert order["longest"]
    for step, length, _ in order["longest"]:
        assert lengths[step] == length
    assert order["until"] in lengths
    known = [length for step, length in lengths.items() if step <= order["until"]]
    assert max(known) == max(length for _, length, _ in order["longest"])


@pytest.mark.parametrize("accumulation", [1, 3])
def test_the_trainers_own_shuffling_is_foretold(home: Path, accumulation: int) -> None:
    told, steps = train(home, gradient_accumulation_steps=accumulation)
    assert told["order"]["sampler"] == "SeedableRandomSampler"
    assert told["order"]["until"] == steps[-1].step == 3 * -(-31 // accumulation)
    assert_foretold(told["order"], steps)


def test_a_seed_of_the_data_and_a_dropped_rest_are_foretold(home: Path) -> None:
    told, steps = train(home, data_seed=11, dataloader_drop_last=True, max_steps=45)
    assert_foretold(told["order"], steps)


class OwnGenerator(Trainer):
    def _get_train_sampler(self, *args: Any) -> Any:
        return RandomSampler(self.train_dataset, generator=torch.Generator().manual_seed(5))


class Grouped(Trainer):
    def _get_train_sampler(self, *args: Any) -> Any:
        return LengthGroupedSampler(2, lengths=list(LENGTHS), generator=torch.Generator().manual_seed(5))


class InOrder(Trainer):
    def _get_train_sampler(self, *args: Any) -> Any:
        return SequentialSampler(self.train_dataset)


@pytest.mark.parametrize("kind", [OwnGenerator, Grouped, InOrder])
def test_samplers_with_an_order_of_their_own_are_foretold(home: Path, kind: type[Trainer]) -> None:
    seedable = {"accelerator_config": {"use_seedable_sampler": False}}
    told, steps = train(home, kind, **seedable)
    assert_foretold(told["order"], steps)


class ByLength(Trainer):
    def _get_train_sampler(self, *args: Any) -> Any:
        return LengthGroupedSampler(2, lengths=list(LENGTHS))


def test_an_order_that_is_drawn_from_the_users_state_is_not_told(home: Path) -> None:
    told, _ = train(home, ByLength, max_steps=2)
    assert told["complete"]
    assert "order" not in told


def test_nothing_is_drawn_from_anybodys_generator() -> None:
    own = torch.Generator().manual_seed(3)
    loader = DataLoader(SAMPLES, batch_size=2, sampler=RandomSampler(SAMPLES, generator=own))
    before, mine, numpys = torch.get_rng_state(), own.get_state(), np.random.get_state()[1].tolist()
    assert order_of(Plan(loader, 0, 100, 1), np.array(LENGTHS), lambda: False) is not None
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(own.get_state(), mine)
    assert np.random.get_state()[1].tolist() == numpys


@pytest.mark.parametrize("rank", [0, 1, 2])
@pytest.mark.parametrize("drop_last", [True, False])
def test_each_rank_is_told_its_own_batches(rank: int, drop_last: bool) -> None:
    from accelerate.data_loader import BatchSamplerShard, SeedableRandomSampler

    def shard() -> Any:
        sampler = SeedableRandomSampler(SAMPLES, generator=torch.Generator(), data_seed=9)
        return BatchSamplerShard(BatchSampler(sampler, 4, drop_last), num_processes=3, process_index=rank)

    real = [max(LENGTHS[index] for index in batch) for batch in shard()]
    loader = DataLoader(SAMPLES, batch_sampler=shard())
    told = order_of(Plan(loader, 0, len(real), 1), np.array(LENGTHS), lambda: False)
    assert told is not None
    whole = len(LENGTHS) // 4 // 3
    assert told["first"][:whole] == real[:whole]
    assert all(real[step - 1] == length for step, length, _ in told["longest"] if step <= whole)


def test_a_resumed_training_is_told_what_is_left() -> None:
    loader = DataLoader(SAMPLES, batch_size=2)
    told = order_of(Plan(loader, 10, 31, 1), np.array(LENGTHS), lambda: False)
    assert told is not None
    pairs = [max(LENGTHS[place : place + 2]) for place in range(0, 61, 2)]
    assert told["first"] == pairs[10 : 10 + FIRST]
    assert all(step > 10 and pairs[step - 1] == length for step, length, _ in told["longest"])
    assert len(told["longest"]) <= LONGEST


class Odd(BatchSampler):
    pass


@pytest.mark.parametrize(
    "loader",
    [
        DataLoader(SAMPLES, batch_sampler=Odd(SequentialSampler(SAMPLES), 2, False)),
        DataLoader(SAMPLES, batch_size=2, shuffle=True),
        DataLoader(SAMPLES, batch_size=2, sampler=RandomSampler(SAMPLES, replacement=True)),
        DataLoader(SAMPLES, batch_size=None),
        [1, 2, 3],
        None,
    ],
)
def test_what_cannot_be_known_is_not_told(loader: Any) -> None:
    assert order_of(Plan(loader, 0, 10, 1), np.array(LENGTHS), lambda: False) is None


def test_a_million_samples_take_little_time() -> None:
    lengths = np.random.default_rng(0).integers(1, 5000, 1_000_000)
    loader = DataLoader(
        range(1_000_000), batch_size=8, sampler=RandomSampler(range(1_000_000), generator=torch.Generator())
    )
    with timing() as timed:
        assert order_of(Plan(loader, 0, 100_000, 1), lengths, lambda: True) is not None
    assert timed.took < 0.5
