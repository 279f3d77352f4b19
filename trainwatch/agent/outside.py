"""Device memory of a process that its allocator does not hold: CUDA context, NCCL, libraries.

It is the difference of two numbers read by two processes: what NVML says of the process now, and what the process's
allocator said it held at the end of its last step. In between the allocator may have grown by gigabytes. So a sample is
kept until the step in which it was taken is over, and counts only if the allocator held the same at both ends of it and
never more within.
"""

from __future__ import annotations

from collections import deque
from typing import Final

from trainwatch.events import AnyEvent, DeviceValues, PhaseEntered, RunStarted, StepEnded

_REMEMBERED: Final = 256


class Outside:
    """Follows one rank."""

    def __init__(self) -> None:
        self._steps: deque[StepEnded] = deque(maxlen=_REMEMBERED)
        self._samples: dict[str, tuple[float, float]] = {}

    def observe(self, event: AnyEvent) -> None:
        """Takes the next event of the rank."""
        if isinstance(event, StepEnded):
            self._steps.append(event)
        elif isinstance(event, PhaseEntered | RunStarted):
            self._steps.clear()  # the next step's peak says nothing of the time before it

    def sampled(self, time: float, devices: DeviceValues) -> dict[str, float]:
        """Takes a sample of the rank's devices, and settles an earlier one.

        Args:
            time: When it was taken, in Unix seconds.
            devices: The readings.

        Returns:
            Device to bytes outside the allocator, for those that could be settled now.
        """
        found: dict[str, float] = {}
        for device, (taken, used) in list(self._samples.items()):
            settled = self._settle(device, taken, used)
            if settled is not None:
                found[device] = settled
            if settled is not None or not self._steps or self._steps[-1].time >= taken:
                del self._samples[device]
        for device, values in devices.items():
            used_now = values.get("memory/process_used")
            if used_now is not None and device not in self._samples:
                self._samples[device] = (time, used_now)
        return found

    def _settle(self, device: str, taken: float, used: float) -> float | None:
        before = after = None
        for step in self._steps:
            if step.time < taken:
                before = step
            else:
                after = step
                break
        if before is None or after is None:
            return None
        held = before.devices.get(device, {}).get("memory/reserved")
        later = after.devices.get(device, {})
        constant = held is not None and later.get("memory/reserved") == held == later.get("memory/peak_reserved")
        # Less than the allocator holds can't be: one of the two counts otherwise, and their difference says nothing.
        return used - held if constant and held is not None and used >= held else None
