"""``trainer_state.json`` and everything else with a ``log_history``; LLaMA-Factory's ``trainer_log.jsonl``."""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from pathlib import Path
from typing import Any, Final

from trainwatch.importing.entries import Entries, number
from trainwatch.importing.run import ImportedRun, OtherFileError, name_of

_ARGUMENTS: Final = ("num_train_epochs", "logging_steps", "eval_steps", "save_steps", "train_batch_size")
_NOT_LOGGED: Final = frozenset({"total_steps", "percentage", "elapsed_time", "remaining_time"})
_HISTORY: Final = re.compile(r'"log_history"\s*:\s*\[\s*')
_BETWEEN: Final = re.compile(r"\s*,\s*")
_ELAPSED: Final = re.compile(r"(?:(\d+) days?, )?(\d+):(\d\d):(\d\d)(?:\.\d+)?")


def salvaged(text: str) -> dict[str, Any] | None:
    """Returns what can be had of a state that was cut off while it was written: the whole entries of its history.

    Args:
        text: JSON that does not end.

    Returns:
        A state with that history; None when there is not one whole entry.
    """
    begin = _HISTORY.search(text)
    if not begin:
        return None
    decoder = json.JSONDecoder()
    history: list[Any] = []
    at = begin.end()
    try:
        while True:
            entry, at = decoder.raw_decode(text, at)
            history.append(entry)
            gap = _BETWEEN.match(text, at)
            if not gap:
                break
            at = gap.end()
    except (ValueError, RecursionError):  # also a number of thousands of digits is a ValueError
        pass
    return {"log_history": history} if history else None


def read_state(path: Path, content: Any, skipped: Counter[str] | None = None) -> ImportedRun:
    """Reads a Trainer's state.

    Args:
        path: The file.
        content: What its JSON says; a list is taken for the history alone.
        skipped: Reason to how many entries were left out already.

    Raises:
        OtherFileError: There is no history in it.
    """
    state = content if isinstance(content, dict) else {"log_history": content}
    history = state.get("log_history")
    if not isinstance(history, list):
        raise OtherFileError(f'{path}: there is no list "log_history" in it, as a Trainer\'s state has it.')
    if not history:
        raise OtherFileError(f"{path}: its log_history is empty: nothing was logged before this state was saved.")
    steps, last = number(state.get("max_steps")), number(state.get("global_step"))
    max_steps = int(steps) if steps is not None and 0 < steps < 2**53 else 0
    return Entries(
        path,
        "trainer_state.json" if "global_step" in state else "log_history",
        history,
        name=name_of(path),
        skipped=skipped,
        max_steps=max_steps,
        finished=bool(max_steps) and last is not None and last >= max_steps,
        arguments={
            key: state[key]
            for key in _ARGUMENTS
            if (found := number(state.get(key))) is not None and abs(found) < 2**53
        },
    ).run()


def is_llamafactory(entry: Any) -> bool:
    """Tells whether an entry is one of LLaMA-Factory's log."""
    return isinstance(entry, dict) and "current_steps" in entry


def read_llamafactory(path: Path, lines: list[Any], skipped: Counter[str]) -> ImportedRun:
    """Reads LLaMA-Factory's log: keys of its own, and the time since the begin as text."""
    entries: list[Any] = []
    total = 0.0
    finished = False
    for line in lines:
        if not isinstance(line, dict):
            entries.append(line)
            continue
        total = max(total, number(line.get("total_steps")) or 0.0)
        done = number(line.get("current_steps"))
        finished = bool(total) and done is not None and done >= total
        entry = {key: value for key, value in line.items() if key not in _NOT_LOGGED}
        if "lr" in entry:
            entry["learning_rate"] = entry.pop("lr")
        entries.append(entry)
    return Entries(
        path,
        "LLaMA-Factory trainer_log.jsonl",
        entries,
        name=name_of(path),
        seconds=_elapsed(lines),
        skipped=skipped,
        max_steps=int(total) if math.isfinite(total) else 0,
        finished=finished,
    ).run()


def _elapsed(lines: list[Any]) -> list[float] | None:
    """Returns the seconds since the first begin; a resumed run's watch begins anew, and goes on here."""
    seconds: list[float] = []
    offset, before, known = 0.0, 0.0, False
    for line in lines:
        found = _ELAPSED.fullmatch(str(line.get("elapsed_time"))) if isinstance(line, dict) else None
        if found:
            known = True
            days, hours, minutes, rest = (int(part or 0) for part in found.groups())
            now = days * 86400.0 + hours * 3600 + minutes * 60 + rest
            if now + offset < before:
                offset = before
            before = now + offset
        seconds.append(before)
    return seconds if known else None
