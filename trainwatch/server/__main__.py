"""``python -m trainwatch.server``: runs the server with the settings of the environment."""

from __future__ import annotations

import sys

from pydantic import ValidationError

from trainwatch.server.main import serve
from trainwatch.server.settings import Refused, Settings


def main() -> None:
    """Runs the server; prints its address once it answers.

    Raises:
        SystemExit: It cannot run like this.
    """
    try:
        serve(Settings(), ready=_announce)
    except (Refused, ValidationError) as error:
        raise SystemExit(str(error)) from error


def _announce(url: str) -> None:
    sys.stdout.write(f"{url}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
