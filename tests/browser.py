"""Finds the Chromium that the browser tests drive."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path
from typing import Final

_NAMES: Final = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
_PLAYWRIGHT_FOLDERS: Final = ("~/.cache/ms-playwright", "~/Library/Caches/ms-playwright")
_MAC_APPS: Final = (
    "/Applications/Chromium.app/Contents/MacOS/Chromium",
    "/Applications/Google Chrome.app/Contents/MacOS/Google Chrome",
)

ARGS: Final = [
    # A container's /dev/shm is often 64 MB, which a page with large charts fills: the tab then crashes.
    "--disable-dev-shm-usage",
    "--disable-gpu",
    # Chromium refuses to run as root with its sandbox, and CI machines run as root.
    *(["--no-sandbox"] if hasattr(os, "geteuid") and os.geteuid() == 0 else []),
]


def find_chromium() -> str | None:
    """Returns the path of a Chromium or Chrome, or None.

    ``TRAINWATCH_CHROMIUM`` comes first, then what is installed, then what ``playwright install chromium`` fetched.
    """
    wanted = os.environ.get("TRAINWATCH_CHROMIUM")
    if wanted:
        return wanted
    for name in _NAMES:
        if path := shutil.which(name):
            return path
    candidates = [Path(app) for app in _MAC_APPS if sys.platform == "darwin"]
    folders = [os.environ.get("PLAYWRIGHT_BROWSERS_PATH", ""), *_PLAYWRIGHT_FOLDERS]
    for folder in filter(None, folders):
        candidates += sorted(Path(folder).expanduser().glob("chromium-*/chrome-*/chrome"), reverse=True)
        candidates += sorted(Path(folder).expanduser().glob("chromium-*/chrome-mac*/*.app/Contents/MacOS/*"))
    return next((str(path) for path in candidates if os.access(path, os.X_OK) and path.is_file()), None)
