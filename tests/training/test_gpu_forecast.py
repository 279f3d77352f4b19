"""The longest batch on a real GPU: foreseen within 2 % of the allocator's own peak, and its shortage provoked.

Skipped without a GPU.
"""

from __future__ import annotations

import gc
import random
from pathlib import Path
from typing import Any, Final

import pytest
import torch
from msgspec.structs import replace
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainerCallback, TrainingArguments

from tests.training.tiny import of, read_events
from trainwatch import TrainWatchCallback
from trainwatch.events import AnyEvent, OutOfMemorySeen, StepEnded
from trainwatch.rules import Engine
from trainwatch.rules.peak_forecast import PeakForecast

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU"),
]

STEPS: Final = 300
TENTH: Final = STEPS // 10
LONGEST: Final = 4096
LATE: Final = 60
"""The step of the longest batch; nothing after it is asked for."""
BATCH: Final = 4


@pytest.fixture(autouse=True)
def one_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)


class InOrder(Trainer):
    def _get_train_sampler(self, *args: Any) -> Any:
        return torch.utils.data.SequentialSampler(self.train_dataset)


def collate(chosen: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
    ids = [torch.tensor(sample["input_ids"]) for sample in chosen]
    pad = torch.nn.utils.rnn.pad_sequence
    mask = pad([torch.ones_like(tokens) for tokens in ids], batch_first=True)
    labels = pad(ids, batch_first=True, padding_value=-100)
    return {"input_ids": pad(ids, batch_first=True), "attention_mask": mask, "labels": labels}


def train(home: Path, attention: str, checkpointing: bool) -> tuple[list[AnyEvent], Exception | None]:
    """Trains until the longest batch is over, or has found no memory."""
    numbers = random.Random(3)
    lengths = [numbers.randint(128, 1536) for _ in range(BATCH * STEPS)]
    lengths[BATCH * (LATE - 1) + 1] = LONGEST
    data = [{"input_ids": [1 + place % 7999 for place in range(length)]} for length in lengths]
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=8000,
        hidden_size=512,
        intermediate_size=1408,
        num_hidden_layers=6,
        num_attention_heads=8,
        num_key_value_heads=8,
        max_position_embeddings=LONGEST,
        attn_implementation=attention,
        use_cache=False,
    )
    arguments = TrainingArguments(
        str(home / "out"),
        max_steps=STEPS,
        per_device_train_batch_size=BATCH,
        logging_steps=1000,
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
        bf16=True,
        gradient_checkpointing=checkpointing,
    )
    trainer = InOrder(
        model=LlamaForCausalLM(config),
        args=arguments,
        train_dataset=data,
        data_collator=collate,
        callbacks=[TrainWatchCallback(), Last()],
    )
    error: Exception | None = None
    try:
        trainer.train()
    except torch.cuda.OutOfMemoryError as raised:
        error = raised.with_traceback(None)
    del trainer
    gc.collect()
    torch.cuda.empty_cache()
    return read_events(home), error


class Last(TrainerCallback):
    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        control.should_training_stop = state.global_step > LATE


def foreseen(found: list[AnyEvent], capacity: float) -> dict[str, Any] | None:
    """What is said from the first tenth of the steps, on a device with that much memory."""
    engine = Engine((PeakForecast,))
    for event in found:
        if isinstance(event, StepEnded):
            if event.step > TENTH:
                break
            devices = {name: {**values, "memory/capacity": capacity} for name, values in event.devices.items()}
            event = replace(event, devices=devices)
        for report in engine.observe(event, 0):
            if report.state == "firing":
                return report.parameters
    return None


@pytest.mark.parametrize("checkpointing", [False, True])
@pytest.mark.parametrize("attention", ["eager", "sdpa"])
def test_the_longest_batch_is_foreseen_and_ends_where_it_was_said(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, attention: str, checkpointing: bool
) -> None:
    found, error = train(home, attention, checkpointing)
    assert error is None
    device = f"cuda:{torch.cuda.current_device()}"
    peaks = {event.step: event.devices[device]["memory/peak"] for event in of(StepEnded, found)}
    true = peaks[LATE]
    assert true == max(peaks.values())
    assert true > 1.3 * max(peak for step, peak in peaks.items() if step != LATE)
    limit = 0.85 * true
    said = foreseen(found, limit)
    assert said is not None, "nothing was foreseen from the first tenth of the steps"
    assert said["at"] == LATE
    assert said["need"] == pytest.approx(true, rel=0.02)
    assert foreseen(found, 1.1 * true) is None

    # The same training where there is no more than that: it comes to its end in the batch that was named.
    total = torch.cuda.get_device_properties(0).total_memory
    monkeypatch.setenv("TRAINWATCH_HOME", str(tmp_path / "short"))
    torch.cuda.set_per_process_memory_fraction(limit / total)
    try:
        short, error = train(tmp_path / "short", attention, checkpointing)
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
    assert isinstance(error, torch.cuda.OutOfMemoryError)
    assert of(StepEnded, short)[-1].step == LATE - 1
    assert of(OutOfMemorySeen, short)[0].step == LATE - 1
