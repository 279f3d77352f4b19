"""Settings of the training side: every environment variable that the callback, the agent and ``trainwatch sync`` read.

The server has its own (:mod:`trainwatch.server.settings`).
"""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import msgspec

DEFAULT_SERVER: Final = "http://127.0.0.1:8420"
_TRUE: Final = frozenset({"1", "true", "yes", "on"})
_FALSE: Final = frozenset({"", "0", "false", "no", "off"})


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """What the environment says.

    Attributes:
        home: Where journals, and the server's SQLite database, are kept (``TRAINWATCH_HOME``, ``~/.trainwatch``).
        server: Address of the server (``TRAINWATCH_SERVER``).
        token: Token for the server, if it wants one (``TRAINWATCH_TOKEN``).
        project: Project of the runs (``TRAINWATCH_PROJECT``).
        run_id: Id for the run, so that processes agree on it without talking (``TRAINWATCH_RUN_ID``); empty: made up.
        run_name: Name of the run for people (``TRAINWATCH_RUN_NAME``); empty: the Trainer's.
        disabled: Record nothing at all (``TRAINWATCH_DISABLED``).
        agent: Start an agent beside the training (``TRAINWATCH_AGENT``); off is offline mode: the journal stays on
            disk until ``trainwatch sync`` or ``trainwatch serve`` ships it.
        node: Name of this machine (``TRAINWATCH_NODE``, the host name).
        sample_seconds: Time between two readings of device and host memory (``TRAINWATCH_SAMPLE_SECONDS``).
        config: The file with settings of rules (``TRAINWATCH_CONFIG``); None: ``trainwatch.toml`` in the working
            directory, if there is one.
    """

    home: Path
    server: str = DEFAULT_SERVER
    token: str = ""
    project: str = "default"
    run_id: str = ""
    run_name: str = ""
    disabled: bool = False
    agent: bool = True
    node: str = "localhost"
    sample_seconds: float = 0.25
    config: Path | None = None

    @property
    def journals(self) -> Path:
        """The folder that holds all journals."""
        return self.home / "journal"


def load(environment: Mapping[str, str] | None = None) -> Settings:
    """Reads the settings.

    Args:
        environment: The variables; those of the process by default.

    Raises:
        ValueError: A variable has a value that means nothing; the message names it and what it takes.
    """
    env = os.environ if environment is None else environment
    home = env.get("TRAINWATCH_HOME", "")
    config = env.get("TRAINWATCH_CONFIG", "")
    return Settings(
        home=Path(home).expanduser() if home else Path.home() / ".trainwatch",
        server=env.get("TRAINWATCH_SERVER", "").rstrip("/") or DEFAULT_SERVER,
        token=env.get("TRAINWATCH_TOKEN", ""),
        project=_name(env, "TRAINWATCH_PROJECT", "default"),
        run_id=_name(env, "TRAINWATCH_RUN_ID", ""),
        run_name=env.get("TRAINWATCH_RUN_NAME", ""),
        disabled=_flag(env, "TRAINWATCH_DISABLED", False),
        agent=_flag(env, "TRAINWATCH_AGENT", True),
        node=_name(env, "TRAINWATCH_NODE", socket.gethostname() or "localhost"),
        sample_seconds=_seconds(env, "TRAINWATCH_SAMPLE_SECONDS", 0.25),
        config=Path(config).expanduser() if config else None,
    )


def is_name(text: str) -> bool:
    """Tells whether a text can name a run or a node: it becomes part of a path and of an address.

    Args:
        text: Letters, digits, ``-``, ``_`` and ``.``, at most 100, and no ``.`` in front.
    """
    return bool(text) and all(c.isalnum() or c in "-_." for c in text) and text[0] != "." and len(text) <= 100


def _flag(env: Mapping[str, str], key: str, default: bool) -> bool:
    text = env.get(key, "").strip().lower()
    if key not in env:
        return default
    if text in _TRUE:
        return True
    if text in _FALSE:
        return False
    raise ValueError(f"{key}={env[key]!r} is not a yes or a no: use 1 or 0")


def _name(env: Mapping[str, str], key: str, default: str) -> str:
    text = env.get(key, "") or default
    if text and not is_name(text):
        raise ValueError(f"{key}={text!r}: use letters, digits, '-', '_' and '.', at most 100, and no '.' in front")
    return text


def _seconds(env: Mapping[str, str], key: str, default: float) -> float:
    text = env.get(key, "")
    if not text:
        return default
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0.01 <= seconds <= 3600:
        raise ValueError(f"{key}={text!r}: use a number of seconds from 0.01 to 3600")
    return seconds
