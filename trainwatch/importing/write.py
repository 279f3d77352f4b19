"""Writes an imported run as a journal, as if it had been recorded: from there it goes the way of every run."""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Final

from msgspec.structs import replace

from trainwatch import events, journal
from trainwatch.events import RunStarted
from trainwatch.importing.run import ImportedRun
from trainwatch.settings import Settings

_ID_LENGTH: Final = 16


def id_of(path: Path) -> str:
    """Returns the id of the run that a file becomes: made from its content, so that a file is one run, ever.

    Raises:
        OSError: The file cannot be read.
    """
    with path.open("rb") as file:
        digest = hashlib.sha256()
        while block := file.read(1 << 20):
            digest.update(block)
    return f"imported-{digest.hexdigest()[:_ID_LENGTH]}"


def write(
    run: ImportedRun,
    settings: Settings,
    *,
    project: str,
    name: str = "",
    progress: Callable[[int], None] = lambda point: None,
) -> tuple[str, bool]:
    """Writes a run to the journals, unless it is there.

    It is written beside them and then moved, so that no agent and no ``sync`` meets a part of it.

    Args:
        run: The run.
        settings: Where the journals are.
        project: The run's project.
        name: The run's name; empty: as the file tells.
        progress: Told the index of each point that is written.

    Returns:
        The run's id, and whether it was written.

    Raises:
        OSError: It cannot be written.
    """
    run_id = id_of(run.path)
    target = settings.journals / run_id
    if target.exists():
        return run_id, False
    shift = _shift(run)
    scratch = settings.home / "importing" / f"{run_id}.{os.getpid()}"
    node = scratch / journal.IMPORTED_NODE
    try:
        writer = journal.Writer(journal.create_source(node, "rank0"))
        try:
            for point, _, event in run.events():
                if shift:
                    event = replace(event, time=event.time + shift)
                if name and isinstance(event, RunStarted):
                    event = replace(event, name=name)
                writer.append(events.encode(event))
                progress(point)
        finally:
            writer.close()
        (node / "project").write_text(project, "utf-8")
        settings.journals.mkdir(parents=True, exist_ok=True)
        try:
            scratch.rename(target)
        except OSError:
            if target.exists():  # somebody else imported the same file meanwhile
                return run_id, False
            raise
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    return run_id, True


def _shift(run: ImportedRun) -> float:
    """Returns what to add to the times of a run without dates, so that it ends when its file was last written."""
    if run.clock == "file":
        return 0.0
    last = max(event.time for _, _, event in run.events())
    return run.path.stat().st_mtime - last
