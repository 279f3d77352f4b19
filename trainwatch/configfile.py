"""``trainwatch.toml``: settings of rules beside the training script."""

from __future__ import annotations

import difflib
import sys
from pathlib import Path
from typing import Any, Final

NAME: Final = "trainwatch.toml"
_KNOWN: Final = ("rules",)


class ConfigError(Exception):
    """The file cannot be used; the message says in a sentence what is wrong with it."""


def find(named: Path | None, directory: Path) -> Path | None:
    """Returns the file that holds.

    Args:
        named: What ``TRAINWATCH_CONFIG`` says; None for nothing.
        directory: Where the training was started.
    """
    if named is not None:
        return named if named.is_absolute() else directory / named
    beside = directory / NAME
    return beside if beside.is_file() else None


def read(path: Path) -> tuple[Any, list[str]]:
    """Reads a file.

    Args:
        path: Where it lies.

    Returns:
        Its table ``rules``, unchecked, and a sentence for each thing in it that means nothing.

    Raises:
        ConfigError: It is not there, or is no TOML.
    """
    try:
        content = _parse(path.read_bytes().decode())
    except OSError as error:
        raise ConfigError(f"{path} cannot be read ({error.strerror}); no rule is set by it.") from None
    except ValueError as error:
        raise ConfigError(f"{path} is no valid TOML ({error}); no rule is set by it.") from None
    problems = []
    for name in content:
        if name not in _KNOWN:
            near = difflib.get_close_matches(name, _KNOWN, 1)
            meant = f" (did you mean {near[0]}?)" if near else ""
            problems.append(f"{path}: {name} means nothing{meant}; the file takes tables like [rules.loss_spike].")
    return content.get("rules", {}), problems


def _parse(text: str) -> dict[str, Any]:
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib
    parsed: dict[str, Any] = tomllib.loads(text)
    return parsed
