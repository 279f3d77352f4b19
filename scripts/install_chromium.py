"""Sees to it that there is a Chromium for the browser tests; run as ``python -m scripts.install_chromium``."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys

from tests.browser import find_chromium


def main() -> int:
    """Returns the exit status."""
    if find_chromium():
        return 0
    if shutil.which("apt-get") and os.geteuid() == 0:
        # Debian's brings the libraries it needs; Playwright's own build would lack them on a bare machine.
        environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
        for command in (["apt-get", "update"], ["apt-get", "install", "-y", "--no-install-recommends", "chromium"]):
            if subprocess.run(command, env=environment, check=False).returncode:
                break
        if find_chromium():
            return 0
    subprocess.run([sys.executable, "-m", "playwright", "install", "chromium"], check=False)
    if find_chromium():
        return 0
    sys.stderr.write("No Chromium could be found or installed. Install one, or set TRAINWATCH_CHROMIUM to its path.\n")
    return 1


if __name__ == "__main__":
    sys.exit(main())
