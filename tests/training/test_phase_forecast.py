"""What phases take, foreseen for a real Trainer: the first update from sizes, evaluations and saves from those seen."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.training.tiny import TinyData, TinyModel, make_trainer, of, read_events
from trainwatch.events import PhaseEntered, RunStarted, StepEnded
from trainwatch.forecast.phases import PhaseMemory, next_at, sizes_of

MIB = 2**20


class Wide(TinyModel):
    """The tiny model, with 64 MiB of weights that are trained like all others."""

    def __init__(self) -> None:
        super().__init__()
        self.ballast = torch.nn.Parameter(torch.zeros(16 * MIB))

    def hidden(self, embedded: torch.Tensor) -> torch.Tensor:
        return super().hidden(embedded) + 0 * self.ballast.sum()


def test_the_first_update_takes_what_its_states_and_gradients_take(home: Path, tmp_path: Path) -> None:
    make_trainer(
        tmp_path / "out",
        steps=6,
        model=Wide(),
        optim="adamw_torch",
        evaluation=TinyData(4),
        eval_strategy="steps",
        eval_steps=3,
        save_strategy="steps",
        save_steps=5,
    ).train()
    found = read_events(home)
    (started,) = of(RunStarted, found)
    sizes = sizes_of(started)
    assert sizes.weights == pytest.approx(64 * MIB, rel=0.01)
    assert (sizes.gradients, sizes.state) == (sizes.weights, 2 * sizes.weights)
    assert [next_at(started, phase, 3) for phase in ("eval", "save")] == [6, 5]

    loaded = of(PhaseEntered, found)[0]
    assert loaded.left == "load"
    steps = of(StepEnded, found)
    least = loaded.peak["cpu"]["memory/peak"] + sizes.gradients + sizes.state
    # Libraries load within the first step; what was said is a floor, and not far below.
    highest = max(event.devices["cpu"]["memory/peak"] for event in steps)
    assert least - 8 * MIB <= highest <= least + 3 * sizes.weights

    memory = PhaseMemory()
    for event in found:
        if isinstance(event, StepEnded):
            memory.rests(event.devices["cpu"]["memory/resident"])
        elif isinstance(event, PhaseEntered) and event.left in ("eval", "save"):
            need = memory.need(event.left)
            if need is not None and need.seen:
                assert event.peak["cpu"]["memory/peak"] == pytest.approx(need.peak, rel=0.1)
            memory.left(event.left, event.peak["cpu"]["memory/peak"])
    for phase in ("eval", "save"):
        known = memory.need(phase)
        assert known is not None
        assert known.low <= known.peak <= known.high
