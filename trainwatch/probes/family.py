"""Families of processes: who started whom, what a whole tree weighs, and what a process is called."""

from __future__ import annotations

import os
import sys
from collections import defaultdict
from collections.abc import Collection
from pathlib import Path
from typing import Final

from trainwatch.probes.cgroup import ROOT
from trainwatch.probes.host import resident, status_fields

_LINUX: Final = sys.platform.startswith("linux")


def tree_resident(pid: int, root: Path = ROOT) -> int | None:
    """Returns the resident memory of a process and all its descendants in bytes, or None when it does not exist.

    Pages that they share count once for each. Takes milliseconds: every process of the machine is looked at.

    Args:
        pid: The process.
        root: Where the file system begins; for tests.
    """
    return trees_resident([pid], root).get(pid)


def trees_resident(pids: Collection[int], root: Path = ROOT) -> dict[int, int]:
    """Returns what :func:`tree_resident` does for several processes, for the price of one; dead ones are left out.

    Args:
        pids: The processes.
        root: Where the file system begins; for tests.
    """
    children = _children(root)
    sizes = {}
    for pid in pids:
        total, left, seen = resident(pid, root), list(children.get(pid, ())), {pid}
        while left:
            one = left.pop()
            if one in seen:  # processes came and went while they were listed
                continue
            seen.add(one)
            total = (total or 0) + (resident(one, root) or 0)
            left += children.get(one, ())
        if total:
            sizes[pid] = total
    return sizes


def _children(root: Path) -> dict[int, list[int]]:
    found: defaultdict[int, list[int]] = defaultdict(list)
    if _LINUX:
        try:
            numbers = [int(name) for name in os.listdir(f"{root}/proc") if name.isdecimal()]
        except OSError:
            numbers = []
        for pid in numbers:
            found[parent(pid, root)].append(pid)
    else:
        import psutil

        for process in psutil.process_iter():
            try:
                found[process.ppid()].append(process.pid)
            except psutil.Error:
                continue
    return found


def parent(pid: int, root: Path = ROOT) -> int:
    """Returns the process that started a process; 0 when there is none to be seen.

    Args:
        pid: The process.
        root: Where the file system begins; for tests.
    """
    if not _LINUX:
        import psutil

        try:
            return int(psutil.Process(pid).ppid())
        except psutil.Error:
            return 0
    fields = status_fields(pid, root)
    return int(fields[1]) if len(fields) > 1 else 0


def descends(pid: int, ancestors: Collection[int], root: Path = ROOT) -> bool:
    """Tells whether a process is one of `ancestors` or was started by one, at any distance.

    Args:
        pid: The process.
        ancestors: Process ids.
        root: Where the file system begins; for tests.
    """
    for _ in range(64):  # processes that come and go may form a ring
        if pid in ancestors:
            return True
        if pid <= 1:
            return False
        pid = parent(pid, root)
    return False


def name_and_owner(pid: int, root: Path = ROOT) -> tuple[str, str]:
    """Returns a process's name, without path and arguments, and its user; each empty when it may not be seen.

    Args:
        pid: The process.
        root: Where the file system begins; for tests.
    """
    if not _LINUX:
        import psutil

        try:
            process = psutil.Process(pid)
            return process.name(), process.username()
        except (psutil.Error, KeyError):
            return "", ""
    try:
        with open(f"{root}/proc/{pid}/comm", "rb") as file:
            name = file.read().decode(errors="replace").strip()
        number = os.stat(f"{root}/proc/{pid}").st_uid
    except OSError:
        return "", ""
    try:
        import pwd

        return name, pwd.getpwuid(number).pw_name
    except (ImportError, KeyError):  # a user of the machine that the container does not know
        return name, str(number)
