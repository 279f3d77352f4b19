"""What is read of the GPUs of one process: memory, utilization, and who uses them."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Collection, Mapping
from typing import Any, Final

import msgspec

from trainwatch.events import DeviceValues, OtherProcess, Values
from trainwatch.probes import family
from trainwatch.probes.nvml import RETRY_SECONDS, Nvml
from trainwatch.probes.visible import Wanted

# The inode that the kernel gives to the first process namespace of all, the one whose numbers NVML knows.
_FIRST_NAMESPACE: Final = "pid:[4026531836]"


class User(msgspec.Struct, frozen=True):
    """A process that uses a GPU.

    Attributes:
        pid: Its number as NVML knows it.
        used: Bytes; None when the system does not tell.
    """

    pid: int
    used: int | None


class Circle(msgspec.Struct, frozen=True):
    """What must be known to tell a run's processes from others.

    Attributes:
        pids: The processes of the run's ranks on this node.
        numbered: NVML's process ids are ours. In a container they are the machine's.
        sharing: A GPU's UUID to how many of the run's ranks hold memory on it, as far as their allocators tell.
    """

    pids: Collection[int]
    numbered: bool
    sharing: Mapping[str, int] = {}


class DeviceProbe:
    """The devices of one process.

    Args:
        nvml: The library.
        pid: The process.
        devices: Its name for a device (``"cuda:0"``) to how it is found, as
            :func:`~trainwatch.probes.visible.visible` returns it.
    """

    def __init__(self, nvml: Nvml, pid: int, devices: Mapping[str, Wanted]) -> None:
        self._nvml = nvml
        self._pid = pid
        self._devices = devices
        self._handles: dict[str, Any] = {}
        self._uuids: dict[str, str] = {}
        self._generation = -1
        self._find_at = 0.0

    def locate(self, now: float) -> dict[str, str]:
        """Finds the devices.

        Args:
            now: Monotonic seconds.

        Returns:
            The process's name for a device to the driver's UUID, for those found.
        """
        if self._generation != self._nvml.generation:
            self._handles, self._uuids, self._generation, self._find_at = {}, {}, self._nvml.generation, now
        missing = [name for name in self._devices if name not in self._handles or name not in self._uuids]
        if missing and now >= self._find_at:
            self._find_at = now + RETRY_SECONDS
            for name in missing:
                handle = self._nvml.find(self._devices[name])
                if handle is not None:
                    self._handles[name] = handle
                    uuid = self._nvml.uuid(handle)
                    if uuid:
                        self._uuids[name] = uuid
        return dict(self._uuids)

    def read(self, now: float, circle: Circle) -> tuple[DeviceValues, dict[str, list[OtherProcess]]]:
        """Reads once.

        Args:
            now: Monotonic seconds.
            circle: The run's processes.

        Returns:
            The readings, and for each device whose users are known those that do not belong to the run.
        """
        self.locate(now)
        readings: DeviceValues = {}
        others: dict[str, list[OtherProcess]] = {}
        for name, handle in self._handles.items():
            values = self._device(handle)
            found = users(self._nvml, handle)
            if found is not None:
                own, strangers = split(found, self._pid, circle, self._uuids.get(name, ""))
                if own is not None:
                    values["memory/process_used"] = float(own)
                if strangers is not None and all(user.used is not None for user in strangers):
                    values["memory/others_used"] = float(sum(user.used or 0 for user in strangers))
                    others[name] = [self._describe(user, name, circle.numbered) for user in strangers]
            if values:
                readings[name] = values
        return readings, others

    def _device(self, handle: Any) -> Values:
        values: Values = {}
        memory = self._nvml.ask("nvmlDeviceGetMemoryInfo", handle)
        if memory is not None and memory.total:
            values["memory/device_used"] = float(memory.used)
            values["memory/capacity"] = float(memory.total)
        rates = self._nvml.ask("nvmlDeviceGetUtilizationRates", handle)
        if rates is not None:
            values["device/utilization"] = rates.gpu / 100
        return values

    def _describe(self, user: User, device: str, numbered: bool) -> OtherProcess:
        name, owner = family.name_and_owner(user.pid) if numbered else ("", "")
        if not name:
            told = self._nvml.ask("nvmlSystemGetProcessName", user.pid)
            name = os.path.basename(told.decode(errors="replace") if isinstance(told, bytes) else told or "")
        return OtherProcess(device=device, pid=user.pid, name=name[:100], user=owner, used=user.used or 0)


def users(nvml: Nvml, handle: Any) -> list[User] | None:
    """Returns the processes that use a GPU; None when not all of them are known.

    Args:
        nvml: The library.
        handle: The GPU, or a slice of one.
    """
    compute = nvml.ask("nvmlDeviceGetComputeRunningProcesses", handle)
    if compute is None and nvml.refused_for_good:  # a driver from before 2022
        compute = nvml.ask("nvmlDeviceGetComputeRunningProcesses_v2", handle)
    if compute is None:
        return None
    found = _add_up(compute)
    for kind in ("Graphics", "MPSCompute"):
        more = nvml.ask(f"nvmlDeviceGet{kind}RunningProcesses", handle)
        if more is None and nvml.refused_for_good:
            more = nvml.ask(f"nvmlDeviceGet{kind}RunningProcesses_v2", handle)
        if more is None and not nvml.refused_for_good:
            return None
        for pid, used in _add_up(more or []).items():
            # A process that computes and draws stands in both lists with the same memory.
            found[pid] = used if found.get(pid) is None else max(found[pid] or 0, used or 0)
    return [User(pid, used) for pid, used in sorted(found.items())]


def _add_up(processes: list[Any]) -> dict[int, int | None]:
    """Adds up what a process uses in several instances of a GPU; None when a part is not known."""
    found: dict[int, int | None] = {}
    for process in processes:
        used = process.usedGpuMemory
        before = found.get(process.pid, 0)
        found[process.pid] = None if used is None or before is None else before + int(used)
    return found


def split(
    found: list[User], pid: int, circle: Circle, uuid: str, alive: Callable[[int], bool] | None = None
) -> tuple[int | None, list[User] | None]:
    """Tells a process's own use of a GPU from that of strangers.

    Args:
        found: All users of the GPU.
        pid: The process.
        circle: The run's processes.
        uuid: The GPU; empty when it is not known.
        alive: Tells whether there is a process of a number here; None to ask the kernel.

    Returns:
        The bytes that the process uses, and the users that do not belong to the run; each None when it is not known.
    """
    pids = {user.pid for user in found}
    numbered = circle.numbered
    if not numbered and pid in pids:
        # The machine's numbers may hit ours by accident. The process itself would stand there under a number of the
        # machine's, too, and hardly all of them exist in here.
        numbered = all(map(alive or _exists, pids))
    if numbered:
        own = next((user.used for user in found if user.pid == pid), None)
        return own or None, [user for user in found if not family.descends(user.pid, circle.pids)]
    # Nobody can be told by a number. But a rank whose allocator holds memory there is one of the users.
    sharing = circle.sharing.get(uuid, 0)
    if sharing and len(found) == sharing:
        return (found[0].used or None if sharing == 1 else None), []
    return None, None


def numbered_as_the_driver() -> bool:
    """Tells whether process ids here are those of the machine, by which NVML names processes."""
    if not sys.platform.startswith("linux"):
        return True
    try:
        return os.readlink("/proc/self/ns/pid") == _FIRST_NAMESPACE
    except OSError:
        return False


def _exists(pid: int) -> bool:
    return os.path.exists(f"/proc/{pid}")
