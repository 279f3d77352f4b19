"""Who a process is, however it was started."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.training.tiny import make_trainer, of, read_events
from trainwatch.diagnosis.differences import differences
from trainwatch.events import RunStarted, StepEnded
from trainwatch.settings import Settings
from trainwatch.training.identity import identify, meet, proposal

RANKS = """
import json, os, sys, time
import torch
from trainwatch import settings
from trainwatch.training.identity import identify, meet, proposal

def child(way, number, folder):
    for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE"):
        os.environ.pop(name, None)
    node, local = divmod(number, 2)
    os.environ["TRAINWATCH_NODE"] = f"node{node}"
    if way == "slurm":
        os.environ.update(SLURM_PROCID=str(number), SLURM_LOCALID=str(local), SLURM_NTASKS="4")
    elif way == "mpi":
        os.environ.update(OMPI_COMM_WORLD_RANK=str(number), OMPI_COMM_WORLD_LOCAL_RANK=str(local))
    elif way == "deepspeed":
        os.environ.update(RANK=str(number), LOCAL_RANK=str(local), WORLD_SIZE="4", CROSS_RANK="0")
    elif way == "torchrun in srun":  # Slurm started one task on each node, which torchrun made two ranks of
        os.environ.update(RANK=str(number), LOCAL_RANK=str(local), WORLD_SIZE="4")
        os.environ.update(SLURM_PROCID=str(node), SLURM_LOCALID="0", SLURM_NTASKS="2")
    elif way == "interleaved":  # ranks dealt out to the nodes in turn, and nobody says so
        os.environ["TRAINWATCH_NODE"] = f"node{number % 2}"
    torch.distributed.init_process_group("gloo", init_method=f"file://{folder}/{way}", rank=number, world_size=4)
    configuration = settings.load()
    found = []
    for training in range(2):
        if way == "late" and training == 0 and number == 1:
            time.sleep(3)  # this rank's callback was missing in the first training
            continue
        met = meet(proposal(configuration))
        run = next((proposed for proposed in met if proposed), "")
        identity = identify(configuration, run)
        found.append([run, identity.node, identity.rank, identity.local_rank, identity.world_size])
    with open(f"{folder}/{way}-{number}.json", "w") as file:
        json.dump(found, file)
    torch.distributed.barrier()

from trainwatch.training import identity
import datetime
identity._FOR_OTHERS = datetime.timedelta(seconds=1)
identity._FOR_RANK_0 = datetime.timedelta(seconds=8)
for way in sys.argv[2:]:
    children = []
    for number in range(4):
        pid = os.fork()
        if pid == 0:
            try:
                child(way, number, sys.argv[1])
            finally:
                os._exit(0)
        children.append(pid)
    for pid in children:
        os.waitpid(pid, 0)
