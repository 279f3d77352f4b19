"""What is looked after beside the training: the node's agent, and what went wrong with TrainWatch itself."""

from __future__ import annotations

from typing import Final

from trainwatch.settings import Settings
from trainwatch.training.identity import Identity
from trainwatch.training.launch import AgentProcess
from trainwatch.training.recorder import Recorder
from trainwatch.training.safety import Safety, harmless
from trainwatch.training.trouble import TroubleReport

_SECONDS: Final = 1.0


class Upkeep:
    """Looks after things between the steps.

    Args:
        settings: Address of the server and the like.
        identity: The run and node.
        recorder: Takes the reports, and has counts of its own to report.
        safety: Counts what was swallowed.
    """

    def __init__(self, settings: Settings, identity: Identity, recorder: Recorder, safety: Safety) -> None:
        self.safety = safety
        self._agent = AgentProcess(settings, identity, recorder.journals)
        self._trouble = TroubleReport(safety, recorder)
        self._looked = 0.0

    def look(self, moment: float) -> None:
        """Looks every second, and when there is trouble.

        Args:
            moment: Now, in Unix seconds.
        """
        if self._trouble.unreported or not 0 <= moment - self._looked < _SECONDS:
            self._looked = moment
            self._look(moment)

    @harmless
    def _look(self, moment: float) -> None:
        self._agent.ensure(moment)
        self._trouble.report(moment)

    def end(self, moment: float) -> None:
        """Reports what is left to report.

        Args:
            moment: Now, in Unix seconds.
        """
        self._trouble.report(moment, at_once=True)
