"""The machine: processor, memory, limits, container."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

_LIMITS: Final = {
    "open_files": "RLIMIT_NOFILE",
    "locked_memory": "RLIMIT_MEMLOCK",
    "address_space": "RLIMIT_AS",
    "processes": "RLIMIT_NPROC",
    "stack": "RLIMIT_STACK",
    "core": "RLIMIT_CORE",
}
_PAGE: Final = 4096


def describe_machine() -> dict[str, Any]:
    """Describes processor, memory and the limits of this process; sizes in bytes."""
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    found: dict[str, Any] = {
        "cpus": usable,
        "cpu": {"model": _processor(), "count": os.cpu_count()},
        "limits": _limits(),
        "memory": {"shared": _shared_memory()},
    }
    if "SC_PHYS_PAGES" in getattr(os, "sysconf_names", {}):
        found["memory"]["total"] = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return found


def describe_container(environment: Mapping[str, str]) -> str | None:
    """Returns in what kind of container this process runs, as far as one can tell.

    Args:
        environment: The variables of the process.
    """
    if "KUBERNETES_SERVICE_HOST" in environment:
        return "kubernetes"
    if environment.get("APPTAINER_NAME") or environment.get("SINGULARITY_NAME"):
        return "apptainer"
    if Path("/.dockerenv").exists():
        return "docker"
    if Path("/run/.containerenv").exists():
        return "podman"
    return environment.get("container") or None


def _processor() -> str | None:
    try:
        with open("/proc/cpuinfo", "rb", buffering=0) as file:
            # The first page: the kernel asks every core for its clock when it writes all of it.
            lines = file.read(_PAGE).decode("utf-8", "replace").splitlines()
    except OSError:
        return None
    known = dict(line.split(":", 1) for line in lines if ":" in line)
    by_name = {name.strip(): value.strip() for name, value in known.items()}
    return by_name.get("model name") or by_name.get("Hardware") or by_name.get("CPU implementer")


def _limits() -> dict[str, int | str]:
    try:
        import resource
    except ImportError:  # Windows
        return {}
    found: dict[str, int | str] = {}
    for name, constant in _LIMITS.items():
        soft = resource.getrlimit(getattr(resource, constant))[0] if hasattr(resource, constant) else None
        if soft is not None:
            found[name] = "unlimited" if soft == resource.RLIM_INFINITY else soft
    return found


def _shared_memory() -> int | None:
    """Size of what data loader workers pass batches through; Docker's default of 64 MiB has ended many a training."""
    try:
        sizes = os.statvfs("/dev/shm")
    except (OSError, AttributeError):
        return None
    return sizes.f_frsize * sizes.f_blocks
