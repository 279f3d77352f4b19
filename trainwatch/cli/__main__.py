"""``python -m trainwatch.cli``."""

from __future__ import annotations

import sys

from trainwatch.cli import main

if __name__ == "__main__":
    sys.exit(main())
