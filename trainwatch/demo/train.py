"""One run of the demo, in a process of its own: ``python -m trainwatch.demo.train --scenario healthy --steps 200 …``.

It is an ordinary Trainer script; the only line about TrainWatch is the callback.
"""

from __future__ import annotations

import argparse
import math
import os
import sys
import time
from pathlib import Path
from typing import Any, Final, TextIO

import torch
from torch.nn.functional import cross_entropy
from torch.utils.data import Dataset, SequentialSampler
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    Trainer,
    TrainerCallback,
    TrainerControl,
    TrainerState,
    TrainingArguments,
)
from transformers.modeling_outputs import CausalLMOutput

from trainwatch import TrainWatchCallback
from trainwatch.demo.corpus import MAX_TOKENS, VOCABULARY, Corpus, Sample

BATCH: Final = 4
IGNORED: Final = -100
"""The label that no loss is computed on."""
SOUND_SHARE: Final = 0.6
"""The part of the ``nan`` scenario's steps after which the samples with broken weights begin."""


class WeightedGPT2(GPT2LMHeadModel):  # type: ignore[misc,no-untyped-call,unused-ignore]
    """A GPT-2 whose loss counts each sample by its weight."""

    def forward(
        self,
        input_ids: torch.Tensor,
        attention_mask: torch.Tensor | None = None,
        labels: torch.Tensor | None = None,
        weight: torch.Tensor | None = None,
    ) -> CausalLMOutput:
        """Returns the logits and, with labels, the weighted mean over the samples of their mean loss per token."""
        logits = super().forward(input_ids=input_ids, attention_mask=attention_mask).logits
        if labels is None:
            return CausalLMOutput(logits=logits)
        wanted = labels[:, 1:]
        losses = cross_entropy(
            logits[:, :-1].flatten(0, 1), wanted.flatten(), ignore_index=IGNORED, reduction="none"
        ).view_as(wanted)
        per_sample = losses.sum(1) / (wanted != IGNORED).sum(1).clamp(min=1)
        if weight is None:
            return CausalLMOutput(loss=per_sample.mean(), logits=logits)
        return CausalLMOutput(loss=(per_sample * weight).sum() / weight.sum(), logits=logits)


class Samples(Dataset[Sample]):
    """A list of samples as PyTorch wants it."""

    def __init__(self, samples: list[Sample]) -> None:
        self._samples = samples

    def __len__(self) -> int:
        return len(self._samples)

    def __getitem__(self, index: int) -> Sample:
        return self._samples[index]


class Collator:
    """Pads a batch to its longest sample, no further: this is what makes the memory rise and fall.

    Args:
        pad: The padding's token id.
    """

    def __init__(self, pad: int) -> None:
        self._pad = pad

    def __call__(self, batch: list[Sample]) -> dict[str, torch.Tensor]:
        """Returns the batch as the model's arguments."""
        shape = (len(batch), max(len(sample.tokens) for sample in batch))
        tokens, mask = torch.full(shape, self._pad), torch.zeros(shape, dtype=torch.long)
        for row, sample in enumerate(batch):
            tokens[row, : len(sample.tokens)] = torch.tensor(sample.tokens)
            mask[row, : len(sample.tokens)] = 1
        return {
            "input_ids": tokens,
            "attention_mask": mask,
            "labels": tokens.masked_fill(mask == 0, IGNORED),
            "weight": torch.tensor([sample.weight for sample in batch]),
        }


class InOrder(Trainer):  # type: ignore[misc,unused-ignore]
    """Reads its samples in the order in which they lie, as one reads shards that were collected one after the other."""

    def _get_train_sampler(self, train_dataset: Any = None) -> SequentialSampler:
        samples: Any = self.train_dataset if train_dataset is None else train_dataset
        return SequentialSampler(samples)


