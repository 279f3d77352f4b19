"""The agent's own journal: what it saw and found goes the same way to the server as what the ranks record."""

from __future__ import annotations

from pathlib import Path

from trainwatch import events, journal
from trainwatch.agent.trouble import Trouble


class Recorder:
    """Writes a source ``agent@NODE~…``; the source is made with the first event.

    Args:
        node_directory: ``journals/RUN/NODE``.
        trouble: Where events are counted that the disk did not take.
    """

    def __init__(self, node_directory: Path, trouble: Trouble) -> None:
        self._node_directory = node_directory
        self._trouble = trouble
        self._writer: journal.Writer | None = None
        self.source = ""

    def record(self, event: events.Event) -> None:
        """Appends an event, or counts it as lost."""
        with self._trouble.guard("recording"):
            payload = events.encode(event)
            try:
                self._open().append(payload)
            except OSError as error:
                self._trouble.lose("journal not writable")
                self._trouble.say("journal", f"cannot record: {error}")

    def close(self) -> None:
        """Closes the journal; what is in it stays."""
        if self._writer:
            self._writer.close()

    def _open(self) -> journal.Writer:
        if self._writer is None:
            # An agent that starts again makes a new source, as every writer does.
            directory = journal.create_source(self._node_directory, f"agent@{self._node_directory.name}")
            self.source = directory.name
            self._writer = journal.Writer(directory)
        return self._writer
