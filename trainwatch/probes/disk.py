"""Disk: the room on the file system of a folder, and how much a folder holds.

A network file system may take seconds for either, or never answer: neither is for a thread that something waits for.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path


def room(folder: str | Path) -> tuple[int, int] | None:
    """Returns the free bytes and the size of a folder's file system; None when it cannot be read.

    Free is what may be used without being root.

    Args:
        folder: It need not be there yet; then what it will be made in counts.
    """
    path = Path(folder)
    for place in (path, *path.parents):
        try:
            found = shutil.disk_usage(place)
        except (FileNotFoundError, NotADirectoryError):
            continue
        except OSError:
            return None
        return found.free, found.total
    return None


def size(folder: str | Path) -> int | None:
    """Returns the bytes of the files in a folder and in those within it; None when it is not there.

    Links are not followed. What vanishes meanwhile does not count.

    Args:
        folder: Where to look; a file is possible too.
    """
    try:
        if not os.path.isdir(folder):
            return os.stat(folder).st_size
    except OSError:
        return None
    total = 0
    for parent, _, names in os.walk(folder):
        for name in names:
            try:
                total += os.lstat(os.path.join(parent, name)).st_size
            except OSError:
                continue
    return total
