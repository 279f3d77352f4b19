"""The control file: commands that the agent left for this run, read between steps."""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import Final

from trainwatch.rules.wording import sentence
from trainwatch.shipment import Command, decode_commands
from trainwatch.training.identity import Identity

logger = logging.getLogger("trainwatch")

_FILE: Final = "control"
_LOOK_SECONDS: Final = 0.1


class Control:
    """Watches a node's control file, and remembers what has been obeyed.

    Ranks read their nodes' files at different moments, so each tells the others the number of a command that is new to
    it, and all obey what any of them told; see :mod:`trainwatch.training.agreement`. The number carries the action,
    since a rank may hear of a command that its own node has not got yet.

    Args:
        node_directory: ``journals/RUN/NODE``.
        since: When this training began, in Unix seconds.
        identity: Which rank this is. The first of each node says what only wants to be said; None says nothing.
    """

    def __init__(self, node_directory: Path, since: float = 0.0, identity: Identity | None = None) -> None:
        self._path = str(node_directory / _FILE)
        self._since = since
        self._commands: list[Command] = []
        self._seen = (0, 0)
        self._looked = 0.0
        self._obeyed: set[int] = set()
        self._next = 0
        # A run that is started again under its old id finds the commands of its last life; they were meant for that.
        # Another rank may still tell them: it had begun before they were given.
        self._ignored: frozenset[int] = frozenset()
        self._said: set[int] = set()
        self._speaks = False
        self._several = identity is not None and identity.world_size > 1
        self._look()
        self._ignored = frozenset(command.id for command in self._commands)
        self._next = 0
        self._speaks = identity is not None and identity.local_rank == 0

    def next(self, now: float) -> int:
        """Returns the number of a command that is to be obeyed, 0 when there is none; a halt goes before others.

        It looks ten times a second at most: a look takes as long as ten lines of ours.

        Args:
            now: The time in seconds.
        """
        if not 0 <= now - self._looked < _LOOK_SECONDS:
            self._looked = now
            self._look()
        return self._next

    def obey(self, number: int) -> bool:
        """Notes that all ranks obey a command now.

        Args:
            number: The command's.

        Returns:
            Whether that is news.
        """
        if number in self._obeyed:
            return False
        self._obeyed.add(number)
        self._choose()
        return True

    def find(self, number: int) -> Command | None:
        """Returns a command by its number, if this node has it already.

        Args:
            number: The command's.
        """
        for _ in range(2):
            for command in self._commands:
                if command.id == number >> 1:
                    return command
            self._look()
        return None

    @staticmethod
    def is_halt(number: int) -> bool:
        """Tells whether a command's number stands for a halt.

        Args:
            number: The command's.
        """
        return bool(number & 1)

    def _is_new(self, command: Command) -> bool:
        meant = command.id not in self._ignored and (not command.time or command.time >= self._since)
        return meant and _number(command) not in self._obeyed

    def _look(self) -> None:
        try:
            status = os.stat(self._path)
        except FileNotFoundError:
            return
        stamp = (status.st_mtime_ns, status.st_ino)
        if stamp != self._seen:
            with open(self._path, "rb") as file:
                self._commands = decode_commands(file.read())
            self._seen = stamp
            self._choose()
            self._speak()

    def _choose(self) -> None:
        orders = (command for command in self._commands if command.action != "say")
        self._next = max((_number(command) for command in orders if self._is_new(command)), key=_urgency, default=0)

    def _speak(self) -> None:
        for command in self._commands:
            if command.action == "say" and self._speaks and command.id not in self._said and self._is_new(command):
                self._said.add(command.id)
                rank = command.rank if self._several else None
                logger.warning(
                    "TrainWatch: %s", sentence(command.rule, command.parameters, step=command.step, rank=rank)
                )


def _number(command: Command) -> int:
    return command.id * 2 + (command.action == "halt")


def _urgency(number: int) -> tuple[bool, int]:
    return Control.is_halt(number), -number
