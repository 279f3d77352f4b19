"""What a probe is."""

from __future__ import annotations

from typing import Protocol

from trainwatch.events import DeviceValues


class Probe(Protocol):
    """Reads one part of the machine.

    A reading that cannot be had is left out; a probe raises nothing for hardware or a kernel that does not tell.
    """

    def read(self) -> DeviceValues:
        """Reads once.

        Returns:
            Device name to metric name (see :mod:`trainwatch.metrics`) to value, in base units.
        """
        ...
