"""Finds the logs in folders."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

_SUFFIXES: Final = frozenset({".json", ".jsonl", ".wandb", ".csv", ".tsv"})
_PASSED_OVER: Final = frozenset({"__pycache__", "node_modules", "site-packages"})
_CHECKPOINT: Final = re.compile(r"checkpoint-(\d+)")


def find(paths: Iterable[Path]) -> Iterator[tuple[Path, bool]]:
    """Yields the files to read.

    A folder is walked in the order of its names. Of a training's checkpoints only the newest state is taken: it holds
    the whole history. A link is followed once only when it is named itself.

    Args:
        paths: Files and folders.

    Yields:
        A file, and whether it was named itself: one that was found in a folder may be no log at all.
    """
    for path in paths:
        if not path.is_dir():
            yield path, True
            continue
        for folder, folders, names in os.walk(path):
            folders[:] = sorted(name for name in _newest(folders, folder) if _is_wanted(name))
            for name in sorted(names):
                if Path(name).suffix.lower() in _SUFFIXES or "tfevents" in name:
                    yield Path(folder, name), False


def _is_wanted(name: str) -> bool:
    return not name.startswith(".") and name not in _PASSED_OVER


def _newest(folders: list[str], parent: str) -> list[str]:
    """Leaves of the checkpoints only the last, and none where the folder itself has the state at the end."""
    numbers = {name: int(found[1]) for name in folders if (found := _CHECKPOINT.fullmatch(name))}
    if not numbers:
        return folders
    last = max(numbers, key=lambda name: numbers[name])
    whole = os.path.exists(os.path.join(parent, "trainer_state.json"))
    return [name for name in folders if name not in numbers or (name == last and not whole)]