"""


@pytest.fixture(scope="module")
def started(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four ranks, started in several ways without any launcher of torch's."""
    folder = tmp_path_factory.mktemp("ranks")
    ways = ["slurm", "mpi", "deepspeed", "torchrun in srun", "spawn", "interleaved", "late"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(sys.path)}
    for name in ("TRAINWATCH_RUN_ID", "TRAINWATCH_NODE"):
        environment.pop(name, None)
    done = subprocess.run(
        [sys.executable, "-c", RANKS, str(folder), *ways],
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return folder


def told(folder: Path, way: str) -> list[list[Any]]:
    return [json.loads((folder / f"{way}-{number}.json").read_text()) for number in range(4)]


@pytest.mark.parametrize("way", ["slurm", "mpi", "deepspeed", "torchrun in srun", "spawn"])
def test_every_launcher_leads_to_the_same_places(started: Path, way: str) -> None:
    found = told(started, way)
    for training in range(2):
        assert [each[training][1:] for each in found] == [
            ["node0", 0, 0, 4],
            ["node0", 1, 1, 4],
            ["node1", 2, 0, 4],
            ["node1", 3, 1, 4],
        ]
        assert len({each[training][0] for each in found}) == 1, "one run"
    assert found[0][0][0] != found[0][1][0], "each training is another one"


def test_ranks_dealt_out_in_turn_are_counted_by_node(started: Path) -> None:
    assert [each[0][1:4] for each in told(started, "interleaved")] == [
        ["node0", 0, 0],
        ["node1", 1, 0],
        ["node0", 2, 1],
        ["node1", 3, 1],
    ]


def test_a_rank_that_missed_a_meeting_does_not_take_an_old_answer(started: Path) -> None:
    found = told(started, "late")
    first, second = found[0][0][0], found[0][1][0]
    assert [each[0][0] for each in (found[2], found[3])] == [first, first]
    assert [each[1][0] for each in (found[2], found[3])] == [second, second]
    assert [each[0] for each in found[1]] == [""], "it does not join the run of the training before"


def settings(tmp_path: Path, run_id: str = "") -> Settings:
    return Settings(home=tmp_path, run_id=run_id, node="here")


@pytest.mark.parametrize(
    "variables",
    [
        {},
        {"RANK": "", "LOCAL_RANK": "", "WORLD_SIZE": ""},
        {"RANK": "none", "LOCAL_RANK": "-1"},
        {"RANK": "3", "LOCAL_RANK": "3", "WORLD_SIZE": "8"},  # left over in a notebook
        {"SLURM_PROCID": "2", "SLURM_LOCALID": "2", "SLURM_NTASKS": "4"},  # an allocation, and nobody joined a group
    ],
)
def test_a_process_that_trains_alone_is_rank_0_of_1(tmp_path: Path, variables: dict[str, str]) -> None:
    assert meet("own") == ["own"]
    found = identify(settings(tmp_path), "run", variables)
    assert (found.run, found.node, found.rank, found.local_rank, found.world_size) == ("run", "here", 0, 0, 1)


def test_processes_that_cannot_talk_are_ranks_of_the_run_they_were_given(tmp_path: Path) -> None:
    for variables in (
        {"RANK": "3", "LOCAL_RANK": "1", "WORLD_SIZE": "8"},
        {"SLURM_PROCID": "3", "SLURM_LOCALID": "1", "SLURM_NTASKS": "8"},
    ):
        found = identify(settings(tmp_path, "given"), "given", variables)
        assert (found.rank, found.local_rank, found.world_size) == (3, 1, 8)


def test_an_id_that_is_set_names_the_first_training_of_a_process(tmp_path: Path) -> None:
    configured = settings(tmp_path, "mine")
    assert proposal(configured) == "mine"
    assert proposal(configured) == "mine-2"
    assert proposal(configured, "mine-2") == "mine-2", "its checkpoint"
    assert proposal(configured, "mine") == "mine"
    assert proposal(configured, "other") == "mine-3"
    assert proposal(settings(tmp_path), "other") == "other"
    assert len(proposal(settings(tmp_path))) == 16


def test_several_trainings_in_one_process_are_several_runs(home: Path, tmp_path: Path) -> None:
    first = make_trainer(tmp_path / "a", steps=2)
    second = make_trainer(tmp_path / "b", steps=3)
    first.train()
    second.train()
    first.train()
    found = read_events(home)
    assert len(of(RunStarted, found)) == 3
    assert len(list((home / "journal").iterdir())) == 3
    assert len(of(StepEnded, found)) == 2 + 3 + 2


LAUNCHED = """
import os, sys
from pathlib import Path
from tests.training.tiny import *
if int(os.environ["RANK"]) == 1:
    os.environ["NCCL_ALGO"] = "Ring"
make_trainer(Path(sys.argv[1]), steps=2, data=TinyData(40)).train()
os._exit(0)
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("launcher", "module"),
    [
        ("accelerate launch", ["accelerate.commands.launch", "--multi_gpu", "--num_processes=2", "--num_machines=1"]),
        ("torchrun", ["torch.distributed.run", "--nproc_per_node=2"]),
    ],
)
def test_ranks_of_a_launcher_and_what_differs_between_them(
    home: Path, tmp_path: Path, launcher: str, module: list[str]
) -> None:
    script = tmp_path / "train.py"
    script.write_text(LAUNCHED)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    rendezvous = ["--main_process_port", port] if launcher.startswith("acc") else [f"--master_port={port}"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        [sys.executable, "-m", *module, *rendezvous, str(script), str(tmp_path / "out")],
        env=environment,
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert len(list((home / "journal").iterdir())) == 1, "one run"
    starts = [of(RunStarted, read_events(home, rank))[0] for rank in range(2)]
    assert [(start.local_rank, start.world_size) for start in starts] == [(0, 2), (1, 2)]
    assert {start.environment["launcher"] for start in starts} == {launcher}
    assert {start.environment["parallel"]["backend"] for start in starts} == {"gloo"}
    found = differences(
        {
            rank: {"environment": start.environment, "model": start.model, "arguments": start.arguments}
            for rank, start in enumerate(starts)
        }
    )
    assert [difference.key for difference in found] == ["environment.variables.NCCL_ALGO"], found
    assert [(holder.value, holder.span) for holder in found[0].holders] == [(None, "0"), ("Ring", "1")]
