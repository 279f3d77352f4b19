"""The state of the user's code: commit, branch, and whether files were changed since.

Read from git's own files. Running git would fork the training, may wait for a network drive, and refuses in a container
whose user does not own the folder.
"""

from __future__ import annotations

import hashlib
import re
import stat
import struct
import time
import zlib
from pathlib import Path
from typing import Any, Final

_BUDGET: Final = 0.01
_LARGEST_INDEX: Final = 8 * 1024 * 1024
_LARGEST_FILE: Final = 1024 * 1024
_ENTRY: Final = struct.Struct(">10I20sH")
_EXTENDED: Final = 0x4000
_SKIPPED: Final = 0x8000 | 0x3000
_HASH: Final = re.compile(r"[0-9a-f]{40,64}")


def describe_code(path: Path) -> dict[str, Any]:
    """Describes the git repository of a file or folder.

    Args:
        path: The training script, or the folder of a notebook.

    Returns:
        ``commit``, ``branch``, ``remote`` (may hold a login: to be redacted) and ``dirty``: tracked files differ from
        the commit. What cannot be told within some milliseconds is left out; empty outside of any repository.
    """
    place = _find(path)
    if place is None:
        return {}
    root, git, common = place
    head = _read(git / "HEAD").strip()
    branch = head.removeprefix("ref: refs/heads/") if head.startswith("ref: ") else None
    commit = _resolve(git, common, head.removeprefix("ref: ")) if branch is not None else head
    remote = re.search(r'\[remote "origin"\][^\[]*?\burl\s*=\s*(\S+)', _read(common / "config"))
    found: dict[str, Any] = {
        "commit": commit if commit and _HASH.fullmatch(commit) else None,
        "branch": branch,
        "remote": remote[1] if remote else None,
        "dirty": _differs(root, git, common, commit),
    }
    return {name: value for name, value in found.items() if value is not None}


def _find(path: Path) -> tuple[Path, Path, Path] | None:
    """Returns the working tree, its git folder, and the folder that it shares with other working trees."""
    for folder in (path, *path.parents):
        git = folder / ".git"
        if git.is_file():  # a linked working tree, or a submodule
            git = folder / _read(git).strip().removeprefix("gitdir: ")
        if (git / "HEAD").is_file():
            common = _read(git / "commondir").strip()
            return folder, git, git / common if common else git
    return None


def _read(path: Path) -> str:
    try:
        return path.read_text("utf-8", "replace")
    except OSError:
        return ""


def _resolve(git: Path, common: Path, reference: str) -> str | None:
    for folder in (git, common):
        text = _read(folder / reference).strip()
        if text:
            return text
    packed = re.search(rf"^([0-9a-f]+) {re.escape(reference)}$", _read(common / "packed-refs"), re.MULTILINE)
    return packed[1] if packed else None


def _differs(root: Path, git: Path, common: Path, commit: str | None) -> bool | None:
    """Tells whether tracked files differ from the commit; None when that would take long, or can't be told."""
    deadline = time.perf_counter() + _BUDGET
    index = git / "index"
    try:
        if index.stat().st_size > _LARGEST_INDEX:
            return None
        data = index.read_bytes()
        signature, version, count = struct.unpack_from(">4sII", data)
        if signature != b"DIRC" or version not in (2, 3) or (commit and len(commit) != 40):
            return None
        place = 12
        for _ in range(count):
            if time.perf_counter() > deadline:
                return None
            entry = _ENTRY.unpack_from(data, place)
            begin = place + _ENTRY.size + (2 if entry[11] & _EXTENDED else 0)
            end = data.index(b"\0", begin)
            flags = struct.unpack_from(">H", data, begin - 2)[0] if entry[11] & _EXTENDED else 0
            wanted = not (entry[11] & _SKIPPED or flags & 0x6000)  # unmerged, assumed unchanged, left out of a checkout
            if entry[11] & 0x3000:
                return True  # a merge is not finished
            if wanted and _changed(root / data[begin:end].decode("utf-8", "surrogateescape"), entry):
                return True
            place += (end - place + 8) & ~7
        return _staged(data[place:], common, commit)
    except (OSError, struct.error, ValueError, zlib.error):
        return None


def _changed(file: Path, entry: tuple[Any, ...]) -> bool:
    """Compares a file with its entry: time and size as git does it, and the content when the time is another."""
    mode, size = entry[6], entry[9]
    name: bytes = entry[10]
    if stat.S_IFMT(mode) != stat.S_IFREG:
        return False  # links and submodules
    try:
        now = file.lstat()
    except FileNotFoundError:
        return True
    if now.st_size & 0xFFFFFFFF != size:
        return True
    if int(now.st_mtime) == entry[2] and now.st_mtime_ns % 1_000_000_000 in (entry[3], 0):
        return False
    if size > _LARGEST_FILE:
        raise ValueError("a large file was touched, and comparing it takes long")
    content = file.read_bytes()
    return hashlib.sha1(b"blob %d\0" % len(content) + content).digest() != name


def _staged(extensions: bytes, common: Path, commit: str | None) -> bool | None:
    """Compares the index with the commit: git notes the tree that it last wrote or read, until something is added."""
    place = extensions.find(b"TREE")
    if place != 0 or not commit:
        return None
    body = extensions[8:]
    if body[:1] != b"\0":
        return None
    count, _, rest = body[1:].partition(b" ")
    if int(count) < 0:
        return None
    tree = rest.partition(b"\n")[2][:20].hex()
    path = common / "objects" / commit[:2] / commit[2:]
    if not path.is_file():
        return False  # packed: long known, and a tree that git took for the index's own
    content = zlib.decompress(path.read_bytes()).partition(b"\0")[2]
    return content[:45] != b"tree " + tree.encode()
