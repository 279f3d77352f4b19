"""Reports what went wrong with TrainWatch itself, to the run's page."""

from __future__ import annotations

from typing import Final

from trainwatch import events
from trainwatch.training.recorder import Recorder
from trainwatch.training.redaction import redact
from trainwatch.training.safety import Safety

_SECONDS: Final = 5.0
"""From one report to the next: it may go wrong at every step."""


class TroubleReport:
    """Records the counts of errors and losses when they have grown.

    Args:
        safety: Counts what was swallowed.
        recorder: Counts what could not be kept.
    """

    def __init__(self, safety: Safety, recorder: Recorder) -> None:
        self._safety = safety
        self._recorder = recorder
        self._reported = 0.0

    @property
    def unreported(self) -> bool:
        """Something is new since the last report."""
        return self._safety.unreported or self._recorder.unreported

    def report(self, moment: float, *, at_once: bool = False) -> None:
        """Records what is new.

        Args:
            moment: Now, in Unix seconds.
            at_once: Also when the last report was a moment ago.
        """
        if not self.unreported or (moment - self._reported < _SECONDS and not at_once):
            return
        self._reported = moment
        self._safety.unreported = self._recorder.unreported = False
        self._recorder.record(
            events.TroubleCounted(
                time=moment,
                errors=dict(self._safety.errors),
                lost=dict(self._recorder.lost),
                message=redact(self._safety.message),
            )
        )
