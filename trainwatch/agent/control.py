"""Commands from the server and from rules, put where the callback reads them."""

from __future__ import annotations

import fcntl
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from trainwatch import journal
from trainwatch.shipment import LOCAL, Command, decode_commands, encode_commands

LOCAL_KEPT: Final = 50
"""Local commands that the file holds, newest last; older ones have long been obeyed."""
SAID_KEPT: Final = 20
"""Of those that only want something said; they push no other out."""


class ControlFile:
    """``RUN/NODE/control``: the commands in force for a run.

    Those of the server come and go with its answers. Those made on this machine, by the agent or by ``trainwatch
    halt``, stay: an agent that starts again must find them. The agent's two threads and other processes may write at
    the same time, so the file is locked, read and replaced.

    Args:
        node_directory: ``journals/RUN/NODE``.
    """

    def __init__(self, node_directory: Path) -> None:
        self._path = node_directory / "control"
        self._lock = node_directory / "control.lock"
        self._run = node_directory.parent.name

    def put(self, commands: Iterable[Command]) -> None:
        """Writes the server's commands for this run, if they are other ones than before.

        Raises:
            OSError: The file cannot be written; the next call tries again.
        """
        own = sorted((command for command in commands if command.run == self._run), key=lambda command: command.id)
        if own == _of_server(self.read()):
            return
        with self._locked():
            self._write([*own, *_of_here(self.read())])

    def add(self, command: Command) -> bool:
        """Adds a command that was made on this machine, unless the file has it already.

        Returns:
            Whether it was added.

        Raises:
            OSError: The file cannot be written.
        """
        with self._locked():
            present = self.read()
            if any(known.id == command.id for known in present):
                return False
            here = [*_of_here(present), command]
            said = [one for one in here if one.action == "say"][-SAID_KEPT:]
            orders = [one for one in here if one.action != "say"][-LOCAL_KEPT:]
            self._write([*_of_server(present), *orders, *said])
        return True

    def read(self) -> list[Command]:
        """Returns the commands in the file.

        Raises:
            OSError: It cannot be read.
        """
        try:
            return decode_commands(self._path.read_bytes())
        except FileNotFoundError:
            return []

    def _write(self, commands: list[Command]) -> None:
        journal.write_atomically(self._path, encode_commands(commands))

    @contextmanager
    def _locked(self) -> Iterator[None]:
        with open(self._lock, "ab") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield


def _of_server(commands: list[Command]) -> list[Command]:
    return [command for command in commands if command.id < LOCAL]


def _of_here(commands: list[Command]) -> list[Command]:
    return [command for command in commands if command.id >= LOCAL]
