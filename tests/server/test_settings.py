from __future__ import annotations

from pathlib import Path

import pytest

from trainwatch.server.settings import Refused, Settings, is_loopback


def test_by_default_it_listens_on_loopback_with_sqlite_at_home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TRAINWATCH_HOME", str(tmp_path))
    settings = Settings()
    assert (settings.host, settings.port) == ("127.0.0.1", 8420)
    assert settings.database_url == f"sqlite:///{tmp_path}/trainwatch.db"
    settings.check()


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.5", "gpu-box"])
def test_beyond_loopback_it_wants_a_token_and_says_how(host: str) -> None:
    with pytest.raises(Refused, match="TRAINWATCH_TOKEN=") as refusal:
        Settings(host=host).check()
    assert host in str(refusal.value)
    with pytest.raises(Refused, match="6 characters"):
        Settings(host=host, token="set-me").check()
    Settings(host="127.0.0.1", token="set-me").check()
    Settings(host=host, token="long enough to be one").check()


def test_the_token_is_not_in_the_representation() -> None:
    assert "hunter2" not in repr(Settings(token="hunter2"))


@pytest.mark.parametrize("scheme", ["postgres://", "postgresql://", "postgresql+psycopg://"])
def test_postgres_is_reached_with_the_driver_that_is_installed(scheme: str) -> None:
    assert Settings(database=f"{scheme}u@h/d").database_url == "postgresql+psycopg://u@h/d"


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        ("127.0.0.1", True),
        ("127.8.9.1", True),
        ("localhost", True),
        ("tw.localhost", True),
        ("[::1]", True),
        ("::1", True),
        ("0.0.0.0", False),
        ("localhost.evil.com", False),
        ("127.0.0.1.evil.com", False),
        ("", False),
    ],
)
def test_loopback(host: str, expected: bool) -> None:
    assert is_loopback(host) is expected
