"""The disk is read beside the agent's loop, also where it does not answer."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest

from tests.agent.scripted import wait_for
from tests.patience import PATIENCE, timing
from trainwatch.agent.disk import DiskWatch
from trainwatch.events import Values
from trainwatch.probes import disk


def read(watch: DiskWatch, folder: str, checkpoint: str, now: float) -> Values:
    found: list[Values] = []

    def has_come() -> bool:
        found.append(watch.read(folder, checkpoint, now))
        return bool(found[-1])

    wait_for(has_come)
    return found[-1]


def test_the_disk_is_read_now_and_then_and_a_checkpoint_once(tmp_path: Path) -> None:
    watch = DiskWatch(every=10)
    first = read(watch, str(tmp_path), "", 100.0)
    assert set(first) == {"disk/free", "disk/capacity"}
    assert 0 < first["disk/free"] <= first["disk/capacity"]
    checkpoint = tmp_path / "checkpoint-10"
    checkpoint.mkdir()
    (checkpoint / "model").write_bytes(b"x" * 4321)
    assert read(watch, str(tmp_path), str(checkpoint), 101.0)["checkpoint/size"] == 4321
    for _ in range(3):
        assert watch.read(str(tmp_path), str(checkpoint), 102.0) == {}
        time.sleep(0.02)
    assert set(read(watch, str(tmp_path), str(checkpoint), 112.0)) == {"disk/free", "disk/capacity"}


def test_a_checkpoint_that_is_gone_has_no_size(tmp_path: Path) -> None:
    assert "checkpoint/size" not in read(DiskWatch(), str(tmp_path), str(tmp_path / "gone"), 5.0)


def test_a_run_without_an_output_folder_has_no_disk() -> None:
    watch = DiskWatch()
    assert [watch.read("", "", float(now)) for now in range(0, 40, 10)] == [{}] * 4


def test_a_file_system_that_hangs_holds_up_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    answer = threading.Event()
    asked: list[str] = []

    def hanging(folder: str) -> None:
        asked.append(folder)
        answer.wait(PATIENCE)

    monkeypatch.setattr(disk, "room", hanging)
    watch = DiskWatch()
    with timing() as timed:
        for now in range(10, 1000, 10):
            assert watch.read(str(tmp_path), "", float(now)) == {}
    assert timed.took < 1
    assert len(asked) == 1
    answer.set()
