"""Trainings for the end-to-end tests (``python -m tests.e2e.trainings``): a real Trainer, and faults on demand."""

from __future__ import annotations

import argparse
import os
import random
import signal
import sys
import time
from pathlib import Path
from typing import Any

from transformers import TrainerCallback

from tests.training.tiny import TinyData, make_trainer


def starved() -> float:
    """Returns for how many seconds this thread was ready to run, and the machine ran others."""
    try:
        return int(Path("/proc/self/schedstat").read_text().split()[1]) / 1e9
    except OSError:  # this system does not tell
        return 0.0


class Notes(TrainerCallback):
    """Writes each finished step to a file, past TrainWatch; it stands behind it in the list of callbacks."""

    def __init__(self, path: Path, pause: float, until: Path | None = None) -> None:
        self.path = path
        self.pause = pause
        self.file = -1
        self.until = until

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.file = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        os.write(self.file, f"{state.global_step} {time.time()} {starved()}\n".encode())
        time.sleep(self.pause)
        if self.until is not None and self.until.exists():
            control.should_training_stop = True


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--name", default="run")
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--pause", type=float, default=0.0)
    parser.add_argument("--until", type=Path, help="stop at the first step after this file has appeared")
    parser.add_argument("--logging-steps", type=int, default=1)
    parser.add_argument("--bad", type=lambda text: [int(step) for step in text.split(",")], default=[])
    parser.add_argument("--value", type=float, default=float("nan"))
    parser.add_argument("--bad-rank", type=int, default=0)
    parser.add_argument("--bad-evaluation", type=int, default=0, help="evaluation batches out of 10 that are NaN")
    parser.add_argument("--kills", type=int, default=0, help="train this often, and be killed each time")
    return parser.parse_args()


def train(options: argparse.Namespace, run: str) -> None:
    rank = int(os.environ.get("RANK", 0))
    world = int(os.environ.get("WORLD_SIZE", 1))
    os.environ["TRAINWATCH_RUN_ID"] = run
    # The sampler is in order: with a batch of 2 a rank sees the batches rank, rank + world, rank + 2 * world …
    scales = {((step - 1) * world + options.bad_rank) * 2: options.value for step in options.bad}
    evaluation: dict[str, Any] = {}
    if options.bad_evaluation:
        bad = {index: float("nan") for index in range(options.bad_evaluation)}
        evaluation = {"evaluation": TinyData(10, scales=bad), "eval_strategy": "steps", "eval_steps": 10}
    trainer = make_trainer(
        options.folder / f"{run}.out",
        steps=options.steps,
        data=TinyData(options.steps * 2 * world, scales=scales),
        logging_steps=options.logging_steps,
        **evaluation,
    )
    notes = options.folder / (f"{run}.steps" if not rank else f"{run}.steps.{rank}")
    trainer.add_callback(Notes(notes, options.pause, options.until))
    trainer.train()
    if world > 1:
        leave()


def leave() -> None:
    """Ends a process of several ranks without tearing torch down.

    In torch 2.13 the end of gloo's process group deadlocks now and then, with or without TrainWatch: its thread waits
    for the GIL to free a gathered tensor, while the main thread holds it and waits for that thread.
    """
    sys.stdout.flush()
    os._exit(0)


def be_killed(options: argparse.Namespace) -> None:
    """Trains in forked children and kills each at a random moment; importing torch twenty times would take minutes."""
    choose = random.Random(4)
    for number in range(options.kills):
        run = f"{options.name}{number}"
        child = os.fork()
        if not child:
            train(options, run)
            os._exit(0)
        notes = options.folder / f"{run}.steps"
        while not notes.exists() or not notes.stat().st_size:
            time.sleep(0.01)
        time.sleep(choose.uniform(0.0, 1.0))
        os.kill(child, signal.SIGKILL)
        assert os.WIFSIGNALED(os.waitpid(child, 0)[1]), "the training ended before it could be killed"


if __name__ == "__main__":
    options = parse()
    if options.kills:
        be_killed(options)
    else:
        train(options, options.name)
