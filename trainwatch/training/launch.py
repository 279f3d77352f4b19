"""Starts the agent of this node, and starts it again should it die."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Final

import trainwatch
from trainwatch.settings import Settings
from trainwatch.training.identity import Identity

_CHECK_SECONDS: Final = 5.0
_LOG_FILE: Final = "agent.log"


class AgentProcess:
    """The agent as a child process in a session of its own, so that no Ctrl-C and no hang-up reaches it.

    Args:
        settings: Address of the server and the like.
        identity: The run and node to watch.
        journals: The folder of all journals.
    """

    def __init__(self, settings: Settings, identity: Identity, journals: Path) -> None:
        self._directory = journals / identity.run / identity.node
        self._command = [sys.executable, "-m", "trainwatch.agent"]
        self._command += ["--journals", str(journals), "--run", identity.run, "--node", identity.node]
        self._command += ["--server", settings.server]
        self._environment = {
            **os.environ,
            # The package may have been found through the working directory or a sys.path of the script's making.
            "PYTHONPATH": os.pathsep.join(
                filter(None, [str(Path(trainwatch.__file__).parent.parent), os.environ.get("PYTHONPATH")])
            ),
        }
        # One for all ranks of the node.
        self._wanted = settings.agent and identity.local_rank == 0
        self._process: subprocess.Popen[bytes] | None = None
        self._checked = 0.0

    def ensure(self, now: float) -> None:
        """Starts the agent if it is this rank's to start and isn't running; looks only every few seconds.

        Args:
            now: The time in seconds.
        """
        if not self._wanted:
            return
        if self._process is not None and 0 <= now - self._checked < _CHECK_SECONDS:
            return
        self._checked = now
        if self._process is None or self._process.poll() is not None:
            self._start()

    def _start(self) -> None:
        with open(self._directory / _LOG_FILE, "ab") as log:
            self._process = subprocess.Popen(
                self._command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd="/",
                env=self._environment,
                start_new_session=True,
            )
