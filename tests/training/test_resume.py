"""A training that begins with a checkpoint goes on with the run that wrote it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest
from transformers import TrainerCallback

from tests.training.tiny import make_trainer
from trainwatch import events, journal
from trainwatch.settings import Settings
from trainwatch.training.resume import FILE, Origin, remember, run_to_continue


class Wired(TrainerCallback):
    """Calls the functions where the real callback does."""

    def __init__(self, settings: Settings, run: str = "new") -> None:
        self.settings, self.run = settings, run
        self.origin: Origin | None = None

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.origin = run_to_continue(self.settings, state.global_step, args.output_dir, args.resume_from_checkpoint)
        if self.origin is not None and self.origin.continued:
            self.run = self.origin.run

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        folder = os.path.join(args.output_dir, f"checkpoint-{state.global_step}")
        remember(folder, self.run, self.settings.project, state.global_step)


@pytest.fixture
def settings(home: Path) -> Settings:
    return Settings(home=home, node="here", project="mine")


def train(output: Path, settings: Settings, steps: int, resume: Any = None, run: str = "new", **more: Any) -> Wired:
    wired = Wired(settings, run)
    trainer = make_trainer(
        output, steps=steps, policy=None, callbacks=[wired], save_strategy="steps", save_steps=2, **more
    )
    trainer.train(resume_from_checkpoint=resume)
    return wired


def test_a_resumed_training_finds_its_run(settings: Settings, tmp_path: Path) -> None:
    out = tmp_path / "out"
    first = train(out, settings, steps=4, run="first")
    assert first.origin is None
    assert json.loads((out / "checkpoint-4" / FILE).read_text()) == {
        "run": "first",
        "project": "mine",
        "step": 4,
        "schema": 1,
    }
    again = train(out, settings, steps=6, resume=True)
    assert again.origin == Origin(run="first", step=4, checkpoint=str(out / "checkpoint-4"), continued=True)
    older = train(out, settings, steps=6, resume=str(out / "checkpoint-2"))
    assert older.origin is not None
    assert (older.origin.run, older.origin.step) == ("first", 2)
    assert train(out, settings, steps=2).origin is None, "a fresh one"
    moved = train(tmp_path / "other", settings, steps=6, resume=str(out / "checkpoint-4"))
    assert moved.origin is None, "callbacks are not told the folder, and the output has no such checkpoint"
    told = train(
        tmp_path / "other",
        settings,
        steps=6,
        resume=str(out / "checkpoint-4"),
        resume_from_checkpoint=str(out / "checkpoint-4"),
    )
    assert told.origin is not None
    assert told.origin.checkpoint == str(out / "checkpoint-4")


def test_a_checkpoint_that_says_nothing_or_nonsense_starts_a_new_run(settings: Settings, tmp_path: Path) -> None:
    folder = tmp_path / "out" / "checkpoint-4"

    def found(step: int = 4) -> Origin | None:
        return run_to_continue(settings, step, str(tmp_path / "out"))

    remember(str(folder), "first", "mine", 4)
    assert not folder.exists(), "no checkpoint, no note"
    assert found() is None
    folder.mkdir(parents=True)
    assert found() is None
    for run, project, step in (("first", "mine", 5), ("first", "other", 4), ("../up", "mine", 4), ("", "mine", 4)):
        remember(str(folder), run, project, step)
        assert found() is None
    for content in (b"", b"{", b"[]", b'{"run": 5}', b"\xff"):
        (folder / FILE).write_bytes(content)
        assert found() is None
    remember(str(folder), "first", "mine", 4)
    assert found() is not None
    assert found(0) is None
    assert found(2) is None


def begin(
    settings: Settings, run: str, pid: int, *, started: float | None = None, node: str = "here"
) -> journal.Writer:
    """A journal as a rank's process leaves it."""
    writer = journal.Writer(journal.create_source(settings.journals / run / node, "rank0"))
    created = psutil.Process(pid).create_time() if started is None else started
    writer.append(events.encode(events.RunStarted(time=1.0, name=run, pid=pid, process_started=created)))
    writer.append(events.encode(events.StepEnded(time=2.0, step=4, values={"train/loss": 1.0})))
    return writer


def test_a_run_that_is_still_at_work_is_branched_off(settings: Settings, tmp_path: Path) -> None:
    folder = tmp_path / "out" / "checkpoint-4"
    folder.mkdir(parents=True)
    remember(str(folder), "first", "mine", 4)

    def continued() -> bool:
        origin = run_to_continue(settings, 4, str(tmp_path / "out"))
        assert origin is not None
        return origin.continued

    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as other:
        try:
            assert continued(), "nobody is at work on it"
            begin(settings, "first", other.pid, started=5.0)
            assert continued(), "another process with the number of one long gone"
            begin(settings, "first", os.getpid())
            assert continued(), "this process, which trains this now"
            begin(settings, "first", other.pid, node="elsewhere")
            assert continued(), "another machine's process may have any number"
            begin(settings, "second", other.pid)
            assert continued(), "another run"
            writer = begin(settings, "first", other.pid)
            assert not continued()
            writer.append(events.encode(events.RunEnded(time=3.0, step=4, outcome="finished", traceback="x" * 20_000)))
            assert continued(), "it has ended, and its process does something else now"
            begin(settings, "first", other.pid)
            assert not continued()
        finally:
            other.kill()
    assert continued(), "it died"
