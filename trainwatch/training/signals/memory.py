"""Memory of this rank: what is held, and the highest point since it was last read.

Reading is also resetting, so the readings cut time into pieces without gaps: one at the end of each step, one at each
change of phase. The peak of a step therefore covers what happened since the step before it ended, loading and moving
its batch included (that is where it may run out, too), but no evaluation and no save: those are phases with peaks of
their own. It is the same on every kind of device.

On Linux the kernel keeps a high-water mark of the resident memory. Writing 5 to ``/proc/self/clear_refs`` resets it to
what is resident at that moment and ``getrusage`` reads it: exact, no sampling, 1 µs each. On an accelerator the
framework's allocator keeps the same mark (:mod:`trainwatch.training.signals.allocators`).
"""

from __future__ import annotations

import math
import os
import resource
import sys
import time
from contextlib import suppress
from typing import Any, Final, Protocol

from trainwatch.events import DeviceValues, Values
from trainwatch.probes import host
from trainwatch.training.safety import Safety, harmless
from trainwatch.training.signals import allocators, exhaustion

REPEAT_SECONDS: Final = 30.0
"""What hardly ever changes is recorded when it changed, and now and then for whoever joins late."""

_RARE: Final = ("memory/capacity", "memory/alloc_retries", "memory/ooms")
_PEAKS: Final[tuple[str, ...]] = ("memory/peak", "memory/peak_reserved")
_KIB: Final = 1024
_PAGE: Final = os.sysconf("SC_PAGE_SIZE") if hasattr(os, "sysconf") else 4096
_AGREES_WITHIN: Final = 4 * 1024 * 1024


class MemorySignal(Protocol):
    """Memory of one kind of device.

    Attributes:
        source: Where it is read, for people.
        missing: Why there is no peak; empty when there is one.
    """

    source: str
    missing: str

    def begin(self) -> None:
        """Forgets the peak so far."""

    def read(self) -> DeviceValues:
        """Reads what is held now and the peak since the last reading, and begins a new peak."""
        ...

    def close(self) -> None:
        """Lets go of what is open."""


class ProcessMemory:
    """Resident memory of this process: the memory of a training on a CPU."""

    def __init__(self) -> None:
        self.source = "resident memory of the process"
        self.missing = ""
        self._capacity = float(host.capacity() or 0)
        self._mark = _usage_mark
        self._clear_refs = -1
        self._statm = -1
        if sys.platform == "linux":
            with suppress(OSError):
                self._statm = os.open("/proc/self/statm", os.O_RDONLY | os.O_CLOEXEC)
            try:
                self._clear_refs = os.open("/proc/self/clear_refs", os.O_WRONLY | os.O_CLOEXEC)
                os.write(self._clear_refs, b"5")
            except OSError:  # some containers forbid it: then there is no peak, rather than a wrong one
                self._close(self._clear_refs)
                self._clear_refs = -1
            else:
                # getrusage never falls below the peak of the process that started this one, if that was larger.
                if abs(_usage_mark() - _status_mark()) > _AGREES_WITHIN:
                    self._mark = _status_mark
        if self._clear_refs < 0:
            self.missing = "not available here: the kernel does not let its high-water mark be reset"

    def begin(self) -> None:
        """See :class:`MemorySignal`."""
        if self._clear_refs >= 0:
            os.write(self._clear_refs, b"5")

    def read(self) -> DeviceValues:
        """See :class:`MemorySignal`."""
        values: Values = {}
        if self._clear_refs >= 0:
            values["memory/peak"] = self._mark()
            os.write(self._clear_refs, b"5")
        if self._statm >= 0:
            pages = os.pread(self._statm, 128, 0).split()
            values["memory/resident"] = float(int(pages[1]) * _PAGE)
            values["memory/mapped"] = float(int(pages[2]) * _PAGE)
        else:
            values["memory/resident"] = float(host.resident() or 0)
        if self._clear_refs >= 0:
            # The kernel counts resident pages lazily per thread, so that the mark can lag a few pages behind.
            values["memory/peak"] = max(values["memory/peak"], values["memory/resident"])
        if self._capacity:
            values["memory/capacity"] = self._capacity
        return {"cpu": values}

    def close(self) -> None:
        """See :class:`MemorySignal`."""
        self._close(self._clear_refs)
        self._close(self._statm)
        self._clear_refs = self._statm = -1

    @staticmethod
    def _close(descriptor: int) -> None:
        if descriptor >= 0:
            os.close(descriptor)


