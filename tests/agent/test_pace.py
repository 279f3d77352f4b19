"""A run that stands still, and a disk that fills: seen by a real agent, on its own readings."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from tests.agent.scripted import Rank, ending, node_folder, start_agent, wait_for
from trainwatch import events, journal
from trainwatch.events import CheckpointSaved, FindingRaised, PhaseEntered, Sampled

NOWHERE = "http://127.0.0.1:9"
HANG: dict[str, Any] = {"least": 2.0, "factor": 3.0, "unknown": 60.0, "critical": 2.0, "critical_seconds": 4.0}


def recorded(folder: Path) -> list[events.AnyEvent]:
    found: list[events.AnyEvent] = []
    for source in folder.glob("agent@*"):
        reader = journal.Reader(source)
        while records := reader.read():
            found += [events.decode(record.payload) for record in records]
    return found


def findings(folder: Path, rule: str) -> list[tuple[str, str, int | None]]:
    return [
        (one.severity, one.state, one.step)
        for one in recorded(folder)
        if isinstance(one, FindingRaised) and one.rule == rule
    ]


def test_a_process_that_lives_and_does_not_go_on_hangs_until_it_does(tmp_path: Path) -> None:
    folder = node_folder(tmp_path)
    rank = Rank(folder)
    rank.start(rules={"hang": HANG})
    rank.write(PhaseEntered(time=time.time(), phase="train", step=0, left="load"))
    with ending(start_agent(folder, NOWHERE, "--sample-seconds", "0.05")):
        for number in range(1, 21):
            rank.steps(number, number)
            time.sleep(0.05)
        assert findings(folder, "hang") == []
        wait_for(lambda: len(findings(folder, "hang")) == 2)
        assert findings(folder, "hang") == [("warning", "firing", 20), ("critical", "firing", 20)]
        rank.steps(21, 21)
        wait_for(lambda: len(findings(folder, "hang")) == 3)
        assert findings(folder, "hang")[-1] == ("critical", "resolved", 21)


def test_a_checkpoint_is_measured_and_the_next_one_does_not_fit(tmp_path: Path) -> None:
    folder = node_folder(tmp_path)
    output = tmp_path / "output"
    checkpoint = output / "checkpoint-5"
    rank = Rank(folder)
    # No disk is filled for it: the next checkpoint is taken to be very much larger than this one.
    rank.start(output_dir=str(output), max_steps=20, rules={"disk_space": {"margin": 1e15}})
    with ending(start_agent(folder, NOWHERE, "--sample-seconds", "0.05")):
        rank.steps(1, 5)
        checkpoint.mkdir(parents=True)
        (checkpoint / "model.safetensors").write_bytes(b"x" * 4321)
        rank.write(CheckpointSaved(time=time.time(), step=5, path=str(checkpoint)))
        wait_for(lambda: findings(folder, "disk_space"))
    assert findings(folder, "disk_space") == [("critical", "firing", None)]
    disks = [one.devices["disk"] for one in recorded(folder) if isinstance(one, Sampled) and "disk" in one.devices]
    assert {"disk/free", "disk/capacity", "checkpoint/size"} == set(disks[-1])
    assert disks[-1]["checkpoint/size"] == 4321
