"""A real memory limit around processes of a test: a control group where one can be made."""

from __future__ import annotations

import os
import time
import uuid
from pathlib import Path
from types import TracebackType
from typing import Final

_V1: Final = Path("/sys/fs/cgroup/memory")
_V2: Final = Path("/sys/fs/cgroup")


class MemoryLimit:
    """A control group with a limit, for as long as the context lasts.

    Args:
        limit: Bytes.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        name = f"trainwatch-test-{uuid.uuid4().hex[:8]}"
        self._is_v1 = (_V1 / "memory.limit_in_bytes").exists()
        self.directory = (_V1 if self._is_v1 else _V2) / name

    def __enter__(self) -> MemoryLimit:
        self.directory.mkdir()
        try:
            (self.directory / ("memory.limit_in_bytes" if self._is_v1 else "memory.max")).write_text(str(self._limit))
        except OSError:
            self.directory.rmdir()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # The agent of a run that was killed ends by itself, some seconds later.
        for _ in range(300):
            try:
                self.directory.rmdir()
                return
            except OSError:
                time.sleep(0.1)
        raise TimeoutError(f"processes {self._procs().read_text().split()} do not leave {self.directory}")

    def around(self, command: list[str]) -> list[str]:
        """Returns a command that runs another one inside the group."""
        return ["/bin/sh", "-c", f'echo $$ > {self._procs()} && exec "$@"', "sh", *command]

    def oom_kills(self) -> int:
        """Returns how many processes the kernel has killed in the group."""
        name = "memory.oom_control" if self._is_v1 else "memory.events"
        lines = (self.directory / name).read_text().splitlines()
        return next((int(line.split()[1]) for line in lines if line.startswith("oom_kill ")), 0)

    def _procs(self) -> Path:
        return self.directory / "cgroup.procs"


def why_not() -> str:
    """Returns why no limit can be set here; empty when one can."""
    if os.name != "posix" or not _V2.is_dir():
        return "there are no control groups"
    try:
        with MemoryLimit(2**30):
            return ""
    except OSError as error:
        return f"no control group with a memory limit can be made: {error}"
