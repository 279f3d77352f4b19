"""Which samples are in which batch, against the truth: each sample carries its own index into the batch."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from accelerate.data_loader import BatchSamplerShard, prepare_data_loader
from torch.utils.data import BatchSampler, DataLoader, Dataset, IterableDataset, RandomSampler, SequentialSampler
from transformers import Trainer, TrainerCallback, TrainingArguments

from trainwatch.training.safety import Safety
from trainwatch.training.signals.samples import SampleTrail


class Numbered(Dataset[dict[str, Any]]):
    def __init__(self, size: int = 37) -> None:
        self.size = size
        lengths = torch.randint(3, 12, (size,), generator=torch.Generator().manual_seed(0))
        self.lengths: list[int] = lengths.tolist()

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {"input_ids": [1] * self.lengths[index], "index": index}


class Stream(IterableDataset[dict[str, Any]]):
    def __iter__(self) -> Iterator[dict[str, Any]]:
        return (Numbered()[index] for index in range(37))


def collate(samples: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
    ids = [torch.tensor(sample["input_ids"]) for sample in samples]
    return {
        "input_ids": torch.nn.utils.rnn.pad_sequence(ids, batch_first=True),
        "index": torch.tensor([sample["index"] for sample in samples]),
    }


class Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(()))
        self.truth: list[list[int]] = []

    def forward(self, input_ids: torch.Tensor, index: torch.Tensor) -> dict[str, torch.Tensor]:
        self.truth.append(index.tolist())
        return {"loss": self.weight * input_ids.float().mean()}


class Follow(TrainerCallback):
    """What the watcher is going to do; notes what it is told of each micro-batch of each step."""

    def __init__(self) -> None:
        self.safety = Safety()
        self.said: list[list[int]] = []
        self.trail: SampleTrail | None = None
        self._count = 0

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.trail = SampleTrail(kwargs["train_dataloader"], self.safety, accumulation=args.gradient_accumulation_steps)

    def on_epoch_begin(self, *args: Any, **kwargs: Any) -> None:
        assert self.trail is not None
        self.trail.epoch_began()

    def on_step_begin(self, *args: Any, **kwargs: Any) -> None:
        assert self.trail is not None
        self.trail.step_began()
        self._count = 0

    def on_substep_end(self, *args: Any, **kwargs: Any) -> None:
        assert self.trail is not None
        self._count += 1
        self.trail.micro_batch_ended()

    def on_pre_optimizer_step(self, *args: Any, **kwargs: Any) -> None:
        assert self.trail is not None
        self.said += [self.trail.taken(number) for number in range(self._count + 1)]

    def on_step_end(self, *args: Any, **kwargs: Any) -> None:
        assert self.trail is not None
        self.trail.micro_batch_ended()

    def on_train_end(self, *args: Any, **kwargs: Any) -> None:
        assert self.trail is not None
        self.trail.remove()


def make(
    output: Path, data: Any = None, *extra: TrainerCallback, kind: type[Trainer] = Trainer, **arguments: Any
) -> tuple[Trainer, Follow, Model]:
    follow, model = Follow(), Model()
    settings: dict[str, Any] = {
        "per_device_train_batch_size": 4,
        "num_train_epochs": 2,
        "save_strategy": "no",
        "report_to": [],
        "disable_tqdm": True,
        "use_cpu": True,
        "dataloader_pin_memory": False,
        "remove_unused_columns": False,
        "learning_rate": 1e-3,
        **arguments,
    }
    trainer = kind(
        model=model,
        args=TrainingArguments(str(output), **settings),
        train_dataset=Numbered() if data is None else data,
        data_collator=collate,
        callbacks=[follow, *extra],
    )
    return trainer, follow, model


@pytest.mark.parametrize(
    "arguments",
    [
        {},
        {"gradient_accumulation_steps": 3},
        {"dataloader_num_workers": 2},
        {"dataloader_num_workers": 2, "dataloader_persistent_workers": True, "gradient_accumulation_steps": 2},
        {"dataloader_drop_last": True},
        {"max_steps": 5},
        {"length_column_name": "length", "train_sampling_strategy": "group_by_length"},
        {"accelerator_config": {"use_seedable_sampler": False}},
        {"accelerator_config": {"split_batches": True}},
    ],
    ids=lambda arguments: ",".join(arguments) or "plain",
)
def test_the_trainers_batches_are_known(tmp_path: Path, arguments: dict[str, Any]) -> None:
    trainer, follow, model = make(tmp_path, **arguments)
    trainer.train()
    assert follow.said == model.truth
    assert len(model.truth) >= 5
    assert not follow.safety.errors
    assert follow.trail is not None
    assert not follow.trail.missing


def test_training_sees_the_same_batches_with_and_without(tmp_path: Path) -> None:
    orders, states = [], []
    for followed in (False, True):
        trainer, follow, model = make(tmp_path, gradient_accumulation_steps=2)
        if not followed:
            trainer.remove_callback(follow)
        torch.manual_seed(3)
        trainer.train()
        orders.append(model.truth)
        states.append(torch.get_rng_state())
    assert orders[0] == orders[1]
    assert torch.equal(states[0], states[1])


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("stop", [2, 4, 7])
def test_a_resumed_training_skips_batches(tmp_path: Path, workers: int, stop: int) -> None:
    class Stop(TrainerCallback):
        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            control.should_training_stop = state.global_step == stop

    settings: dict[str, Any] = {
        "save_strategy": "steps",
        "save_steps": 1,
        "gradient_accumulation_steps": 2,
        "dataloader_num_workers": workers,
    }
    first, _, before = make(tmp_path, None, Stop(), **settings)
    first.train()
    whole, _, expected = make(tmp_path / "whole", **(settings | {"save_strategy": "no"}))
    whole.train()
    second, follow, after = make(tmp_path, **settings)
    second.train(resume_from_checkpoint=str(tmp_path / f"checkpoint-{stop}"))
    assert follow.said == after.truth
    assert [*before.truth, *after.truth] == expected.truth
    assert not follow.safety.errors


def test_somebody_else_who_looks_at_the_training_data_is_not_mistaken_for_it(tmp_path: Path) -> None:
    class Look(TrainerCallback):
        def on_epoch_begin(self, *args: Any, **kwargs: Any) -> None:
            self._look(kwargs["train_dataloader"])

        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            if state.global_step == 3:
                self._look(kwargs["train_dataloader"])

        def _look(self, loader: Any) -> None:
            list(loader.batch_sampler)
            for _ in DataLoader(loader.dataset, batch_sampler=loader.batch_sampler, collate_fn=collate):
                pass

    trainer, follow, model = make(tmp_path, None, Look())
    trainer.train()
    assert follow.said == model.truth


def test_an_iterable_data_set_tells_nothing(tmp_path: Path) -> None:
    trainer, follow, model = make(tmp_path, Stream(), max_steps=5)
    trainer.train()
    assert follow.said == [[]] * 5
    assert len(model.truth) == 5
    assert follow.trail is not None
    assert follow.trail.missing == "not available: an iterable data set has no sampler"


def loaders(sampler: Any, ranks: int, **settings: Any) -> list[Any]:
    return [
        prepare_data_loader(
            DataLoader(Numbered(), batch_size=4, sampler=sampler(), collate_fn=collate, **settings),
            num_processes=ranks,
            process_index=rank,
            put_on_device=False,
            use_seedable_sampler=True,
            data_seed=7,
        )
        for rank in range(ranks)
    ]


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("sampler", [SequentialSampler, RandomSampler])
def test_each_rank_knows_its_own(sampler: Any, workers: int) -> None:
    for loader in loaders(lambda: sampler(Numbered()), 3, num_workers=workers):
        assert isinstance(loader.batch_sampler, BatchSamplerShard)
        trail = SampleTrail(loader, Safety())
        for _ in range(2):
            trail.epoch_began()
            for batch in loader:
                trail.step_began()
                assert trail.taken(0) == batch["index"].tolist()
                trail.micro_batch_ended()
        trail.remove()
        assert type(loader.batch_sampler) is BatchSamplerShard


def test_batches_that_rank_0_hands_out_are_not_known() -> None:
    plain = DataLoader(Numbered(), batch_size=4, collate_fn=collate)
    loader = prepare_data_loader(plain, torch.device("cpu"), 1, 0, dispatch_batches=True, put_on_device=True)
    trail = SampleTrail(loader, Safety())
    assert "dispatch_batches" in trail.missing
    assert type(loader.batch_sampler) is BatchSampler


class Stateful(DataLoader[Any]):
    """Saves where its sampler is, as torchdata's StatefulDataLoader does."""

    def state_dict(self) -> dict[str, Any]:
        return {"_sampler_iter_state": None}


