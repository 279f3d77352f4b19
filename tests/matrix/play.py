"""Trains: the cells of one setup, each with a journal and a testimony of its own.

``python -m tests.matrix.play SETUP FOLDER FAULT:HOW ...`` does it in a process of its own, also under torchrun.
"""

from __future__ import annotations

import os
import sys
import traceback
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import Trainer

from tests.matrix.faults import FAULTS, Fault
from tests.matrix.setup import Setup
from tests.matrix.setups import find
from tests.matrix.witness import Witness


def cell_folder(folder: Path, fault: Fault, how: str) -> Path:
    """Returns where a cell's journals and testimonies lie."""
    return folder / f"{fault.name}-{how}"


def attach(trainer: Trainer, how: str) -> None:
    """Attaches TrainWatch in one of its ways."""
    import trainwatch

    if how == "watch":
        trainwatch.watch(trainer)  # type: ignore[attr-defined]
    else:
        trainer.add_callback(trainwatch.TrainWatchCallback())


def play(setup: Setup, fault: Fault, how: str, folder: Path) -> None:
    """Trains one cell on this rank."""
    rank = int(os.environ.get("RANK", "0"))
    cell = cell_folder(folder, fault, how)
    os.environ["TRAINWATCH_HOME"] = str(cell / "home")
    os.environ["TRAINWATCH_AGENT"] = "0"
    os.environ.pop("TRAINWATCH_RUN_ID", None)
    torch.compiler.reset()
    witness = Witness(leaf_hooks=setup.name not in ("compile", "fsdp2"))
    try:
        _train(setup, fault, how, cell / "out", witness)
    except Exception:
        witness.error = traceback.format_exc()
    witness.write(cell / f"witness-{rank}.json")


def _train(setup: Setup, fault: Fault, how: str, output: Path, witness: Witness) -> None:
    def begin() -> Any:
        trainer = setup.build(output, fault, setup)
        witness.attach(trainer)
        attach(trainer, how)
        return trainer

    first = begin()
    if not setup.resume:
        first.train()
        return
    first.add_callback(_StopAt(3))
    first.train()
    begin().train(resume_from_checkpoint=str(output / "checkpoint-3"))


def _StopAt(step: int) -> Any:
    from transformers import TrainerCallback

    class Stop(TrainerCallback):
        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            if state.global_step == step:
                control.should_training_stop = True

    return Stop()


def main(arguments: Sequence[str]) -> None:
    setup, folder = find(arguments[0]), Path(arguments[1])
    faults = {fault.name: fault for fault in FAULTS}
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    for cell in arguments[2:]:
        fault, _, how = cell.partition(":")
        play(setup, faults[fault], how, folder)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)  # gloo's threads may wait for each other for ever when ranks end at different moments


if __name__ == "__main__":
    main(sys.argv[1:])
