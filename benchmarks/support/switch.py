"""Switches TrainWatch on and off inside one running training, every few steps.

Two trainings one after the other differ by more than TrainWatch costs: whatever else the machine does slows down one of
them. Neighbouring steps of one training meet the same weather.
"""

from __future__ import annotations

import statistics
from pathlib import Path
from typing import Any, Final

from benchmarks.support.training import Clock, make_trainer
from trainwatch import TrainWatchCallback
from trainwatch.training.hooks import ModelHook

BLOCK: Final = 5
"""Steps between two looks at the switch. The last of them, which holds the switching itself, is not counted."""
_ORDER: Final = (True, False, False, True)
_WARM_UP: Final = 2  # rounds


class Round:
    """Neighbouring steps: with, without, without, with. Times are microseconds.

    Attributes:
        added: Median step with TrainWatch less the median step without.
        added_cpu: The same of the training thread's CPU time.
        plain: Median step without TrainWatch.
    """

    def __init__(self, wall: list[float], cpu: list[float]) -> None:
        ours, self.plain = _medians(wall)
        self.added = ours - self.plain
        ours_cpu, plain_cpu = _medians(cpu)
        self.added_cpu = ours_cpu - plain_cpu

    @property
    def ratio(self) -> float:
        """A step's time with TrainWatch to its time without."""
        return 1 + self.added / self.plain


def alternate(folder: Path, rounds: int) -> list[Round]:
    """Trains once, with TrainWatch in every other block of steps.

    Args:
        folder: The Trainer's output folder.
        rounds: How many comparisons.
    """
    watch = TrainWatchCallback()
    step = 0

    def turn() -> None:
        nonlocal step
        wanted = _ORDER[step // BLOCK % len(_ORDER)]
        step += 1
        callbacks = trainer.callback_handler.callbacks
        # While it is off the model has no hook and the Trainer no callback, as in a training that never had them.
        # The watcher's hook is private: nobody but a benchmark has a reason to take it off and put it on again.
        watcher: Any = watch._watcher
        if wanted and watch not in callbacks:
            watcher._hook = ModelHook(trainer.model, watcher._observer)
            callbacks.append(watch)
        elif not wanted and watch in callbacks:
            watcher._hook.remove()
            callbacks.remove(watch)

    clock = Clock(turn)
    steps = (rounds + _WARM_UP) * BLOCK * len(_ORDER) + 1
    trainer = make_trainer(folder, steps, [clock, watch])
    trainer.train()
    size = BLOCK * len(_ORDER)
    wall, cpu = clock.periods, clock.cpu_periods
    begins = range(_WARM_UP * size, len(wall) - size + 1, size)
    return [Round(wall[at : at + size], cpu[at : at + size]) for at in begins]


def _medians(periods: list[float]) -> tuple[float, float]:
    sides: dict[bool, list[float]] = {True: [], False: []}
    for index, wanted in enumerate(_ORDER):
        sides[wanted] += periods[index * BLOCK : (index + 1) * BLOCK - 1]
    return statistics.median(sides[True]), statistics.median(sides[False])
