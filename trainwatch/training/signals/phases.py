"""Phases: what the rank is doing, so that memory and hangs can be blamed on it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import msgspec

from trainwatch.events import DeviceValues, Phase
from trainwatch.training.signals.memory import Memory, peaks


class Left(msgspec.Struct, frozen=True):
    """A phase that is over.

    Attributes:
        phase: Which.
        peak: Its peak of memory on each device, under the catalogue's names.
        seconds: How long it took.
    """

    phase: Phase
    peak: DeviceValues
    seconds: float


class PhaseSignal:
    """Knows the present phase, says when it changes, and how much memory each one took.

    Args:
        entered: Called with the new phase and the one that was left.
        memory: The rank's memory; all its readings are taken here, since each begins a new peak.
        clock: Monotonic seconds.
    """

    def __init__(
        self, entered: Callable[[Phase, Left], None], memory: Memory, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.current: Phase = "load"
        self._entered = entered
        self._memory = memory
        self._clock = clock
        self._since = clock()
        self._peak: DeviceValues = {}
        self._kept: DeviceValues = {}

    def enter(self, phase: Phase) -> None:
        """Enters a phase; nothing happens when it is the present one."""
        if phase != self.current:
            self._change(phase)

    def step(self) -> DeviceValues:
        """A step is over: reads the memory of the step alone, for its event."""
        readings = self._memory.step(self._clock())
        if self._kept:
            for device, values in readings.items():
                for metric, value in self._kept.get(device, {}).items():
                    values[metric] = max(values.get(metric, value), value)
            self._kept = {}
        self._fold(readings)
        return readings

    @contextmanager
    def aside(self) -> Iterator[None]:
        """Keeps what is done inside, within a step, out of the step's peak: it is ours and not the training's."""
        self._kept = self._memory.phase()
        try:
            yield
        finally:
            self._memory.phase()

    def close(self) -> None:
        """The training failed in the present phase: tells what it took, and leaves it as the present one."""
        self._change(self.current)

    def _change(self, phase: Phase) -> None:
        self._fold(self._memory.phase())
        now = self._clock()
        left = Left(self.current, self._peak, now - self._since)
        self.current, self._since, self._peak = phase, now, {}
        self._entered(phase, left)

    def _fold(self, readings: DeviceValues) -> None:
        """The peak of a phase is the highest of its pieces."""
        for device, values in peaks(readings).items():
            highest = self._peak.setdefault(device, values)
            if highest is not values:
                highest.update({metric: max(highest.get(metric, value), value) for metric, value in values.items()})
