"""Disk: whether the checkpoints that are still to come will fit."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from trainwatch.events import CheckpointSaved, FindingRaised, RunStarted, Sampled, Severity
from trainwatch.rules.base import Options, Positive, Rule

DISK: Final = "disk"
"""The device that readings of the output folder's file system carry."""

_MOST: Final = 1e18


class DiskOptions(Options, frozen=True, kw_only=True):
    """Options of :class:`DiskSpace`.

    Attributes:
        margin: How much larger than the last one a checkpoint is taken to be.
    """

    margin: Positive = 1.1


class DiskSpace(Rule[DiskOptions]):
    """The disk has no room for the next checkpoint, or for all that are to come."""

    id = "disk_space"
    listens = (Sampled, CheckpointSaved, RunStarted)
    options_type = DiskOptions

    def __init__(self, options: DiskOptions) -> None:
        super().__init__(options)
        self._size: float | None = None
        self._said: Severity | None = None
        self._begin(0, 0)

    def renewed(self) -> DiskSpace:
        """See :class:`~trainwatch.rules.base.Rule`."""
        new = DiskSpace(self.options)
        new._size = self._size  # the first checkpoint of the new processes must fit, too
        return new

    def _begin(self, first_step: int, max_steps: int, limit: Any = None, strategy: Any = None) -> None:
        self._max_steps = max_steps
        # The Trainer deletes the oldest, after it has saved the newest.
        self._rotates = isinstance(limit, int) and limit > 0
        self._saves = str(strategy).rpartition(".")[2].lower() != "no"
        self._saved_at = first_step
        self._interval = 0

    def observe(self, event: Any, rank: int | None) -> Iterable[FindingRaised]:
        """See :class:`~trainwatch.rules.base.Rule`."""
        kind = type(event)
        if kind is Sampled:
            values = event.devices.get(DISK)
            return () if values is None else self._read(event, values)
        if kind is RunStarted:
            arguments = event.arguments
            limit, strategy = arguments.get("save_total_limit"), arguments.get("save_strategy")
            self._begin(event.first_step, event.max_steps, limit, strategy)
            return ()
        if event.step > self._saved_at:
            if event.reason == "schedule":
                self._interval = event.step - self._saved_at
            self._saved_at = event.step
        return ()

    def _read(self, event: Sampled, values: dict[str, float]) -> Iterable[FindingRaised]:
        size, free = values.get("checkpoint/size"), values.get("disk/free")
        if size is not None and 1.0 <= size < _MOST:
            self._size = size
        if free is None or self._size is None or not 0.0 <= free < _MOST:
            return ()
        need = max(self.options.margin * self._size, 1.0)
        left = self._left()
        severity: Severity | None = None
        if left and free < need:
            severity = "critical"
        elif left > 1 and not self._rotates and free < need * left:
            severity = "warning"
        if severity is None:
            # Somebody who frees a little should not be told again and again.
            if self._said is not None and (not left or free >= 1.05 * need * (1 if self._rotates else left)):
                self._said = None
                return (self.cleared(event),)
            return ()
        if self._said == severity:
            return ()
        self._said = severity
        evidence = {"free": free, "size": self._size, "left": left, "fit": int(free // need), "step": self._saved_at}
        return (self.finding(event, severity, evidence=evidence),)

    def _left(self) -> int:
        """Returns how many checkpoints are still to come; 1 when nobody knows."""
        if not self._saves:
            return 0
        if not self._max_steps:
            return 1
        if not self._interval:
            return int(self._saved_at < self._max_steps)
        # The Trainer saves at the end too where the last interval is not whole.
        return max(-(-(self._max_steps - self._saved_at) // self._interval), 0)