class Memory:
    """All memory that a rank uses.

    Args:
        model: A ``torch.nn.Module``; the devices of its parameters are read.
        safety: Where failures are counted. A device that can't be read is left out; the others are read.

    Attributes:
        sources: Where memory is read, for people.
        missing: What cannot be read, and why.
        uuids: Device name to the driver's identifier, for whoever looks at the devices from outside.
    """

    def __init__(self, model: Any, safety: Safety) -> None:
        self.missing: list[str] = []
        self.uuids: dict[str, str] = {}
        self.safety = safety
        self._told: dict[str, tuple[Values, float]] = {}
        self._kinds: list[str] = []
        self._listener: exhaustion.Listener | None = None
        self._of_steps: list[MemorySignal] = []
        parameters = list(model.parameters())
        with safety.guard("memory of accelerators"):
            self._find_accelerators(allocators.in_use(parameters))
        process = ProcessMemory()
        # Beside an accelerator the process's own memory matters in phases: a save gathers the weights in it.
        self._of_phases: list[MemorySignal] = [*self._of_steps, process]
        if not self._of_steps or any(parameter.device.type == "cpu" for parameter in parameters):
            self._of_steps.append(process)
        self.sources = [signal.source for signal in self._of_steps]
        self.missing += [f"peak {signal.missing}" for signal in self._of_steps if signal.missing]
        for signal in self._of_phases:
            with safety.guard("memory"):
                signal.begin()

    def step(self, now: float | None = None) -> DeviceValues:
        """Reads at the end of a step.

        Args:
            now: Monotonic seconds; None to look at the clock.

        Returns:
            What to record: peaks are of the time since the last reading of any kind; what hardly ever changes is left
            out when it was recorded a short while ago.
        """
        moment = time.monotonic() if now is None else now
        readings = self._read(self._of_steps)
        for device, values in readings.items():
            rare: Values = {metric: values.pop(metric) for metric in _RARE if metric in values}
            told, at = self._told.get(device, ({}, -math.inf))
            if moment - at >= REPEAT_SECONDS:
                self._told[device] = rare, moment
                values.update(rare)
            elif rare != told:
                self._told[device] = rare, at
                values.update({metric: value for metric, value in rare.items() if value != told.get(metric)})
        return readings

    def phase(self) -> DeviceValues:
        """Reads at a change of phase; returns the peaks only, since the last reading of any kind."""
        return peaks(self._read(self._of_phases))

    def on_exhaustion(self, listener: exhaustion.Listener) -> None:
        """Tells `listener` when an accelerator's memory runs out, see :func:`exhaustion.attach`."""
        with self.safety.guard("out-of-memory observer"):
            self._listener = listener
            self.missing += exhaustion.attach(self._kinds, listener, self.safety).values()

    def close(self) -> None:
        """Lets go of what is open."""
        if self._listener is not None:
            exhaustion.detach(self._listener)
        for signal in self._of_phases:
            signal.close()

    def _read(self, signals: list[MemorySignal]) -> DeviceValues:
        readings: DeviceValues = {}
        for signal in signals:
            readings.update(self._one(signal) or {})
        return readings

    @harmless
    def _one(self, signal: MemorySignal) -> DeviceValues:
        return signal.read()

    def _find_accelerators(self, devices: dict[str, list[int]]) -> None:
        for kind, indices in devices.items():
            try:
                if kind == "mps":
                    self._of_steps.append(allocators.MpsMemory())
                else:
                    self._of_steps.append(allocators.CachingAllocator(kind, indices))
                    self._kinds.append(kind)
                    self.uuids.update(allocators.uuids(kind, indices))
            except (AttributeError, NotImplementedError, RuntimeError) as error:
                self.missing.append(f"not available on {kind}: {error}"[:200])


def peaks(readings: DeviceValues) -> DeviceValues:
    """Returns the peaks among readings, without the devices that have none."""
    found: DeviceValues = {}
    for device, values in readings.items():
        for metric in _PEAKS:
            if metric in values:
                found.setdefault(device, {})[metric] = values[metric]
    return found


def _usage_mark() -> float:
    """Returns the highest resident memory since the last reset, in bytes, by a system call."""
    return float(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * _KIB)


def _status_mark() -> float:
    """Returns the same of this process alone, by reading a file, which takes ten times as long."""
    with open("/proc/self/status", "rb") as file:
        return float(next(int(line.split()[1]) for line in file if line.startswith(b"VmHWM:")) * _KIB)
