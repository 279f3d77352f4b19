"""From files to journals and back: ids, times, folders."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from trainwatch import events, journal, settings
from trainwatch.events import Logged, RunStarted, StepEnded
from trainwatch.importing import UnreadableError, find, read, read_recorded
from trainwatch.importing.write import id_of, write


@pytest.fixture
def home(tmp_path: Path) -> settings.Settings:
    return settings.load({"TRAINWATCH_HOME": str(tmp_path / "home"), "TRAINWATCH_NODE": "here"})


def state(path: Path, *losses: float) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    history = [{"loss": loss, "step": 10 * number} for number, loss in enumerate(losses, 1)]
    path.write_text(json.dumps({"log_history": history}), "utf-8")
    return path


def test_a_run_without_dates_ends_when_its_file_was_written(tmp_path: Path, home: settings.Settings) -> None:
    path = state(tmp_path / "a.json", 3.0, 2.0, 1.0)
    os.utime(path, (5000, 5000))
    run_id, is_new = write(read(path), home, project="p", name="chosen")
    assert is_new
    back = read_recorded(home.journals, run_id)
    assert (back.name, back.points) == ("chosen", 3)
    found = [(point, rank, event) for point, rank, event in back.events()]
    assert [event.time for _, _, event in found] == [4998.0, 4998.0, 4999.0, 5000.0]
    assert [(point, rank) for point, rank, _ in found] == [(0, 0), (0, 0), (1, 0), (2, 0)]
    assert isinstance(found[0][2], RunStarted)
    assert (home.journals / run_id / journal.IMPORTED_NODE / "project").read_text("utf-8") == "p"
    assert list((home.home / "importing").iterdir()) == []


def test_the_same_content_is_one_run(tmp_path: Path, home: settings.Settings) -> None:
    first, second = state(tmp_path / "a.json", 1.0), state(tmp_path / "b" / "c.json", 1.0)
    assert id_of(first) == id_of(second) != id_of(state(tmp_path / "d.json", 2.0))
    assert write(read(first), home, project="p")[1]
    assert not write(read(second), home, project="q")[1]
    assert len(list(home.journals.iterdir())) == 1


def test_an_import_that_is_interrupted_leaves_no_run(tmp_path: Path, home: settings.Settings) -> None:
    def stop(point: int) -> None:
        if point == 1:
            raise KeyboardInterrupt

    path = state(tmp_path / "a.json", 3.0, 2.0, 1.0)
    with pytest.raises(KeyboardInterrupt):
        write(read(path), home, project="p", progress=stop)
    assert not home.journals.exists()
    assert write(read(path), home, project="p")[1]


def test_points_of_a_recorded_run_are_the_first_ranks_steps(home: settings.Settings) -> None:
    for rank in (0, 1):
        writer = journal.Writer(journal.create_source(home.journals / "r" / "here", f"rank{rank}"))
        writer.append(events.encode(RunStarted(time=100.0, name="live")))
        for step in range(1, 4):
            writer.append(events.encode(StepEnded(time=100.0 + step + rank / 2, step=step)))
            writer.append(events.encode(Logged(time=100.1 + step + rank / 2, step=step, values={})))
        writer.close()
    run = read_recorded(home.journals, "r")
    assert (run.name, run.points, run.started) == ("live", 3, 100.0)
    found = [(point, rank, event.step) for point, rank, event in run.events() if isinstance(event, StepEnded)]
    assert found == [(0, 0, 1), (0, 1, 1), (1, 0, 2), (1, 1, 2), (2, 0, 3), (2, 1, 3)]


def test_there_is_no_such_recorded_run(home: settings.Settings) -> None:
    with pytest.raises(UnreadableError, match="no event"):
        read_recorded(home.journals, "nothing")


def test_a_folder_is_walked_and_of_checkpoints_only_the_newest_counts(tmp_path: Path) -> None:
    a = state(tmp_path / "a" / "checkpoint-90" / "trainer_state.json", 1.0)
    b = state(tmp_path / "a" / "checkpoint-100" / "trainer_state.json", 1.0)
    state(tmp_path / "b" / "checkpoint-5" / "trainer_state.json", 1.0)
    whole = state(tmp_path / "b" / "trainer_state.json", 1.0)
    other = tmp_path / "b" / "model.safetensors"
    other.write_bytes(b"x")
    state(tmp_path / ".cache" / "x.json", 1.0)
    events_file = tmp_path / "runs" / "events.out.tfevents.1.h.2"
    events_file.parent.mkdir()
    events_file.write_bytes(b"")
    assert list(find([tmp_path])) == [(b, False), (whole, False), (events_file, False)]
    assert list(find([a, other])) == [(a, True), (other, True)], "what is named itself is taken as it is"
