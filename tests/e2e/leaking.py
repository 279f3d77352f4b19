"""Trainings whose memory grows or saws under a real limit (``python -m tests.e2e.leaking``), and their fate."""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Final

import msgspec

from tests.e2e.memory_limit import MemoryLimit
from trainwatch import events, journal

MIB: Final = 2**20
BASE: Final = 640 * MIB
"""About what the training holds without a leak, its agent included."""
ROOT: Final = Path(__file__).parents[2]


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """What became of a training.

    Attributes:
        steps: Finished steps, as the training itself noted them.
        code: Its exit code; negative for a signal.
        killed: The kernel has killed for memory.
        ended: How the run ended, in its own words; None when it could not say.
        checkpoint: A checkpoint of the last step is there, whole.
        findings: What the rules found.
    """

    steps: int
    code: int
    killed: bool
    ended: events.RunEnded | None
    checkpoint: bool
    findings: list[events.FindingRaised]

    @property
    def halted(self) -> bool:
        """Whether it was halted by the forecast, with a checkpoint, before anything was killed."""
        halted = self.ended is not None and self.ended.outcome == "halted" and self.ended.reason == "oom_forecast"
        return halted and self.checkpoint and not self.killed and self.code == 0


def run(
    folder: Path,
    *,
    leak: float,
    headroom: int,
    pause: float,
    watch: str,
    saw: int = 0,
    steps: int = 100_000,
    batch: int = 2,
    bad_evaluation: int = 0,
    name: str = "run",
) -> Outcome:
    """Trains under a limit.

    Args:
        folder: An empty folder.
        leak: MiB that each step keeps.
        headroom: Bytes between what a training needs and the limit.
        pause: Seconds that a step takes besides its work.
        watch: ``"halt"``: as TrainWatch does by itself; ``"notify"``: the rule may only tell; ``"off"``: no TrainWatch.
        saw: After how many steps all that was kept is let go again, about; 0 for never.
        steps: When the training is over.
        batch: Samples of a batch.
        bad_evaluation: How many of the 10 batches of each evaluation, every 10 steps, are NaN; 0: none is evaluated.
        name: The run's id.
    """
    command = [sys.executable, "-m", "tests.e2e.leaking", "--folder", str(folder), "--leak", str(leak)]
    command += ["--pause", str(pause), "--watch", watch, "--saw", str(saw), "--steps", str(steps)]
    command += ["--batch", str(batch), "--bad-evaluation", str(bad_evaluation)]
    environment = {
        **os.environ,
        "TRAINWATCH_HOME": str(folder / "home"),
        "TRAINWATCH_SERVER": "http://127.0.0.1:9",
        "TRAINWATCH_RUN_ID": name,
        "PYTHONPATH": str(ROOT),
        "OMP_NUM_THREADS": "1",
    }
    with MemoryLimit(BASE + headroom) as limit, (folder / "log").open("wb") as log:
        code = subprocess.run(
            limit.around(command), env=environment, stdout=log, stderr=log, cwd=ROOT, timeout=600, check=False
        ).returncode
        wait_for_agents(folder)
        killed = limit.oom_kills() > 0
    notes = folder / "steps"
    found = [event for event in recorded(folder) if isinstance(event, events.FindingRaised | events.RunEnded)]
    finished = int(notes.read_text().split()[-1]) if notes.exists() and notes.read_text().split() else 0
    states = folder / "output" / f"checkpoint-{finished}" / "trainer_state.json"
    return Outcome(
        steps=finished,
        code=code,
        killed=killed,
        ended=next((event for event in found if isinstance(event, events.RunEnded)), None),
        checkpoint=states.exists() and json.loads(states.read_text())["global_step"] == finished,
        findings=[event for event in found if isinstance(event, events.FindingRaised)],
    )


def recorded(folder: Path) -> list[events.AnyEvent]:
    """Returns all that a training and its agent have recorded."""
    found: list[events.AnyEvent] = []
    for source in journal.sources(folder / "home" / "journal"):
        reader = journal.Reader(source.directory)
        while records := reader.read():
            found += [events.decode(record.payload) for record in records]
    return found


def wait_for_agents(folder: Path, seconds: float = 20.0) -> None:
    """Waits until the agent has noted how the training ended, and ends it: there is no server to ship to."""
    end = time.monotonic() + seconds
    home = str(folder / "home").encode()
    while time.monotonic() < end:
        kinds = {type(event) for event in recorded(folder)}
        if not kinds or kinds & {events.ProcessGone, events.RunEnded}:
            break
        time.sleep(0.1)
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdecimal() and home in (entry / "cmdline").read_bytes() and int(entry.name) != os.getpid():
                os.kill(int(entry.name), 15)
        except (OSError, ValueError):
            continue


def train(options: argparse.Namespace) -> None:
    """Trains; each step keeps some memory, all of it touched."""
    import torch
    from transformers import TrainerCallback

    from tests.training.tiny import TinyData, make_trainer
    from trainwatch import TrainWatchCallback

    class Leak(TrainerCallback):
        """Keeps memory over steps, and notes each finished step past TrainWatch."""

        def __init__(self) -> None:
            self.kept: list[Any] = []
            self.file = os.open(options.folder / "steps", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
            self.choose = random.Random(options.folder.name)
            self.until = self.tooth()

        def tooth(self) -> int:
            return round(options.saw * self.choose.uniform(0.6, 1.0))

        def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            if options.saw and len(self.kept) >= self.until:
                self.kept.clear()
                self.until = self.tooth()
            self.kept.append(torch.ones(int(options.leak * MIB), dtype=torch.uint8))

        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            os.write(self.file, f"{state.global_step}\n".encode())
            time.sleep(options.pause)

    rules = {"oom_forecast": {"action": "notify"}} if options.watch == "notify" else {}
    callbacks: list[Any] = [] if options.watch == "off" else [TrainWatchCallback(rules=rules)]
    evaluation: dict[str, Any] = {}
    if options.bad_evaluation:
        bad = {index: float("nan") for index in range(options.bad_evaluation)}
        evaluation = {"evaluation": TinyData(10, scales=bad), "eval_strategy": "steps", "eval_steps": 10}
    make_trainer(
        options.folder / "output",
        steps=options.steps,
        batch=options.batch,
        policy=None,
        callbacks=[*callbacks, Leak()],
        logging_steps=50,
        **evaluation,
    ).train()


def parse() -> argparse.Namespace:
    """Reads the command line."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--leak", type=float, required=True)
    parser.add_argument("--pause", type=float, default=0.05)
    parser.add_argument("--watch", choices=["halt", "notify", "off"], default="halt")
    parser.add_argument("--saw", type=int, default=0)
    parser.add_argument("--steps", type=int, default=100_000)
    parser.add_argument("--batch", type=int, default=2)
    parser.add_argument("--bad-evaluation", type=int, default=0)
    return parser.parse_args()


if __name__ == "__main__":
    train(parse())