def test_a_loader_that_saves_its_samplers_state_is_left_alone() -> None:
    loader = Stateful(Numbered(), batch_size=4, collate_fn=collate)
    trail = SampleTrail(loader, Safety())
    assert trail.missing == "not available: Stateful keeps the state of its sampler (use_stateful_dataloader)"
    assert type(loader.batch_sampler) is BatchSampler
    prepared = prepare_data_loader(DataLoader(Numbered(), batch_size=4), put_on_device=False)
    assert hasattr(prepared, "state_dict"), "accelerate's own has nothing to save"
    assert not SampleTrail(prepared, Safety()).missing


def micro_batches(trail: SampleTrail, loader: Any, steps: list[int], loaded: int = 2) -> list[list[int]]:
    """Makes an epoch of steps, each loading some batches and going backward some number of times."""
    said = []
    trail.epoch_began()
    batches = iter(loader)
    for backward_passes in steps:
        for _ in range(loaded):
            next(batches, None)
        trail.step_began()
        for _ in range(backward_passes):
            trail.micro_batch_ended()
        said += [trail.taken(number) for number in range(backward_passes)]
    return said


@pytest.mark.parametrize("steps", [[4, 4], [2, 4, 4], [2, 1, 2]])
def test_several_backward_passes_a_batch_are_not_taken_for_batches(steps: list[int]) -> None:
    loader = DataLoader(Numbered(), batch_size=1, num_workers=2, collate_fn=collate)
    trail = SampleTrail(loader, Safety(), accumulation=2)
    said = micro_batches(trail, loader, steps)
    right = [[0], [1]] if steps[0] == 2 else []
    # A step that is short may be the last one: that it is not shows when the next one begins.
    right += [[2]] if steps[1] == 1 else []
    assert said == right + [[]] * (sum(steps) - len(right))
    assert "backward passes" in trail.missing
    assert micro_batches(trail, loader, [2, 2]) == [[]] * 4, "nor later"
    assert not trail.safety.errors


