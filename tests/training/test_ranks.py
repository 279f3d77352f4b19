"""Several ranks, over gloo: started with torchrun as people start them, or as forks, which is quicker."""

from __future__ import annotations

import math
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tests.training.forked import forked
from tests.training.tiny import of, read_events
from trainwatch.events import NonFiniteSeen, RunEnded, RunStarted, StepEnded
from trainwatch.training.agreement import Agreement, Flags
from trainwatch.training.signals.gradients import GradientSignal

SCRIPT = """
import math, os, sys
from pathlib import Path
from tests.training.tiny import *
rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
fault = sys.argv[2]

class Faulty(InOrder):
    def training_step(self, model, inputs, *rest):
        if rank == world - 1 and self.state.global_step + 1 in (5, 6, 7):
            if fault == "loss":
                inputs["scale"][:] = math.nan
            elif fault == "gradient":
                inputs["kink"][:] = True
            elif fault == "finite":  # a loss that is NaN although its gradient is finite
                self.model.offset = math.nan
        return super().training_step(model, inputs, *rest)

trainer = make_trainer(Path(sys.argv[1]), steps=12, data=TinyData(400), kind=Faulty)
trainer.train()
Path(f"{sys.argv[1]}.stopped{rank}").write_text(str(trainer.state.global_step))
os._exit(0)  # see tests.e2e.trainings.leave
"""


def torchrun(script: Path, *arguments: str, ranks: int, home: Path) -> subprocess.CompletedProcess[str]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "torch.distributed.run", f"--nproc_per_node={ranks}", f"--master_port={port}"]
    environment = {**os.environ, "TRAINWATCH_HOME": str(home), "TRAINWATCH_AGENT": "0", "OMP_NUM_THREADS": "1"}
    environment["PYTHONPATH"] = os.pathsep.join(sys.path)
    return subprocess.run(
        [*command, str(script), *arguments], capture_output=True, text=True, timeout=200, check=False, env=environment
    )


def stopped(folder: Path) -> list[int]:
    """The step at which each rank stopped, as it noted itself."""
    return [int((folder / f"out.stopped{rank}").read_text()) for rank in range(2)]


@pytest.mark.slow
@pytest.mark.parametrize("fault", ["loss", "gradient", "finite"])
def test_ranks_stop_together_and_name_the_culprit(home: Path, tmp_path: Path, fault: str) -> None:
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    start = torchrun if fault == "loss" else forked
    result = start(script, str(tmp_path / "out"), fault, ranks=2, home=home)
    assert result.returncode == 0, result.stderr
    assert stopped(tmp_path) == [7, 7]
    ranks = [read_events(home, rank) for rank in range(2)]
    assert len(list((home / "journal").iterdir())) == 1, "both ranks are one run"
    for found in ranks:
        assert [event.step for event in of(StepEnded, found)] == [1, 2, 3, 4, 5, 6, 7]
        (end,) = of(RunEnded, found)
        assert (end.outcome, end.step) == ("halted", 7)
        assert end.parameters["culprit"] == 1
        assert of(RunStarted, found)[0].world_size == 2
    seen = [of(NonFiniteSeen, found) for found in ranks]
    assert [event.local for event in seen[0]] == [False] * 3
    assert [event.local for event in seen[1]] == [True] * 3
    assert "on rank 1" in result.stderr
    local = [event.values["train/grad_norm_local"] for event in of(StepEnded, ranks[0])]
    assert all(math.isfinite(norm) for norm in local), "rank 0's own gradients were fine"
    assert (tmp_path / "out" / "checkpoint-7" / "model.safetensors").is_file()


def test_reduced_norms_agree_between_ranks_and_local_ones_differ(home: Path, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    result = forked(script, str(tmp_path / "out"), "none", ranks=2, home=home)
    assert result.returncode == 0, result.stderr
    first, second = (of(StepEnded, read_events(home, rank)) for rank in range(2))
    for a, b in zip(first, second, strict=True):
        assert a.values["train/grad_norm"] == pytest.approx(b.values["train/grad_norm"], rel=1e-6)
        assert a.values["train/grad_norm_local"] != b.values["train/grad_norm_local"]


def test_shards_are_recognised() -> None:
    class Shard(torch.nn.Parameter):
        def to_local(self) -> torch.Tensor:
            return self

    assert not GradientSignal([("a", torch.nn.Parameter(torch.ones(1)))]).sharded
    assert GradientSignal([("a", Shard(torch.ones(1)))]).sharded


UNEVEN = """
import os, sys
from pathlib import Path
rank = int(os.environ["RANK"])
if rank == 1 and sys.argv[2] == "disabled":
    os.environ["TRAINWATCH_DISABLED"] = "1"
from tests.training.tiny import *
from trainwatch.training import recorder
if rank == 1 and sys.argv[2] == "broken":
    def broken(self, *args): raise OSError("no disk here")
    recorder.Recorder.__init__ = broken
alone = rank == 1 and sys.argv[2] == "absent"
if sys.argv[2] == "absent":
    import datetime
    from trainwatch.training import identity
    identity._FOR_OTHERS = datetime.timedelta(seconds=2)
trainer = make_trainer(
    Path(sys.argv[1]), steps=6, data=TinyData(200, scales={2: math.nan}), policy=None if alone else "protect"
)
trainer.train()
Path(f"{sys.argv[1]}.stopped{rank}").write_text(str(trainer.state.global_step))
os._exit(0)
"""


@pytest.mark.slow
@pytest.mark.parametrize("how", ["disabled", "broken", "absent"])
def test_a_rank_without_trainwatch_is_not_waited_for(home: Path, tmp_path: Path, how: str) -> None:
    script = tmp_path / "train.py"
    script.write_text(UNEVEN)
    result = forked(script, str(tmp_path / "out"), how, ranks=2, home=home)
    assert result.returncode == 0, result.stderr
    assert stopped(tmp_path) == [6, 6]
    assert "does not interfere" in result.stderr
    found = read_events(home)
    assert len(of(StepEnded, found)) == 6
    # Alone on its rank the guard must not skip what the other rank does not skip.
    assert {event.action for event in of(NonFiniteSeen, found)} <= {"recorded"}


def test_a_rank_that_left_the_others_hears_no_command() -> None:
    agreement = Agreement(torch.nn.Linear(1, 1))
    assert agreement.agree(Flags(commands=(3,))).commands == (3,)
    agreement.alone = False  # as with other ranks
    agreement.leave()
    assert agreement.agree(Flags(gradient_bad=True, commands=(3,))) == Flags(gradient_bad=True)
