from __future__ import annotations

from pathlib import Path

from trainwatch.server.openapi import document

COMMITTED = Path(__file__).parents[2] / "web" / "openapi.json"


def test_the_committed_document_is_current() -> None:
    assert COMMITTED.read_text("utf-8") == document(), (
        "the API changed: run python -m trainwatch.server.openapi > web/openapi.json"
    )
