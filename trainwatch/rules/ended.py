"""A training came to a bad end: an exception ended it, or its process vanished without a word."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from trainwatch.events import FindingRaised, ProcessGone, RunEnded, Severity
from trainwatch.rules.base import Options, Rule

PROCESS_GONE: Final = "process_gone"
TRAINING_FAILED: Final = "training_failed"
RUN_LOST: Final = "run_lost"
"""Nothing is heard of a run: found by the server, as nobody on the run's own machines can tell."""

_ERROR_LENGTH: Final = 300
_INTERRUPTED: Final = "KeyboardInterrupt"


def brief(error: str) -> str:
    """Shortens an exception's type and message to what fits into a sentence: the first line, and not all of a long one.

    Args:
        error: ``TypeName: message``, as :class:`~trainwatch.events.RunEnded` has it.
    """
    line = next((line.strip() for line in error.splitlines() if line.strip()), "")
    line = line.removesuffix(":")  # an exception without a message
    return line if len(line) <= _ERROR_LENGTH else f"{line[: _ERROR_LENGTH - 1]}…"


class ProcessVanished(Rule[Options]):
    """A rank's process is no more, and its journal does not say why."""

    id = PROCESS_GONE
    listens = (ProcessGone,)
    actions = ("notify",)

    def observe(self, event: ProcessGone, rank: int | None) -> Iterator[FindingRaised]:
        """See :class:`~trainwatch.rules.base.Rule`."""
        yield self.finding(
            event,
            "critical",
            rank=event.rank,
            # The step once more: an alert merges the steps of its findings, its sentence is about the newest one.
            evidence={"step": event.step, "phase": event.phase, "oom_kills": event.oom_kills},
        )


class TrainingFailed(Rule[Options]):
    """An exception ended a rank's training."""

    id = TRAINING_FAILED
    listens = (RunEnded,)
    actions = ("notify",)

    def observe(self, event: RunEnded, rank: int | None) -> Iterator[FindingRaised]:
        """See :class:`~trainwatch.rules.base.Rule`."""
        if event.outcome == "failed":
            # Somebody who pressed Ctrl-C knows; nobody has to be woken for it.
            severity: Severity = "info" if event.error.startswith(_INTERRUPTED) else "critical"
            yield self.finding(event, severity, rank=rank, evidence={"step": event.step, "error": brief(event.error)})
