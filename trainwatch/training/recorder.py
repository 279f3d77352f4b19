"""From an event to the journal: opens this rank's journal, appends, counts what could not be kept."""

from __future__ import annotations

import logging
import os
import tempfile
import time
from pathlib import Path
from typing import Final

from trainwatch import events, journal
from trainwatch.settings import Settings
from trainwatch.training.identity import Identity

logger = logging.getLogger("trainwatch")

_PROJECT_FILE: Final = "project"


class Recorder:
    """Writes the events of one rank.

    Args:
        settings: Says where journals are.
        identity: Says which run, node and rank this is.

    Raises:
        OSError: There is no place at all for a journal.

    Attributes:
        lost: Reason to number of events that could not be kept.
        unreported: ``lost`` has grown since it was last recorded itself.
    """

    def __init__(self, settings: Settings, identity: Identity) -> None:
        self.lost: dict[str, int] = {}
        self.unreported = False
        self.journals = settings.journals
        try:
            self.directory = self._create(settings, identity)
        except OSError as error:
            self.journals = Path(tempfile.gettempdir()) / f"trainwatch-{os.getuid()}" / "journal"
            self.directory = self._create(settings, identity)
            logger.warning(
                "TrainWatch can't write to %s (%s) and records to %s; set TRAINWATCH_HOME to a folder that lasts.",
                settings.journals,
                error.strerror,
                self.journals,
            )
        self.node_directory = self.directory.parent
        self._writer = journal.Writer(self.directory)

    def record(self, event: events.Event) -> None:
        """Appends an event. What the disk refuses is counted, and reported once.

        Args:
            event: What happened.
        """
        try:
            self._writer.append(events.encode(event))
        except journal.JournalFull as error:
            if not self.lost:
                logger.warning("TrainWatch can't record: %s. It counts what is lost and goes on.", error.strerror)
            self.unreported = True
            self.lost["journal not writable"] = self.lost.get("journal not writable", 0) + 1

    def close(self) -> None:
        """Closes the journal; what is in it stays."""
        self._writer.close()

    def _create(self, settings: Settings, identity: Identity) -> Path:
        node_directory = self.journals / identity.run / identity.node
        directory = journal.create_source(node_directory, f"rank{identity.rank}")
        project = node_directory / _PROJECT_FILE
        if not project.exists():
            journal.write_atomically(project, settings.project.encode())
        return directory


def now() -> float:
    """Returns the wall clock in Unix seconds: the one place of the training side that reads it."""
    return time.time()
