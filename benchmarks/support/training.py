"""The training that is measured: a real Trainer on a small GPT-2, on one thread, with a step of 5 to 10 ms."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import torch
from transformers import GPT2Config, GPT2LMHeadModel, PrinterCallback, Trainer, TrainerCallback, TrainingArguments

LENGTHS: Final = (48, 42, 30, 24)
"""Tokens of a batch's samples, padded to the longest."""
BATCH: Final = len(LENGTHS)
VOCABULARY: Final = 512
IGNORED: Final = -100


class Clock(TrainerCallback):
    """Notes when each step begins, by the wall and by the CPU time of the training thread.

    It stands before TrainWatch in the list of callbacks, so that a period holds all that TrainWatch does for a step.

    Args:
        at_step: Called at the begin of each step, just before the time is noted.
    """

    def __init__(self, at_step: Callable[[], None] | None = None) -> None:
        self._at_step = at_step
        self._wall: list[int] = []
        self._cpu: list[int] = []

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if self._at_step is not None:
            self._at_step()
        self._cpu.append(time.thread_time_ns())
        self._wall.append(time.perf_counter_ns())

    @property
    def periods(self) -> list[float]:
        """Microseconds from the begin of each step to the begin of the next."""
        return _differences(self._wall)

    @property
    def cpu_periods(self) -> list[float]:
        """The training thread's CPU time in the same periods, in microseconds."""
        return _differences(self._cpu)


def _differences(stamps: list[int]) -> list[float]:
    return [(after - before) / 1000 for before, after in pairwise(stamps)]


class Samples(torch.utils.data.Dataset[dict[str, Any]]):
    """Random tokens of varying length; every batch has the same shape, so that steps can be compared."""

    def __init__(self, size: int) -> None:
        generator = torch.Generator().manual_seed(7)
        lengths = [LENGTHS[index % len(LENGTHS)] for index in range(size)]
        self._tokens = [torch.randint(VOCABULARY, (length,), generator=generator) for length in lengths]

    def __len__(self) -> int:
        return len(self._tokens)

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {"input_ids": self._tokens[index]}


def collate(samples: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
    """Pads to the longest sample of the batch."""
    tokens = [sample["input_ids"] for sample in samples]
    pad = torch.nn.utils.rnn.pad_sequence
    return {
        "input_ids": pad(tokens, batch_first=True),
        "attention_mask": pad([torch.ones_like(one) for one in tokens], batch_first=True),
        "labels": pad(tokens, batch_first=True, padding_value=IGNORED),
    }


class InOrder(Trainer):
    """Takes the samples as they lie."""

    def _get_train_sampler(self, *args: Any) -> Any:
        data: Any = self.train_dataset
        return torch.utils.data.SequentialSampler(data)


def make_trainer(
    output: Path, steps: int, callbacks: Sequence[TrainerCallback], *, use_cpu: bool = True, logging_steps: int = 1
) -> Trainer:
    """Makes the Trainer.

    Args:
        output: Its output folder.
        steps: How long it trains.
        callbacks: In their order.
        use_cpu: Whether to train on the CPU; on one GPU otherwise.
        logging_steps: How often the Trainer logs, which makes it wait for a GPU.
    """
    torch.set_num_threads(1)  # other processes on the machine then disturb less
    torch.manual_seed(0)
    model = GPT2LMHeadModel(
        GPT2Config(
            vocab_size=VOCABULARY,
            n_positions=max(LENGTHS),
            n_embd=64,
            n_layer=2,
            n_head=4,
            bos_token_id=0,
            eos_token_id=0,
        )
    )
    arguments = TrainingArguments(
        str(output),
        max_steps=steps,
        per_device_train_batch_size=BATCH,
        logging_steps=logging_steps,
        learning_rate=1e-3,
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
        use_cpu=use_cpu,
        dataloader_pin_memory=False,
        remove_unused_columns=False,
    )
    if not use_cpu:
        arguments._n_gpu = 1  # on a machine with several the Trainer would spread the batch
    trainer = InOrder(
        model=model,
        args=arguments,
        train_dataset=Samples(steps * BATCH),
        data_collator=collate,
        callbacks=list(callbacks),
    )
    trainer.remove_callback(PrinterCallback)  # a terminal's speed is nobody's business here
    return trainer


def be_quiet() -> None:
    """Makes transformers as quiet as a benchmark's output wants it."""
    from transformers.utils import logging

    logging.set_verbosity_error()  # type: ignore[no-untyped-call]
