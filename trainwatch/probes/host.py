"""Host memory: the machine, a process, and whether it still exists.

On Linux everything comes straight from ``/proc``: a reading takes some ten microseconds and needs no library. Elsewhere
psutil answers, imported when first asked. Cgroups (:mod:`trainwatch.probes.cgroup`) and families of processes
(:mod:`trainwatch.probes.family`) have files of their own.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Final

from trainwatch.events import DeviceValues
from trainwatch.probes import cgroup
from trainwatch.probes.cgroup import ROOT

_LINUX: Final = sys.platform.startswith("linux")
_PAGE: Final = os.sysconf("SC_PAGE_SIZE") if hasattr(os, "sysconf") else 4096
_TICKS: Final = os.sysconf("SC_CLK_TCK") if _LINUX else 100
# A creation time is the boot time and the ticks since then. The kernel's boot time moves by a second when the clock is
# set, and other libraries round otherwise; a process id is not used again within that time.
_SAME_PROCESS_SECONDS: Final = 2.0


def machine_memory(root: Path = ROOT) -> tuple[int, int] | None:
    """Returns the machine's used and total memory in bytes; None when the kernel does not tell.

    Args:
        root: Where the file system begins; for tests.
    """
    if not _LINUX:
        import psutil

        memory = psutil.virtual_memory()
        return memory.total - memory.available, memory.total
    try:
        lines = (root / "proc/meminfo").read_bytes().splitlines()
    except OSError:
        return None
    kib = {name: int(rest.split()[0]) for name, _, rest in (line.partition(b":") for line in lines[:5]) if rest}
    total, free = kib.get(b"MemTotal"), kib.get(b"MemAvailable", kib.get(b"MemFree", 0))
    return None if total is None else ((total - free) * 1024, total * 1024)


def capacity(pid: int | None = None, root: Path = ROOT) -> int | None:
    """Returns how much memory a process may use: the smaller of its cgroup's limit and the machine's memory.

    Args:
        pid: The process; None for this one.
        root: Where the file system begins; for tests.
    """
    machine = machine_memory(root)
    group = cgroup.find(pid, root)
    limits = [size for size in (machine and machine[1], group and group.limit()) if size]
    return min(limits, default=None)


def resident(pid: int | None = None, root: Path = ROOT) -> int | None:
    """Returns a process's resident memory in bytes, or None when it does not exist.

    Args:
        pid: The process; None for this one.
        root: Where the file system begins; for tests.
    """
    if not _LINUX:
        import psutil

        try:
            return int(psutil.Process(pid).memory_info().rss)
        except psutil.Error:
            return None
    try:
        with open(f"{root}/proc/{pid or 'self'}/statm", "rb") as file:
            return int(file.read().split()[1]) * _PAGE
    except (OSError, IndexError):
        return None


def shared_memory(root: Path = ROOT) -> int | None:
    """Returns the bytes in use in ``/dev/shm``, where data loader workers hand over batches; None without it.

    Args:
        root: Where the file system begins; for tests.
    """
    try:
        # A plain folder of that name is no shared memory, and its file system's use says nothing.
        if os.stat(f"{root}/dev/shm").st_dev == os.stat(f"{root}/dev").st_dev:
            return None
        found = os.statvfs(f"{root}/dev/shm")
    except (AttributeError, OSError):
        return None
    return (found.f_blocks - found.f_bfree) * found.f_frsize


def started(pid: int | None = None, root: Path = ROOT) -> float | None:
    """Returns when a process was created in Unix seconds; None when it does not exist or is only a zombie.

    Args:
        pid: The process; None for this one.
        root: Where the file system begins; for tests.
    """
    if not _LINUX:
        import psutil

        try:
            process = psutil.Process(pid)
            return None if process.status() == psutil.STATUS_ZOMBIE else float(process.create_time())
        except psutil.Error:
            return None
    fields = status_fields(pid, root)
    if len(fields) < 20 or fields[0] in (b"Z", b"X"):
        return None
    return _boot_time(root) + int(fields[19]) / _TICKS


def status_fields(pid: int | None, root: Path) -> list[bytes]:
    """Returns what the kernel says of a process, from its state on; empty when it does not exist.

    Args:
        pid: The process; None for this one.
        root: Where the file system begins; for tests.
    """
    try:
        with open(f"{root}/proc/{pid or 'self'}/stat", "rb") as file:
            # The second field is the command in brackets and may itself hold brackets and spaces.
            return file.read().rpartition(b")")[2].split()
    except OSError:
        return []


def is_alive(pid: int, created: float, root: Path = ROOT) -> bool:
    """Tells whether a process still runs (a zombie does not).

    Args:
        pid: Its number.
        created: Its creation time in Unix seconds, so that another process with the number is not taken for it; 0
            when not known.
        root: Where the file system begins; for tests.
    """
    now = started(pid, root)
    return now is not None and (not created or abs(now - created) < _SAME_PROCESS_SECONDS)


def _boot_time(root: Path) -> float:
    key = str(root)
    if key not in _boot_times:
        with open(f"{root}/proc/stat", "rb") as file:
            lines = (line.split() for line in file)
            _boot_times[key] = next((float(line[1]) for line in lines if line[0] == b"btime"), 0.0)
    return _boot_times[key]


_boot_times: dict[str, float] = {}


class CpuMeter:
    """The share of all cores that were busy since the last call."""

    def __init__(self, root: Path = ROOT) -> None:
        self._root = root
        self._last = self._times()

    def read(self) -> float | None:
        """Returns the share, from 0 to 1; None when no time has passed or the kernel does not tell."""
        busy, total = self._times()
        before_busy, before_total = self._last
        if total <= before_total:
            return None
        self._last = (busy, total)
        return min(max((busy - before_busy) / (total - before_total), 0.0), 1.0)

    def _times(self) -> tuple[int, int]:
        if not _LINUX:
            return 0, 0
        try:
            with open(f"{self._root}/proc/stat", "rb") as file:
                times = [int(word) for word in file.readline().split()[1:9]]
        except (OSError, ValueError):
            return 0, 0
        idle = sum(times[3:5])  # idle and waiting for disks
        return sum(times) - idle, sum(times)


class HostProbe:
    """The node's memory and CPU, as device ``"host"``; OOM kills are those of the cgroup since it was made.

    Inside a cgroup with a limit, used and capacity are the cgroup's: that is where the OOM killer draws the line.

    Args:
        pid: A process whose cgroup counts; None for this one.
        root: Where the file system begins; for tests.
    """

    def __init__(self, pid: int | None = None, root: Path = ROOT) -> None:
        self._root = root
        self._group = cgroup.find(pid, root)
        self._cpu = CpuMeter(root)

    def read(self) -> DeviceValues:
        """See :class:`~trainwatch.probes.base.Probe`."""
        values: dict[str, float] = {}
        machine = machine_memory(self._root)
        if machine:
            values["memory/device_used"], values["memory/capacity"] = map(float, machine)
        limit = self._group.limit() if self._group else None
        if self._group and limit and (machine is None or limit < machine[1]):
            values["memory/capacity"] = float(limit)
            used = self._group.used()
            if used is not None:
                values["memory/device_used"] = float(used)
        cpu = self._cpu.read()
        if cpu is not None:
            values["host/cpu"] = cpu
        shared = shared_memory(self._root)
        if shared is not None:
            values["memory/shared"] = float(shared)
        kills = self._group.counted_oom_kills() if self._group else None
        if kills is not None:
            values["host/oom_kills"] = float(kills)
        return {"host": values}
