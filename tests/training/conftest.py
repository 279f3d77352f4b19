from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def environment() -> Iterator[None]:
    """Puts the variables back: some releases of transformers set ACCELERATE_… for ever, and all later runs compile."""
    before = dict(os.environ)
    yield
    for name in set(os.environ) - set(before):
        del os.environ[name]
    os.environ.update(before)


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A journal folder of the test's own, without an agent."""
    folder = tmp_path / "home"
    monkeypatch.setenv("TRAINWATCH_HOME", str(folder))
    monkeypatch.setenv("TRAINWATCH_AGENT", "0")
    monkeypatch.delenv("TRAINWATCH_RUN_ID", raising=False)
    return folder
