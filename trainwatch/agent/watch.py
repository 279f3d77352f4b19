"""Reads a folder's journals as they grow: keeps track of the ranks, evaluates the rules, notes who is gone."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Final

from trainwatch import events
from trainwatch.agent.act import Actions
from trainwatch.agent.evaluate import Evaluator, already_recorded
from trainwatch.agent.ranks import Ranks, RankState
from trainwatch.agent.record import Recorder
from trainwatch.agent.tail import Tail
from trainwatch.agent.trouble import Trouble
from trainwatch.events import FindingRaised, ProcessGone, RuleSettings, RulesSet, RunEnded, RunStarted, Sampled
from trainwatch.rules.alerts import Fingerprint, fingerprint

_AT_ONCE: Final = 2000
_NEAR_SECONDS: Final = 20.0


class Watch:
    """What one process knows about a run on a node.

    Args:
        node_directory: ``journals/RUN/NODE``.
        recorder: Where findings are written.
        trouble: Counts our own faults.
        actions: Carries out what findings ask for; None where that is another's.

    Raises:
        OSError: The journals cannot be read.
    """

    def __init__(
        self, node_directory: Path, recorder: Recorder, trouble: Trouble, actions: Actions | None = None
    ) -> None:
        self.ranks = Ranks()
        self._recorder = recorder
        self._trouble = trouble
        self._actions = actions
        recorded = already_recorded(node_directory)
        self._gone = recorded.gone
        self._evaluator = Evaluator(trouble, recorded.findings)
        self._tail = Tail(node_directory)
        self._rules: RuleSettings = {}
        self.is_urgent = False
        self._ends: dict[Fingerprint, float] = {}

    def scan(self) -> None:
        """Looks for new sources.

        Raises:
            OSError: The folder is gone.
        """
        for source in self._tail.scan(except_for=self._recorder.source):
            self.ranks.add(source)

    def read(self) -> bool:
        """Reads on in all journals, a bounded step.

        Returns:
            Whether there may be more.

        Raises:
            OSError: A journal cannot be read.
        """
        taken = self._tail.take(_AT_ONCE)
        for source, event in taken:
            self.ranks.observe(source, event)
            if isinstance(event, RunStarted | RunEnded):
                self.is_urgent = True
            if isinstance(event, RulesSet):
                self._rules = event.rules
            if isinstance(event, RunStarted) and self._actions is not None:
                self._actions.begin()
            # What an earlier agent sampled belongs to the rank that it names.
            self.evaluate(event, event.rank if isinstance(event, Sampled | ProcessGone) else source.rank)
        return len(taken) == _AT_ONCE

    def evaluate(self, event: events.AnyEvent, rank: int | None) -> None:
        """Shows an event to the rules and records what they find."""
        for finding, is_new in self._evaluator.observe(event, rank):
            if is_new:
                self._recorder.record(finding)
                self.is_urgent = True
            self._note_end(finding)
            if self._actions is not None:
                self._actions.take(finding)

    def is_near_end(self, now: float) -> bool:
        """Tells whether a forecast says that memory ends within seconds, so that each of them counts.

        Args:
            now: Unix time.
        """
        return any(0 <= end - now < _NEAR_SECONDS for end in self._ends.values())

    def _note_end(self, finding: FindingRaised) -> None:
        left = finding.parameters.get("seconds_left")
        if finding.state == "resolved":
            self._ends.pop(fingerprint(finding), None)
        elif isinstance(left, int | float):
            self._ends[fingerprint(finding)] = finding.time + left

    def record(self, event: events.AnyEvent, rank: int | None) -> None:
        """Records an event of the agent's own and shows it to the rules."""
        if isinstance(event, FindingRaised):
            raise ValueError("findings come from the rules")
        self._recorder.record(event)
        self.evaluate(event, rank)

    def set_rules(self, rules: RuleSettings | None, time: float) -> None:
        """Takes the project's settings of rules; where they are new, they are recorded and hold from here on.

        Args:
            rules: As the server told them; None when it did not.
            time: Now, in Unix seconds.
        """
        if rules is None or rules == self._rules:
            return
        self._rules = rules
        self.record(RulesSet(time=time, rules=rules), None)
        for problem in self._evaluator.rejected.values():
            self._trouble.say("rules", f"the server's settings are for another version: {problem}")

    def bury(self, state: RankState, time: float, oom_kills: int = 0) -> bool:
        """Notes that a rank's process is gone, unless its journal says that it ended or it was noted before.

        Args:
            state: The rank. Everything that it wrote must have been read.
            time: When the process was seen to be gone, in Unix seconds.
            oom_kills: What the OOM killer took in its cgroup.

        Returns:
            Whether that is news.
        """
        if state.over:
            return False
        state.over = True
        if self._tail.torn(state.source.name):
            self._trouble.lose("torn record at the end of a journal")
        if self._is_noted(state):
            return False
        gone = state.gone(max(time, state.last_time), oom_kills)  # whatever the clock does: not before it lived
        self._gone[gone.rank, gone.pid].append(gone.time)
        self.record(gone, gone.rank)
        self.is_urgent = True
        return True

    def _is_noted(self, state: RankState) -> bool:
        """Tells whether the end of a rank's process is recorded: after its begin, before that of the next one."""
        begin, pid = _life(state)
        same = [other for other in self.ranks.states.values() if other.rank == state.rank and _life(other)[1] == pid]
        next_begin = min((at for other in same if (at := _life(other)[0]) > begin), default=math.inf)
        return any(begin <= at < next_begin for at in self._gone[state.rank, pid])


def _life(state: RankState) -> tuple[float, int]:
    """Returns when a rank's process began to train, and its id."""
    return (state.started.time, state.started.pid) if state.started else (-math.inf, 0)
