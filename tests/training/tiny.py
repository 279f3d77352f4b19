"""A training small enough for a unit test, and real: the Trainer, a model with a loss, data that can be poisoned."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import Trainer, TrainingArguments

from trainwatch import TrainWatchCallback, events, journal
from trainwatch.events import Policy

VOCABULARY = 50


class TinyModel(torch.nn.Module):
    """Predicts the next token from the present one; `scale` multiplies the loss, `kink` makes its gradient NaN."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.embedding = torch.nn.Embedding(VOCABULARY, width)
        self.inner = torch.nn.Linear(width, width)
        self.head = torch.nn.Linear(width, VOCABULARY)
        self.offset = 0.0

    def forward(
        self,
        input_ids: torch.Tensor,
        attention_mask: torch.Tensor,
        scale: torch.Tensor,
        kink: torch.Tensor,
        labels: torch.Tensor | None = None,
    ) -> dict[str, torch.Tensor]:
        hidden = self.hidden(self.embedding(input_ids))
        logits = self.head(hidden)
        if labels is None:
            return {"logits": logits}
        loss = torch.nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten())
        if bool(kink.any()):
            # Finite forward (0), NaN backward: the derivative of a root at 0 is Inf, and Inf * 0 is NaN.
            loss = loss + 0 * torch.sqrt(self.inner.weight.square().sum() * 0)
        return {"loss": loss * scale.mean() + self.offset, "logits": logits}

    def hidden(self, embedded: torch.Tensor) -> torch.Tensor:
        return torch.tanh(self.inner(embedded))


class TinyData(torch.utils.data.Dataset[dict[str, Any]]):
    """Random tokens of varying length.

    Args:
        scales: Index of a sample to the factor on its loss.
        kinks: Samples whose gradient is NaN.
    """

    def __init__(self, size: int, scales: dict[int, float] | None = None, kinks: Sequence[int] = ()) -> None:
        generator = torch.Generator().manual_seed(1)
        lengths = torch.randint(4, 20, (size,), generator=generator).tolist()
        self.tokens = [torch.randint(1, VOCABULARY, (length,), generator=generator) for length in lengths]
        self.scales = scales or {}
        self.kinks = set(kinks)

    def __len__(self) -> int:
        return len(self.tokens)

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {
            "input_ids": self.tokens[index],
            "scale": self.scales.get(index, 1.0),
            "kink": index in self.kinks,
        }


def collate(samples: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
    ids = [sample["input_ids"] for sample in samples]
    pad = torch.nn.utils.rnn.pad_sequence
    return {
        "input_ids": pad(ids, batch_first=True),
        "attention_mask": pad([torch.ones_like(tokens) for tokens in ids], batch_first=True),
        "labels": pad(ids, batch_first=True, padding_value=-100),
        "scale": torch.tensor([sample["scale"] for sample in samples]),
        "kink": torch.tensor([sample["kink"] for sample in samples]),
    }


class InOrder(Trainer):
    """The real Trainer, taking samples in the order of the data set, so that a test knows the step of each."""

    def _get_train_sampler(self, *args: Any) -> Any:
        return torch.utils.data.SequentialSampler(self.train_dataset)


def make_trainer(
    output: Path,
    *,
    steps: int = 8,
    batch: int = 2,
    data: TinyData | None = None,
    evaluation: TinyData | None = None,
    policy: Policy | None = "protect",
    kind: type[Trainer] = InOrder,
    model: torch.nn.Module | None = None,
    callbacks: Sequence[Any] = (),
    **arguments: Any,
) -> Trainer:
    """Makes a Trainer; with `policy` None it has no TrainWatch."""
    torch.manual_seed(0)
    settings: dict[str, Any] = {
        "max_steps": steps,
        "per_device_train_batch_size": batch,
        "per_device_eval_batch_size": 1,
        "logging_steps": 1,
        "learning_rate": 0.01,
        "save_strategy": "no",
        "report_to": [],
        "disable_tqdm": True,
        "use_cpu": True,
        "dataloader_pin_memory": False,
        "remove_unused_columns": False,
        **arguments,
    }
    return kind(
        model=model or TinyModel(),
        args=TrainingArguments(str(output), **settings),
        train_dataset=data or TinyData(steps * batch * settings.get("gradient_accumulation_steps", 1)),
        eval_dataset=evaluation,
        data_collator=collate,
        callbacks=[*callbacks, *([TrainWatchCallback(policy)] if policy else [])],
    )


def read_events(home: Path, rank: int = 0) -> list[events.AnyEvent]:
    """Reads everything that a rank recorded below `home`, over all its runs."""
    found: list[events.AnyEvent] = []
    for source in journal.sources(home / "journal"):
        if source.rank == rank:
            reader = journal.Reader(source.directory)
            while records := reader.read():
                found += [events.decode(record.payload) for record in records]
    return found


def of(kind: type[Any], found: Sequence[events.AnyEvent]) -> list[Any]:
    return [event for event in found if isinstance(event, kind)]


def weights(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    return {name: tensor.detach().clone() for name, tensor in model.state_dict().items()}


def same(first: float, second: float) -> bool:
    """Equal, and NaN equals NaN."""
    return first == second or (math.isnan(first) and math.isnan(second))
