"""Prints the OpenAPI document, from which the web UI's types are made::

python -m trainwatch.server.openapi > web/openapi.json
"""

from __future__ import annotations

import json
import sys

from trainwatch.server.app import create_app
from trainwatch.server.settings import Settings


def document() -> str:
    """Returns the OpenAPI document as text that is the same for the same API."""
    app = create_app(Settings(database="sqlite:///never-opened.db"))
    return json.dumps(app.openapi(), indent=2, sort_keys=True, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    sys.stdout.write(document())
