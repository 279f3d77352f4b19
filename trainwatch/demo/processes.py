"""The demo's processes: started so that a Ctrl-C reaches only the demo, and ended so that none stays behind."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
import uuid
from collections.abc import Callable, Mapping
from pathlib import Path
from types import FrameType
from typing import Any, Final

import psutil

MARK: Final = "TRAINWATCH_DEMO"
"""Environment variable by which every process that descends from a demo is found again."""
_POLL_SECONDS: Final = 0.05
_SCAN_SECONDS: Final = 0.1


class StopRequest:
    """Whether somebody wants the demo to end: Ctrl-C, ``kill``, or a closed terminal.

    A flag and not an exception: an exception could fall between a process's start and its being remembered. What the
    demo was started to ignore it ignores: the closed terminal under ``nohup``, Ctrl-C in the background of a script.
    """

    def __init__(self) -> None:
        self.times = 0
        self._previous: dict[int, Any] = {}

    def __bool__(self) -> bool:
        return self.times > 0

    def __enter__(self) -> StopRequest:
        for name in ("SIGINT", "SIGTERM", "SIGHUP"):
            number = getattr(signal, name, None)
            if number is not None and signal.getsignal(number) is not signal.SIG_IGN:
                self._previous[number] = signal.signal(number, self._heard)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    def _heard(self, number: int, frame: FrameType | None) -> None:
        self.times += 1


class Processes:
    """Starts processes, and ends them with everything that they have started.

    Args:
        environment: What the processes are given; a mark is added to it.
        stop: Ends waiting; a second request makes the ending hurry.
    """

    def __init__(self, environment: Mapping[str, str], stop: StopRequest) -> None:
        self._mark = uuid.uuid4().hex
        self._environment = {**environment, MARK: self._mark}
        self._stop = stop
        self._children: list[subprocess.Popen[bytes]] = []

    @property
    def stopping(self) -> bool:
        """Whether somebody wants the demo to end."""
        return bool(self._stop)

    def start(
        self, command: list[str], *, log: Path, extra: Mapping[str, str] | None = None, show: bool = False
    ) -> subprocess.Popen[bytes]:
        """Starts a process.

        Args:
            command: The command and its arguments.
            log: Where its standard error goes.
            extra: Additional environment variables.
            show: Leave its standard output on the terminal; otherwise it goes to the log too.
        """
        with log.open("ab") as file:
            child = subprocess.Popen(
                command,
                env={**self._environment, **(extra or {})},
                stdin=subprocess.DEVNULL,
                stdout=None if show else file,
                stderr=file,
                # Out of the terminal's foreground group: its Ctrl-C is for the demo, which ends the others in order.
                start_new_session=True,
            )
        self._children.append(child)
        return child

    def wait(self, condition: Callable[[], bool], seconds: float = float("inf")) -> bool:
        """Waits until `condition` holds, the time is over, or somebody wants the demo to end.

        Returns:
            Whether the condition holds.
        """
        end = time.monotonic() + seconds
        while not (held := condition()) and not self._stop and time.monotonic() < end:
            time.sleep(_POLL_SECONDS)
        return held

    def end(self, child: subprocess.Popen[bytes], seconds: float = 5.0) -> None:
        """Ends one process: politely, and after `seconds` by force."""
        if child.poll() is None:
            child.terminate()
            try:
                child.wait(self._patience(seconds))
            except subprocess.TimeoutExpired:
                child.kill()
                child.wait()

    def descendants(self) -> list[psutil.Process]:
        """Returns every living process that carries the mark, also those that no longer have a parent here."""
        found = []
        for process in psutil.process_iter():
            try:
                if process.pid != os.getpid() and process.environ().get(MARK) == self._mark:
                    found.append(process)
            except (psutil.Error, OSError):  # somebody else's, or gone meanwhile
                continue
        return [process for process in found if _alive(process)]

    def let_end(self, seconds: float, *, but: subprocess.Popen[bytes] | None = None) -> None:
        """Gives what is still running a while to end by itself.

        Args:
            seconds: How long.
            but: A process (and its children) that is not waited for.
        """
        end = time.monotonic() + self._patience(seconds)
        while time.monotonic() < end and any(but is None or not _in_session(p, but.pid) for p in self.descendants()):
            time.sleep(_SCAN_SECONDS)

    def end_all(self) -> None:
        """Ends everything that is left, first politely, then by force."""
        asked: set[int] = set()
        end = time.monotonic() + self._patience(3.0)
        # Again and again: a process that was just being started shows up late.
        while remaining := self.descendants():
            by_force = time.monotonic() > end
            for process in remaining:
                if by_force or process.pid not in asked:
                    asked.add(process.pid)
                    with contextlib.suppress(psutil.Error):
                        process.send_signal(signal.SIGKILL if by_force else signal.SIGTERM)
            time.sleep(_SCAN_SECONDS)
        for child in self._children:
            child.poll()

    def _patience(self, seconds: float) -> float:
        return min(seconds, 0.2) if self._stop.times > 1 else seconds


def _alive(process: psutil.Process) -> bool:
    try:
        return process.status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False


def _in_session(process: psutil.Process, leader: int) -> bool:
    try:
        return os.getsid(process.pid) == leader
    except OSError:
        return False
