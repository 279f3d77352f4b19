"""Memory limits, use and OOM kills of a process's control group, version 1 and version 2.

A process dies at the tightest limit among its group and all groups above it, so that one counts. A group's files
outlive its processes: an object made while the process lived still tells afterwards whom the OOM killer took.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

import msgspec

ROOT: Final = Path("/")
# Version 1 writes "no limit" as the largest number of pages; nothing real comes near an exbibyte.
_UNLIMITED: Final = 1 << 60


class Cgroup(msgspec.Struct, frozen=True):
    """A memory control group.

    Attributes:
        version: 1 or 2.
        directory: The group's folder.
        mount: The folder of the hierarchy's root, above which nothing is visible.
    """

    version: int
    directory: Path
    mount: Path

    def limit(self) -> int | None:
        """Returns the tightest limit in bytes, or None when there is none."""
        return self._tightest()[0]

    def used(self) -> int | None:
        """Returns the memory used under the tightest limit, in bytes, without the page cache that can be given back."""
        directory = self._tightest()[1]
        current = _number(directory / ("memory.current" if self.version == 2 else "memory.usage_in_bytes"))
        if current is None:
            return None
        total = b"" if self.version == 2 else b"total_"
        mapped_name = b"file_mapped" if self.version == 2 else b"total_mapped_file"
        stat = _entries(directory / "memory.stat", (total + b"inactive_file", total + b"active_file", mapped_name))
        inactive, active, mapped = stat
        # Files that were read twice are given back as well; those that are mapped are mostly the code that runs.
        return max(current - inactive - max(active - mapped, 0), 0)

    def oom_kills(self) -> int:
        """Returns how many processes the OOM killer has taken in the group; 0 when the kernel does not count."""
        return self.counted_oom_kills() or 0

    def counted_oom_kills(self) -> int | None:
        """Returns the same; None when the kernel does not count."""
        return _entry(self.directory / ("memory.events" if self.version == 2 else "memory.oom_control"), b"oom_kill")

    def _tightest(self) -> tuple[int | None, Path]:
        name = "memory.max" if self.version == 2 else "memory.limit_in_bytes"
        best: tuple[int | None, Path] = (None, self.directory)
        directory = self.directory
        while True:
            size = _number(directory / name)
            if size is not None and size < _UNLIMITED and (best[0] is None or size < best[0]):
                best = (size, directory)
            if directory == self.mount or directory == directory.parent:
                return best
            directory = directory.parent


def find(pid: int | None = None, root: Path = ROOT) -> Cgroup | None:
    """Finds a process's memory control group.

    Args:
        pid: The process; None for this one.
        root: Where the file system begins; for tests.

    Returns:
        The group, or None when there is none that can be seen from here.
    """
    try:
        groups = (root / f"proc/{pid or 'self'}/cgroup").read_text().splitlines()
        mounts = (root / "proc/self/mountinfo").read_text().splitlines()
    except OSError:
        return None
    paths: dict[int, str] = {}
    for line in groups:
        _, controllers, path = [*line.split(":", 2), "?", ""][:3]
        if "memory" in controllers.split(","):
            paths[1] = path
        elif not controllers:
            paths[2] = path
    # A hybrid machine has both hierarchies, and then memory belongs to version 1.
    for version in sorted(paths):
        for group_root, mount in _mounts(mounts, version):
            inside = _below(paths[version], group_root)
            directory = _join(root, mount)
            found = Cgroup(version, directory / inside if inside else directory, directory)
            if found.directory.is_dir() and (version == 1 or (found.directory / "memory.current").exists()):
                return found
            if version == 1 and directory.is_dir():
                return Cgroup(version, directory, directory)
    return None


def _mounts(lines: list[str], version: int) -> list[tuple[str, str]]:
    """Returns (group that is mounted, where) for every memory hierarchy of a version."""
    found = []
    for line in lines:
        place, _, kind = line.partition(" - ")
        words, kinds = place.split(), kind.split()
        if len(words) < 5 or not kinds:
            continue
        is_memory = kinds[0] == "cgroup" and "memory" in kinds[-1].split(",")
        if kinds[0] == "cgroup2" if version == 2 else is_memory:
            found.append((words[3], words[4]))
    return found


def _below(path: str, group_root: str) -> str:
    """Returns a group's path below the mounted one.

    A container without a cgroup namespace sees its path from the machine's root, while only its own group is mounted.
    """
    if group_root != "/":
        if path != group_root and not path.startswith(group_root + "/"):
            return ""
        path = path[len(group_root) :]
    return "" if ".." in path.split("/") else path.strip("/")


def _join(root: Path, path: str) -> Path:
    return root / path.lstrip("/")


def _number(path: Path) -> int | None:
    try:
        return int(path.read_bytes())
    except (OSError, ValueError):  # no such file, or "max"
        return None


def _entries(path: Path, keys: tuple[bytes, ...]) -> list[int]:
    """Returns numbers out of a file of ``key value`` lines; 0 for each that is not there."""
    found = dict.fromkeys(keys, 0)
    try:
        for line in path.read_bytes().splitlines():
            name, _, value = line.partition(b" ")
            if name in found:
                found[name] = int(value)
    except (OSError, ValueError):
        pass
    return list(found.values())


def _entry(path: Path, key: bytes) -> int | None:
    """Returns a number out of a file of ``key value`` lines; None when it is not there."""
    try:
        for line in path.read_bytes().splitlines():
            name, _, value = line.partition(b" ")
            if name == key:
                return int(value)
    except (OSError, ValueError):
        pass
    return None