def test_the_last_step_of_an_epoch_may_be_short() -> None:
    loader = DataLoader(Numbered(), batch_size=1, collate_fn=collate)
    trail = SampleTrail(loader, Safety(), accumulation=2)
    for _ in range(2):
        assert micro_batches(trail, loader, [2, 2, 1]) == [[0], [1], [2], [3], [4]]
    assert not trail.missing


class Sharpness(Trainer):
    """Goes backward twice for each batch, as sharpness-aware minimisation does."""

    def training_step(self, model: Any, inputs: Any, num_items_in_batch: Any = None) -> torch.Tensor:
        follow = next(each for each in self.callback_handler.callbacks if isinstance(each, Follow))
        assert follow.trail is not None
        for number in range(2):
            loss = self.compute_loss(model, dict(inputs))
            self.accelerator.backward(loss)
            if number == 0:
                follow.trail.micro_batch_ended()
        return loss.detach()


@pytest.mark.parametrize("accumulation", [1, 2])
def test_a_trainer_that_goes_backward_twice_is_told_nothing_wrong(tmp_path: Path, accumulation: int) -> None:
    trainer, follow, _ = make(
        tmp_path,
        kind=Sharpness,
        gradient_accumulation_steps=accumulation,
        dataloader_num_workers=2,
        train_sampling_strategy="sequential",
    )
    trainer.train()
    assert not any(follow.said[accumulation:])
    assert follow.trail is not None
    assert "backward passes" in follow.trail.missing


