"""From logged entries, as Trainers write them, to events: one entry is one point."""

from __future__ import annotations

import heapq
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from trainwatch.events import Evaluated, Logged, RunEnded, RunStarted, Sampled, Values
from trainwatch.importing.run import Clock, ImportedRun, OtherFileError, Point
from trainwatch.importing.system import Samples
from trainwatch.metrics import logged_values

_STEP_KEYS: Final = ("step", "global_step", "current_steps", "_step")
_TIME_KEY: Final = "_timestamp"
_SUMMARY: Final = ("train_runtime", "train_loss")
_NO_METRICS: Final = frozenset(_STEP_KEYS) | {_TIME_KEY, "_runtime", "_wandb"}
_PLACES: Final = (("train/global_step", "step"), ("train/", ""), ("eval/", "eval_"))
_ALIASES: Final = {
    "Loss": "loss",
    "lr": "learning_rate",
    "grad-norm": "grad_norm",
    **dict.fromkeys(("val_loss", "valid_loss", "validation_loss", "test_loss", "val/loss", "test/loss"), "eval_loss"),
}
"""What scripts without a Trainer call the same things."""
_LARGE: Final = 2**53


def number(value: Any) -> float | None:
    """Returns a value as a number; None for what is none. Texts count that say one (``"NaN"``, ``"0.5"``)."""
    if isinstance(value, bool):
        return None
    if isinstance(value, int | float):
        try:
            return float(value)
        except OverflowError:
            return math.inf if value > 0 else -math.inf
    if isinstance(value, str):
        try:
            return float(value)
        except ValueError:
            return None
    return None


def plain_keys(entry: Mapping[str, Any]) -> dict[str, Any]:
    """Takes away the prefixes that a Trainer puts before its keys for TensorBoard and W&B, and other scripts' names."""
    plain: dict[str, Any] = {}
    for key, value in entry.items():
        for prefix, instead in _PLACES:
            if key.startswith(prefix):
                # The Trainer's own step counts updates; W&B's "_step" counts calls.
                key = instead + key.removeprefix(prefix)
                break
        key = _ALIASES.get(key, key)
        if key not in plain or key == "step":
            plain[key] = value
    return plain


def is_entry(entry: Any) -> bool:
    """Tells whether something looks like a logged entry."""
    return isinstance(entry, dict) and any("loss" in key or key in _STEP_KEYS for key in entry)


