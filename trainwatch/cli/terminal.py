"""What all commands share: mistakes and failures, settings, words on the terminal."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from typing import Any

from trainwatch import settings


class Mistake(Exception):
    """Something that the person at the terminal can put right; the message says how."""


class Failure(Exception):
    """Something that did not work; the message says what."""


def port(text: str) -> int:
    """Reads a port, for argparse."""
    number = int(text) if text.isdigit() else -1
    if not 0 <= number <= 65535:
        raise argparse.ArgumentTypeError(f"{text!r} is no port: use a number from 0 to 65535")
    return number


def settings_with(changes: Mapping[str, str | None]) -> settings.Settings:
    """Returns the environment's settings, with those changed that the command line gives.

    Args:
        changes: Variable to its value; None leaves it.

    Raises:
        Mistake: A variable has a value that means nothing.
    """
    try:
        return settings.load({**os.environ, **{name: value for name, value in changes.items() if value is not None}})
    except ValueError as error:
        raise Mistake(str(error)) from None


def need(packages: Sequence[str], extra: str) -> None:
    """Checks that packages are installed.

    Raises:
        Mistake: Some are not; the message says which extra brings them.
    """
    missing = [name for name in packages if find_spec(name) is None]
    if missing:
        raise Mistake(
            f"this needs packages that are not installed ({', '.join(missing)}): pip install 'trainwatch[{extra}]'"
        )


def counted(number: int, one: str, many: str = "") -> str:
    """Returns a number with its noun: ``"1 run"``, ``"2 runs"``."""
    return f"{number:,} {one if number == 1 else many or one + 's'}"


def say(text: str) -> None:
    """Writes a line to the terminal, at once."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def paint(code: str, text: str, stream: Any = None) -> str:
    """Colours text where colours show and nobody objects (https://no-color.org)."""
    if os.environ.get("NO_COLOR") or not (stream or sys.stdout).isatty():
        return text
    return f"\033[{code}m{text}\033[0m"
