"""Tells a file's format by its name and its first bytes, and has it read."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any, Final

from trainwatch.importing import tensorboard, trainer, wandb
from trainwatch.importing.entries import Entries, is_entry, plain_keys
from trainwatch.importing.run import ImportedRun, OtherFileError, UnreadableError, name_of
from trainwatch.importing.table import read_table

_LARGEST: Final = 2 * 2**30
KNOWN: Final = (
    "trainer_state.json, any JSON with a log_history, LLaMA-Factory's trainer_log.jsonl, W&B's wandb-history.jsonl, "
    "wandb-events.jsonl and .wandb, TensorBoard's events.out.tfevents…, CSV, nvidia-smi CSV"
)


def read(path: Path) -> ImportedRun:
    """Reads a file that another tool wrote.

    Args:
        path: The file.

    Raises:
        UnreadableError: It cannot be read; :class:`OtherFileError` when it is no log of a training.
    """
    try:
        if path.is_dir():
            raise UnreadableError(f"{path} is a folder: name a file in it.")
        if path.stat().st_size > _LARGEST:
            raise UnreadableError(f"{path} is larger than 2 GiB: too much to be read at once.")
        data = path.read_bytes()
    except OSError as error:
        raise UnreadableError(f"{path}: {error.strerror or error}.") from None
    if not data.strip():
        raise UnreadableError(f"{path} is empty.")
    if data.startswith(wandb.MAGIC):
        return wandb.read_records(path, data)
    if "tfevents" in path.name or tensorboard.looks_like(data):
        return tensorboard.read_events(path, data)
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError:
        if b"\0" in data[:4096]:
            raise OtherFileError(f"{path}: this is none of the formats known here: {KNOWN}.") from None
        text = data.decode("utf-8-sig", "replace")  # cut off within a letter
    if not text.strip():
        raise UnreadableError(f"{path} is empty.")
    if text.lstrip()[0] in "{[":
        return _json(path, text)
    if path.suffix.lower() in (".json", ".jsonl"):
        raise UnreadableError(f"{path}: this is no JSON, although it is called so; it begins with {text[:20]!r}.")
    return read_table(path, text)


def _json(path: Path, text: str) -> ImportedRun:
    """Reads JSON (also with bare NaN and Infinity), or one JSON a line."""
    first = text.lstrip().partition("\n")[0]
    whole = path.suffix.lower() != ".jsonl"
    try:
        content = json.loads(text if whole else first)
    except RecursionError:
        raise UnreadableError(f"{path}: its JSON is nested too deeply.") from None
    except ValueError as error:  # JSONDecodeError, or what Python says to a number of thousands of digits
        if whole and _is_json(first):
            return _lines(path, text)
        state = trainer.salvaged(text)
        if state:
            return trainer.read_state(path, state, Counter({"end of the file cut off": 1}))
        raise UnreadableError(
            f"{path}: this is no whole JSON ({_reason(error)}). Was it cut off while it was written? Take an older "
            "checkpoint's, or ask for it again."
        ) from None
    return trainer.read_state(path, content) if whole else _lines(path, text)


def _is_json(line: str) -> bool:
    try:
        json.loads(line)
    except (ValueError, RecursionError):
        return False
    return True


def _reason(error: ValueError) -> str:
    if isinstance(error, json.JSONDecodeError):
        return f"{error.msg} in line {error.lineno}"
    return str(error).partition(";")[0]


def _lines(path: Path, text: str) -> ImportedRun:
    skipped: Counter[str] = Counter()
    entries: list[Any] = []
    lines = [line for line in text.splitlines() if line.strip()]
    for index, line in enumerate(lines):
        try:
            entries.append(json.loads(line))
        except (ValueError, RecursionError):
            skipped["last line cut off" if index == len(lines) - 1 else "lines that are no JSON"] += 1
    if not entries:
        raise UnreadableError(f"{path}: not one of its lines is JSON.")
    if len(entries) == 1 and isinstance(entries[0], dict) and "log_history" in entries[0]:
        return trainer.read_state(path, entries[0])
    if any(trainer.is_llamafactory(entry) for entry in entries):
        return trainer.read_llamafactory(path, entries, skipped)
    if any(wandb.is_system(entry) for entry in entries):
        return wandb.read_system_lines(path, entries, skipped)
    if any(wandb.is_history(entry) for entry in entries):
        return wandb.read_history_lines(path, entries, skipped)
    plain = [plain_keys(entry) if isinstance(entry, dict) else entry for entry in entries]
    if any(is_entry(entry) for entry in plain):
        return Entries(path, "JSON lines", plain, name=name_of(path), skipped=skipped).run()
    raise OtherFileError(f"{path}: its lines hold no loss and no step. Known are: {KNOWN}.")