class Entries:
    """Turns a file's entries into a run.

    Args:
        path: The file.
        format: Its format, for people.
        entries: The entries in order, with the Trainer's own keys (``loss``, ``eval_loss``, ``learning_rate`` …).
        seconds: Seconds since the begin of each entry, where the file has them.
        skipped: Reason to how many entries were left out already.
        max_steps: The step at which the training was to end; 0 when unknown.
        finished: Whether the file says that the training came to its end.
        arguments: Settings of the training that the file tells.
        name: The run's name.
        project: Its project.
        notes: Sentences on what had to be assumed.
        samples: System readings on the same clock.
    """

    def __init__(
        self,
        path: Path,
        format: str,
        entries: Sequence[Any],
        *,
        name: str,
        seconds: Sequence[float] | None = None,
        skipped: Counter[str] | None = None,
        max_steps: int = 0,
        finished: bool = False,
        arguments: dict[str, Any] | None = None,
        project: str = "",
        notes: Sequence[str] = (),
        samples: Samples | None = None,
    ) -> None:
        self._path, self._format, self._name, self._project = path, format, name, project
        self._entries = entries
        self._skipped: Counter[str] = skipped if skipped is not None else Counter()
        self._max_steps, self._arguments = max_steps, arguments or {}
        self._samples = samples
        self._notes = [*notes, *(samples.notes if samples else ())]
        self.clock: Clock
        self.times: list[float]
        self.clock, self.times = _times(entries, seconds)
        self._finished = finished or any(_is_summary(entry) for entry in entries[-3:])

    def run(self) -> ImportedRun:
        """Returns the run.

        Raises:
            OtherFileError: No entry holds a number.
        """
        if not any(isinstance(entry, dict) and _split(entry) != ({}, {}) for entry in self._entries):
            raise OtherFileError(
                f"{self._path}: no entry in it holds a loss or another number. Is it the log of a training?"
            )
        if self.clock == "made up":
            self._notes.append("The file tells no times: one second a logged entry is assumed.")
        run = ImportedRun(
            self._path,
            format=self._format,
            name=self._name,
            project=self._project,
            clock=self.clock,
            started=self.times[0],
            points=len(self._entries),
            skipped=self._skipped,
            notes=self._notes,
            make=lambda: self._events(run),
        )
        return run

    def _events(self, run: ImportedRun) -> Iterator[Point]:
        step = 0
        yield (
            0,
            0,
            RunStarted(
                time=run.started,
                name=self._name,
                max_steps=self._max_steps,
                arguments=self._arguments,
                environment={"imported": run.origin()},
            ),
        )
        last = 0
        for index, rank, event in self._with_samples(self._logged()):
            # A sample is said to be of the entry before it.
            last = last if isinstance(event, Sampled) else index
            step = event.step if isinstance(event, Logged | Evaluated) else step
            yield last, rank, event
        if self._finished:
            yield len(self._entries) - 1, 0, RunEnded(time=self.times[-1], step=step, outcome="finished")

    def _with_samples(self, logged: Iterator[Point]) -> Iterator[Point]:
        if self._samples is None:
            return logged
        return heapq.merge(logged, self._samples.events(), key=lambda point: point[2].time)

    def _logged(self) -> Iterator[Point]:
        step = 0
        reasons: Counter[str] = Counter()
        for index, (entry, time) in enumerate(zip(self._entries, self.times, strict=True)):
            if not isinstance(entry, dict):
                reasons["entries that are no table of values"] += 1
                continue
            step = _step_of(entry, step)
            logged, evaluated = _split(entry)
            if logged:
                yield index, 0, Logged(time=time, step=step, values=logged)
            if evaluated:
                yield index, 0, Evaluated(time=time, step=step, values=evaluated)
            if not logged and not evaluated:
                reasons["entries without a number"] += 1
        for reason, count in reasons.items():
            self._skipped[reason] = count  # set, not added: the events may be read again


def _is_summary(entry: Any) -> bool:
    return isinstance(entry, dict) and all(key in entry for key in _SUMMARY)


def _split(entry: Mapping[str, Any]) -> tuple[Values, Values]:
    """Returns what an entry says of the training and of an evaluation, under the catalogue's names."""
    train: dict[str, float] = {}
    evaluation: dict[str, float] = {}
    for key, value in entry.items():
        if key in _NO_METRICS:
            continue
        found = number(value)
        if found is not None:
            (evaluation if key.startswith("eval_") else train)[key] = found
    if evaluation and set(train) <= {"epoch"}:
        train = {}  # an evaluation carries the epoch along
    return logged_values(train, "train/"), logged_values(evaluation, "eval/")


def _step_of(entry: Mapping[str, Any], before: int) -> int:
    for key in _STEP_KEYS:
        found = number(entry.get(key))
        if found is not None and 0 <= found < _LARGE:
            return int(found)
    return before


def _times(entries: Sequence[Any], seconds: Sequence[float] | None) -> tuple[Clock, list[float]]:
    """Returns each entry's time; one without takes that of the entry before."""
    if seconds is not None:
        return "relative", list(seconds)
    stamps = [number(entry.get(_TIME_KEY)) if isinstance(entry, dict) else None for entry in entries]
    known = [stamp for stamp in stamps if stamp is not None and math.isfinite(stamp)]
    if not known:
        return "made up", [float(index) for index in range(max(len(entries), 1))]
    times, last = [], known[0]
    for stamp in stamps:
        last = stamp if stamp is not None and math.isfinite(stamp) else last
        times.append(last)
    return "file", times
