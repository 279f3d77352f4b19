"""A training whose longest batch comes late (``python -m tests.training.long_batches FOLDER``): a real Trainer.

It trains on a CPU. Peaks of resident memory depend on what glibc keeps of what was freed, and that on the environment
that the process began with: hence a process of its own. It ends soon after the longest batch, since what is asked
comes before.
"""

from __future__ import annotations

import argparse
import os
import random
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

from trainwatch.events import AnyEvent

SHARP: Final = {"MALLOC_MMAP_THRESHOLD_": "131072", "MALLOC_TRIM_THRESHOLD_": "131072"}
"""With these glibc gives back what is freed."""
LONGEST: Final = 1000
USUAL: Final = 380
_VOCABULARY: Final = 2000


def lengths_of(samples: int, late: int, seed: int = 5) -> list[int]:
    """Returns lengths of which one, that of sample `late`, is far longer than all others."""
    numbers = random.Random(seed)
    lengths = [numbers.randint(32, USUAL) for _ in range(samples)]
    lengths[late] = LONGEST
    return lengths


def run(folder: Path, *, steps: int, glibc: dict[str, str], **options: Any) -> list[AnyEvent]:
    """Trains in a process of its own; returns what rank 0 recorded."""
    from tests.training.tiny import read_events

    environment = {name: value for name, value in os.environ.items() if not name.startswith("MALLOC_")}
    threads = str(options.get("threads", 1))
    environment |= {"TRAINWATCH_AGENT": "0", "TRAINWATCH_HOME": str(folder), "OMP_NUM_THREADS": threads, **glibc}
    words = [word for name, value in options.items() for word in (f"--{name}", str(value))]
    command = [sys.executable, "-m", "tests.training.long_batches", str(folder), "--steps", str(steps), *words]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr
    return read_events(folder)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--attention", default="eager")
    parser.add_argument("--late", type=float, default=0.4)
    parser.add_argument("--seed", type=int, default=5, help="of the samples' lengths")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument(
        "--shuffle", type=int, default=0, help="1: the Trainer's own shuffling, the longest sample late"
    )
    options = parser.parse_args()

    import torch
    from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback, TrainingArguments

    from trainwatch import TrainWatchCallback

    torch.set_num_threads(options.threads)
    samples = 2 * options.steps
    lengths = lengths_of(samples, int(options.late * samples), options.seed)
    data = [{"input_ids": [1 + place % (_VOCABULARY - 1) for place in range(length)]} for length in lengths]

    def collate(chosen: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
        ids = [torch.tensor(sample["input_ids"]) for sample in chosen]
        pad = torch.nn.utils.rnn.pad_sequence
        mask = pad([torch.ones_like(tokens) for tokens in ids], batch_first=True)
        labels = pad(ids, batch_first=True, padding_value=-100)
        return {"input_ids": pad(ids, batch_first=True), "attention_mask": mask, "labels": labels}

    class InOrder(Trainer):
        def _get_train_sampler(self, *args: Any) -> Any:
            return torch.utils.data.SequentialSampler(self.train_dataset)

    torch.manual_seed(0)
    seed, last = None, int(options.late * samples) // 2 + 3
    if options.shuffle:
        places = ((seed, _place(samples, seed, lengths)) for seed in range(10_000))
        seed, place = next(one for one in places if 0 <= one[1] - options.late * samples <= 0.1 * samples)
        last = place // 2 + 3
    config = GPT2Config(
        vocab_size=_VOCABULARY, n_positions=1024, n_embd=64, n_layer=2, n_head=4, attn_implementation=options.attention
    )

    class Enough(TrainerCallback):
        """Ends the training two steps after the longest batch."""

        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            control.should_training_stop = state.global_step >= last

    arguments = TrainingArguments(
        str(options.folder / "out"),
        max_steps=options.steps,
        per_device_train_batch_size=2,
        data_seed=seed,
        logging_steps=50,
        save_strategy="no",
        report_to=[],
        use_cpu=True,
        disable_tqdm=True,
    )
    trainer = (Trainer if options.shuffle else InOrder)(
        model=GPT2LMHeadModel(config),
        args=arguments,
        train_dataset=data,
        data_collator=collate,
        callbacks=[TrainWatchCallback(), Enough()],
    )
    trainer.train()


def _place(samples: int, seed: int, lengths: list[int]) -> int:
    """Returns when the longest sample comes with a seed, as torch shuffles."""
    import torch

    order = torch.randperm(samples, generator=torch.Generator().manual_seed(seed)).tolist()
    return order.index(lengths.index(LONGEST))


if __name__ == "__main__":
    main()
