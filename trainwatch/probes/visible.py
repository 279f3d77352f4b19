"""Which of the driver's devices a process calls ``cuda:N``, whatever hides, reorders or slices them.

Best is what the process itself says: the device's UUID. Without it the variables that CUDA reads are read as CUDA reads
them. Where those leave it open which device it is, it is none: a number of another device is worse than no number.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

UUIDS = "device_uuids"
"""Key of ``RunStarted.environment``: device name to the UUID that the process reads, without a prefix."""


class Wanted(msgspec.Struct, frozen=True):
    """How to find one device.

    Attributes:
        uuid: Its UUID without a prefix; empty when the process could not say.
        entry: Index or UUID (also shortened, or ``MIG-GPU-UUID/GI/CI``) by the variables; None when they hide it.
        by_bus: An index counts by PCI bus, as NVML does; otherwise it counts the fastest first.
    """

    uuid: str = ""
    entry: int | str | None = None
    by_bus: bool = False


def visible(environment: Mapping[str, Any], devices: list[str]) -> dict[str, Wanted]:
    """Maps a process's CUDA devices to the driver's.

    Args:
        environment: ``RunStarted.environment``; ``cuda_visible_devices`` is the variable as the process sees it.
        devices: The process's names for its devices, e.g. ``["cuda:0", "cpu"]``.

    Returns:
        Those of them that are CUDA devices and exist for the process.
    """
    order = environment.get("cuda_visible_devices")
    variables = environment.get("variables")
    by_bus = isinstance(variables, Mapping) and variables.get("CUDA_DEVICE_ORDER") == "PCI_BUS_ID"
    uuids = environment.get(UUIDS)
    found = {}
    for name in devices:
        if name.partition(":")[0] != "cuda":
            continue
        uuid = str(uuids.get(name) or "") if isinstance(uuids, Mapping) else ""
        entry = resolve(order if isinstance(order, str) else None, _index(name))
        if uuid or entry is not None:
            found[name] = Wanted(uuid, entry, by_bus)
    return found


def resolve(order: str | None, index: int) -> int | str | None:
    """Says which device ``cuda:index`` is, as CUDA reads CUDA_VISIBLE_DEVICES.

    Args:
        order: The variable's value; None when it is not set.
        index: The device's number within the process.

    Returns:
        An index or a UUID, or None when the process has no such device.
    """
    if order is None:
        return index
    entries: list[int | str] = []
    for word in order.split(","):
        word = word.strip()
        if word.isdecimal():
            entries.append(int(word))
        elif word.startswith(("GPU-", "MIG-")):
            entries.append(word)
        else:
            break  # CUDA ignores everything from the first entry on that it can't read
    return entries[index] if 0 <= index < len(entries) else None


def _index(device: str) -> int:
    number = device.partition(":")[2]
    return int(number) if number.isdecimal() else 0