class Progress(TrainerCallback):  # type: ignore[misc,unused-ignore]
    """Says one line whenever the state of the run changes.

    Args:
        terminal: Where it says it.
    """

    def __init__(self, terminal: TextIO) -> None:
        self._terminal = terminal
        self._began = time.monotonic()

    def say(self, text: str) -> None:
        """Says a line."""
        self._terminal.write(f"  {text}\n")
        self._terminal.flush()

    def seconds(self) -> float:
        """Returns how long the training has been going on."""
        return time.monotonic() - self._began

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        if state.global_step == 1:
            self._began = time.monotonic()
            self.say(f"training: {state.max_steps} steps")

    def on_evaluate(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        loss = kwargs.get("metrics", {}).get("eval_loss", math.nan)
        self.say(f"step {state.global_step}: evaluated, loss {loss:.3f}")


def model() -> WeightedGPT2:
    """Makes a small GPT-2 (about 1 million parameters) from its config.

    Its attention is the plain one, whose memory grows with the square of the length: on a machine without an
    accelerator that shows best how one long sample fills the memory.
    """
    config = GPT2Config(
        vocab_size=VOCABULARY,
        n_positions=MAX_TOKENS,
        n_embd=96,
        n_layer=2,
        n_head=4,
        bos_token_id=None,
        eos_token_id=None,
        attn_implementation="eager",  # type: ignore[call-arg,unused-ignore]
    )
    return WeightedGPT2(config)


def arguments(name: str, output: Path, steps: int) -> TrainingArguments:
    """Returns the run's arguments: warm-up and cosine, four evaluations, four checkpoints of which two are kept."""
    every = max(1, steps // 4)
    return TrainingArguments(
        output_dir=str(output),
        run_name=name,
        max_steps=steps,
        per_device_train_batch_size=BATCH,
        per_device_eval_batch_size=BATCH,
        learning_rate=2e-3,
        warmup_steps=max(1, steps // 10),
        lr_scheduler_type="cosine",
        weight_decay=0.1,
        eval_strategy="steps",
        eval_steps=every,
        save_steps=every,
        save_total_limit=2,
        logging_steps=1,
        prediction_loss_only=True,
        use_cpu=True,
        dataloader_pin_memory=False,
        remove_unused_columns=False,
        disable_tqdm=True,
        report_to=[],
        seed=0,
    )


def nonfinite_weights(checkpoint: Path) -> int:
    """Counts the values in a checkpoint's weights that are NaN or infinite."""
    saved = WeightedGPT2.from_pretrained(checkpoint)
    return sum(int((~torch.isfinite(parameter)).sum()) for parameter in saved.parameters())


def main() -> int:
    """Trains. Returns 0 when the run ended as its scenario is meant to."""
    parser = argparse.ArgumentParser(prog="python -m trainwatch.demo.train", description=__doc__)
    parser.add_argument("--scenario", choices=("healthy", "nan"), required=True)
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--output", type=Path, required=True)
    options = parser.parse_args()
    # One core stays free for the server and the browser, if there is more than one.
    torch.set_num_threads(max(1, min(4, (os.cpu_count() or 1) - 1)))

    # The Trainer's own log goes where warnings go, into a file: the terminal is for what changes.
    progress = Progress(sys.stdout)
    sys.stdout = sys.stderr
    corpus = Corpus()
    size, sound = options.steps * BATCH, math.ceil(options.steps * SOUND_SHARE) * BATCH
    healthy = options.scenario == "healthy"
    trainer = (Trainer if healthy else InOrder)(
        model=model(),
        args=arguments(f"demo-{options.scenario}", options.output, options.steps),
        train_dataset=Samples(corpus.training(size) if healthy else corpus.training_with_stale_weights(size, sound)),
        eval_dataset=Samples(corpus.evaluation(10 * BATCH)),
        data_collator=Collator(corpus.pad),
        callbacks=[progress, TrainWatchCallback()],
    )
    trainer.train()
    return conclude(progress, trainer.state, options.output, healthy)


def conclude(progress: Progress, state: TrainerState, output: Path, healthy: bool) -> int:
    """Says how the run ended, and returns 0 if that is what was to happen."""
    if state.global_step >= state.max_steps:
        progress.say(f"finished all {state.max_steps} steps in {progress.seconds():.0f} s")
        return 0 if healthy else 1
    checkpoints = sorted(output.glob("checkpoint-*"), key=lambda path: int(path.name.partition("-")[2]))
    if not checkpoints:
        progress.say(f"stopped at step {state.global_step} without a checkpoint")
        return 1
    broken = nonfinite_weights(checkpoints[-1])
    clean = "every weight in it is finite" if not broken else f"{broken} weights in it are NaN or infinite"
    progress.say(f"halted at step {state.global_step}; {checkpoints[-1].name} holds the last good state: {clean}")
    return 1 if healthy or broken else 0


if __name__ == "__main__":
    sys.exit(main())