def test_a_loader_that_runs_too_far_ahead_is_not_followed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trainwatch.training.signals.samples._MOST", 3)
    loader = DataLoader(Numbered(), batch_size=1, collate_fn=collate)
    trail = SampleTrail(loader, Safety())
    trail.epoch_began()
    batches = iter(loader)
    ahead = [next(batches) for _ in range(5)]
    trail.step_began()
    assert trail.taken(0) == []
    assert [batch["index"].item() for batch in ahead] == [0, 1, 2, 3, 4]


def test_batches_are_forgotten_when_they_are_used_up() -> None:
    loader = DataLoader(Numbered(), batch_size=1, collate_fn=collate, num_workers=2, prefetch_factor=4)
    trail = SampleTrail(loader, Safety())
    trail.epoch_began()
    for batch in loader:
        trail.step_began()
        assert trail.taken(0) == batch["index"].tolist()
        assert trail._current is not None
        assert len(trail._current.batches) <= 9
        trail.micro_batch_ended()


def test_samples_loaded_one_by_one() -> None:
    loader = DataLoader(Numbered(), batch_size=None, sampler=RandomSampler(Numbered()))
    trail = SampleTrail(loader, Safety())
    trail.epoch_began()
    for sample in loader:
        trail.step_began()
        assert trail.taken(0) == [sample["index"]]
        trail.micro_batch_ended()


class Keyed(Dataset[Any]):
    def __getitem__(self, key: Any) -> Any:
        return {"input_ids": [1], "index": 0}


class Keys(torch.utils.data.Sampler[list[str]]):
    def __iter__(self) -> Iterator[list[str]]:
        return iter([["a", "b"], ["c", "d"]])


def test_keys_that_are_no_numbers_are_not_told() -> None:
    loader: Any = DataLoader(Keyed(), batch_sampler=Keys(), collate_fn=collate)
    trail = SampleTrail(loader, Safety())
    trail.epoch_began()
    for _ in loader:
        trail.step_began()
        assert trail.taken(0) == []
    assert not trail.safety.errors


class Rigid:
    """A sampler whose class cannot be exchanged."""

    __slots__ = ()

    def __iter__(self) -> Iterator[list[int]]:
        return iter([[0, 1], [2, 3]])


@pytest.mark.parametrize("loader", [object(), DataLoader(Numbered(), batch_sampler=Rigid(), collate_fn=collate)])
def test_what_cannot_be_followed_says_so(loader: Any) -> None:
    trail = SampleTrail(loader, Safety())
    assert trail.missing.startswith("not available: ")
    assert not trail.safety.errors
    assert trail.taken(0) == []
    trail.epoch_began()
    trail.step_began()
    trail.remove()


def test_a_sampler_that_is_pickled_or_followed_again_is_itself() -> None:
    loader = DataLoader(Numbered(), batch_size=4, collate_fn=collate)
    first = SampleTrail(loader, Safety())
    copy = pickle.loads(pickle.dumps(loader.batch_sampler))
    assert type(copy) is BatchSampler
    assert list(copy) == list(loader.batch_sampler)
    second = SampleTrail(loader, Safety())
    first.remove()
    second.epoch_began()
    for batch in loader:
        second.step_began()
        assert second.taken(0) == batch["index"].tolist()
        second.micro_batch_ended()
    second.remove()
    assert type(loader.batch_sampler) is BatchSampler
