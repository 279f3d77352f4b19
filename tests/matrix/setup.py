"""What a setup of the matrix is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from transformers import Trainer

from tests.matrix import data
from tests.matrix.faults import Fault

STEPS = 6
PLANTED_STEP = 4
BATCH = 2
EVAL_EVERY = 3
EVAL_SAMPLES = 4
"""For each rank."""

How = Literal["callback", "watch"]
"""The ways of attaching TrainWatch."""
HOWS: tuple[How, ...] = ("callback", "watch")


@dataclass(frozen=True)
class Setup:
    """One setup.

    Attributes:
        name: Short name, part of test ids.
        title: Row of the table.
        build: Makes the trainer, without TrainWatch.
        ranks: Started by torchrun with as many; 0 trains in the test's own process.
        alone: Trains in a process of its own although it is of one rank.
        accumulation: Micro-batches a step.
        resume: Trained in two pieces, the second from the first one's checkpoint.
        ordered: The samples come in the order of the data set, so that the planted step is known beforehand.
        rows: Rows of a batch that are made of one sample.
        skip: Faults that make no sense here, and why.
        missing: What is not available, and why, as ``"signal"``, ``"signal/how"`` or
            ``"signal/how/fault"``.
        needs: A package without which it can't be run.
    """

    name: str
    title: str
    build: Callable[[Path, Fault, Setup], Trainer]
    ranks: int = 0
    alone: bool = False
    accumulation: int = 1
    resume: bool = False
    ordered: bool = True
    rows: int = 1
    skip: dict[str, str] = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)
    needs: str = ""

    @property
    def world(self) -> int:
        """Number of ranks."""
        return max(1, self.ranks)

    @property
    def planted_rank(self) -> int:
        """The rank that gets the poisoned sample."""
        return self.world - 1

    @property
    def planted_micro_batch(self) -> int:
        """Which of the step's micro-batches has it."""
        return min(2, self.accumulation - 1)

    def why_missing(self, signal: str, how: How, fault: str = "") -> str:
        """Returns why a signal is not available, empty when it is."""
        keys = (signal, f"{signal}/{how}", f"{signal}/{how}/{fault}")
        return next((self.missing[key] for key in keys if key in self.missing), "")

    @property
    def planted_sample(self) -> int:
        """The place of the poisoned sample in the data set."""
        micro = (PLANTED_STEP - 1) * self.accumulation + self.planted_micro_batch
        return ((micro * self.world + self.planted_rank) * BATCH + 1) // self.rows

    def training_samples(self, fault: Fault) -> list[data.Sample]:
        """Returns as many samples as the training needs, one of them poisoned when the fault says so."""
        size = STEPS * self.accumulation * self.world * BATCH
        return data.samples(size, 1, self.planted_sample if fault.how and not fault.evaluation else None)

    def evaluation_samples(self, fault: Fault) -> list[data.Sample]:
        """Returns the samples of an evaluation; the rank's second batch of one is the poisoned."""
        place = self.world + self.planted_rank
        return data.samples(EVAL_SAMPLES * self.world, 2, place if fault.evaluation else None)
