"""Accelerators: names, driver, libraries, and how they are wired. Nothing here wakes a device up."""

from __future__ import annotations

import re
import sys
from itertools import islice
from pathlib import Path
from typing import Any, Final

_DRIVER: Final = Path("/proc/driver/nvidia")
_PCI: Final = Path("/sys/bus/pci/devices")
_MOST: Final = 16


def describe_devices(driver: Path = _DRIVER, pci: Path = _PCI) -> dict[str, Any]:
    """Describes the accelerators.

    Asked of torch where this process uses CUDA already, else read from the driver's files: the first call to CUDA
    takes a context of hundreds of MiB, and makes a later fork unusable.

    Args:
        driver: Where the driver shows its state.
        pci: Where the kernel shows PCI devices.
    """
    torch = sys.modules["torch"]
    found: dict[str, Any] = {"cuda": torch.version.cuda, "rocm": torch.version.hip, "driver": _driver_version(driver)}
    if torch.cuda.is_initialized():
        found["cudnn"] = _dotted(torch.backends.cudnn.version())
        found["nccl"] = _nccl(torch)
        found.update(_visible(torch, pci))
    else:
        found["gpus"] = _installed(driver)
    return found


def _visible(torch: Any, pci: Path) -> dict[str, Any]:
    count = min(torch.cuda.device_count(), _MOST)
    properties = [torch.cuda.get_device_properties(index) for index in range(count)]
    gpus = [device.name for device in properties]
    detail: dict[str, Any] = {
        "memory": [device.total_memory for device in properties],
        "capability": [f"{device.major}.{device.minor}" for device in properties],
        "numa": [_numa_node(device, pci) for device in properties],
    }
    if count > 1:
        peers = [
            all(torch.cuda.can_device_access_peer(one, other) for other in range(count) if other != one)
            for one in range(count)
        ]
        detail["peer_access"] = "all" if all(peers) else "none" if not any(peers) else "some"
    return {"gpus": gpus, "gpu": {key: _same(value) for key, value in detail.items()}}


def _same(values: Any) -> Any:
    """One value for all devices, where it is one."""
    return values[0] if isinstance(values, list) and values and all(value == values[0] for value in values) else values


def _numa_node(device: Any, pci: Path) -> int | None:
    bus = getattr(device, "pci_bus_id", None)
    if bus is None:
        return None
    place = f"{getattr(device, 'pci_domain_id', 0):04x}:{bus:02x}:{getattr(device, 'pci_device_id', 0):02x}.0"
    try:
        return int((pci / place / "numa_node").read_text())
    except (OSError, ValueError):
        return None


def _installed(driver: Path) -> list[str]:
    """Names of the GPUs that the driver has, whether this process may see them or not."""
    names = []
    try:
        for folder in islice(sorted((driver / "gpus").iterdir()), _MOST):
            model = re.search(r"^Model:\s*(.+)$", (folder / "information").read_text("utf-8", "replace"), re.MULTILINE)
            names.append(model[1].strip() if model else "unknown")
    except OSError:
        return []
    return names


def _driver_version(driver: Path) -> str | None:
    try:
        text = (driver / "version").read_text("utf-8", "replace")
    except OSError:
        return None
    version = re.search(r"NVRM version:.*?\s(\d+\.\d+(?:\.\d+)?)\s", text)
    return version[1] if version else None


def _nccl(torch: Any) -> str | None:
    if not torch.distributed.is_available() or not hasattr(torch._C, "_nccl_version"):
        return None
    version = torch.cuda.nccl.version()
    return ".".join(map(str, version)) if isinstance(version, tuple) else str(version)


def _dotted(version: int | None) -> str | None:
    """cuDNN's ``91002`` as ``"9.10.2"``, and ``8902`` of before version 9 as ``"8.9.2"``."""
    if version is None:
        return None
    major, rest = divmod(version, 10_000 if version >= 90_000 else 1000)
    minor, patch = divmod(rest, 100)
    return f"{major}.{minor}.{patch}"
