"""Carries out what findings ask for: a halt, a checkpoint or a word becomes a command in the node's control file."""

from __future__ import annotations

from typing import Final, Literal

from trainwatch.agent.control import ControlFile
from trainwatch.events import Action, FindingRaised, Severity
from trainwatch.rules.alerts import Fingerprint, fingerprint
from trainwatch.shipment import Command, local_id

_SAID_THERE: Final = frozenset({"nonfinite_loss", "nonfinite_gradient", "training_failed", "process_gone"})
"""What the training's log says by itself, or cannot say any more."""
CURRENT_SECONDS: Final = 5.0
"""A finding of so little age is carried out although there is more to read: what is left may never end."""


class Actions:
    """What rules want done with a run, one command for each alert.

    What they only warn of is said in the training's own log, once for each severity.

    It has no memory beyond the journals: an agent that starts again sees all findings anew, and as a finding gives its
    command the same id again, the control file and the callback know it.

    Args:
        control: The node's control file.
        run: The run's id.
        node: The node's name.
    """

    def __init__(self, control: ControlFile, run: str, node: str) -> None:
        self._control = control
        self._run = run
        self._node = node
        self._acted: dict[Fingerprint, Action] = {}
        self._said: set[tuple[Fingerprint, Severity]] = set()
        self._waiting: dict[Fingerprint, Command] = {}

    def begin(self) -> None:
        """A training begins: what was asked of the one before it was not meant for this one."""
        self._acted.clear()
        self._said.clear()
        self._waiting.clear()

    def take(self, finding: FindingRaised) -> None:
        """Takes a finding; :meth:`carry_out` then writes what it asks for.

        Args:
            finding: As the engine reports it.
        """
        name = fingerprint(finding)
        if finding.state == "resolved":
            self._acted.pop(name, None)
            self._waiting.pop(name, None)
        elif finding.state == "firing" and finding.action in ("halt", "checkpoint"):
            # A halt may follow a checkpoint: the evidence became worse, or somebody set the rule anew.
            if self._acted.get(name) not in (finding.action, "halt"):
                self._acted[name] = finding.action
                self._waiting[name] = self._command(finding, "halt" if finding.action == "halt" else "checkpoint")
        elif finding.state == "firing" and self._wants_to_be_said(finding):
            self._said.add((name, finding.severity))
            self._waiting[name] = self._command(finding, "say")

    def _wants_to_be_said(self, finding: FindingRaised) -> bool:
        name = fingerprint(finding)
        news = (name, finding.severity) not in self._said and name not in self._waiting
        return news and finding.severity != "info" and finding.rule not in _SAID_THERE

    def _command(self, finding: FindingRaised, action: Literal["halt", "checkpoint", "say"]) -> Command:
        return Command(
            id=local_id(self._run, self._node, fingerprint(finding), finding.time, finding.step, action),
            run=self._run,
            action=action,
            rule=finding.rule,
            parameters=finding.parameters,
            rank=finding.rank,
            step=finding.step,
            time=finding.time,
        )

    def carry_out(self, now: float, *, is_read: bool) -> None:
        """Writes the commands that wait.

        Args:
            now: Unix time.
            is_read: All journals are read to their ends; before that, what was found may have been resolved since.

        Raises:
            OSError: The control file cannot be written; the next call tries again.
        """
        for name, command in list(self._waiting.items()):
            if is_read or now - command.time < CURRENT_SECONDS:
                self._control.add(command)
                del self._waiting[name]
