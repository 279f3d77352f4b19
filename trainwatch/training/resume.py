"""A training that begins with a checkpoint goes on with the run that wrote it, so that its curves go on, too.

A small file in each checkpoint tells whose it is. A run that is still at work is not continued but branched off: two
processes must not write one run's curves.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Final

import msgspec
import psutil

from trainwatch import events, journal
from trainwatch.settings import Settings, is_name

FILE: Final = "trainwatch.json"
_SCHEMA: Final = 1
_TAIL: Final = 64 * 1024  # an end's record, with its traceback, is shorter
_ENDED: Final = b"run_ended"
_SECOND: Final = 1.0


class Mark(msgspec.Struct, frozen=True, kw_only=True):
    """What a checkpoint says of its run.

    Attributes:
        run: The run's id.
        project: Its project.
        step: The optimizer updates that the checkpoint holds.
        schema: Version of this.
    """

    run: str
    project: str
    step: int
    schema: int = _SCHEMA


class Origin(msgspec.Struct, frozen=True, kw_only=True):
    """Where a training comes from.

    Attributes:
        run: The run that wrote the checkpoint.
        step: Its step.
        checkpoint: The checkpoint's folder.
        continued: This training goes on with that run; False: it is a new one that begins where that one was.
    """

    run: str
    step: int
    checkpoint: str
    continued: bool


def remember(folder: str, run: str, project: str, step: int) -> None:
    """Notes in a checkpoint which run wrote it; for rank 0 alone.

    Args:
        folder: The checkpoint; when it is not there, nothing is written.
        run: The run's id.
        project: The run's project.
        step: Optimizer updates so far.

    Raises:
        OSError: The folder takes no file.
    """
    if os.path.isdir(folder):
        mark = Mark(run=run, project=project, step=step)
        journal.write_atomically(Path(folder) / FILE, msgspec.json.encode(mark) + b"\n")


def run_to_continue(settings: Settings, step: int, output_dir: str, resume_from: Any = None) -> Origin | None:
    """Finds the run whose checkpoint a training begins with.

    Args:
        settings: The settings of this process.
        step: Optimizer updates that the training begins with; 0 for a fresh one.
        output_dir: Where it keeps its checkpoints.
        resume_from: The checkpoint to begin with, where the framework tells it (``args.resume_from_checkpoint``).

    Returns:
        Where it comes from, or None: it is fresh, or nothing says whose checkpoint it is, or the run belongs to
        another project.
    """
    if step <= 0:
        return None
    # What Trainer.train was given is not told to callbacks. A folder counts only if its step is the training's.
    folders = [Path(output_dir) / f"checkpoint-{step}"]
    if isinstance(resume_from, str | os.PathLike) and os.path.isdir(resume_from):
        folders.insert(0, Path(resume_from))
    for folder in folders:
        mark = _read(folder / FILE)
        if mark is not None and mark.step == step and mark.project == settings.project and is_name(mark.run):
            alive = _is_at_work(settings.journals, mark.run, settings.node)
            return Origin(run=mark.run, step=step, checkpoint=str(folder.absolute()), continued=not alive)
    return None


def _read(path: Path) -> Mark | None:
    try:
        return msgspec.json.decode(path.read_bytes(), type=Mark)
    except (OSError, msgspec.MsgspecError):
        return None


def _is_at_work(journals: Path, run: str, node: str) -> bool:
    """Tells whether another process on this node is in the middle of the run's training."""
    return any(
        source.rank is not None and _is_alive(source.directory) and not _has_ended(source.directory)
        for source in journal.sources(journals, run, node)
    )


def _is_alive(directory: Path) -> bool:
    records = journal.Reader(directory).read(1)
    try:
        first = events.decode(records[0].payload) if records else None
    except msgspec.MsgspecError:
        return False
    # This very process is training this, so whatever it did before is over.
    if not isinstance(first, events.RunStarted) or first.pid == os.getpid():
        return False
    try:
        process = psutil.Process(first.pid)
        return abs(process.create_time() - first.process_started) < _SECOND and (
            process.status() != psutil.STATUS_ZOMBIE
        )
    except psutil.Error:
        return False


def _has_ended(directory: Path) -> bool:
    last = journal.segments(directory)[-1]
    with open(directory / f"{last:020d}.twj", "rb") as file:
        file.seek(max(0, os.fstat(file.fileno()).st_size - _TAIL))
        return _ENDED in file.read()
