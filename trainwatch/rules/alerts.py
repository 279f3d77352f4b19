"""From findings to alerts: pending, firing, resolved. Pure, as the rules are; time is that of the events."""

from __future__ import annotations

import msgspec
from msgspec.structs import replace

from trainwatch.events import AlertState, FindingRaised, Severity
from trainwatch.rules.base import SEVERITIES, Options

Fingerprint = tuple[str, int | None, str]
"""Rule, rank and key."""


class Alert(msgspec.Struct):
    """What is known of one fingerprint while it matches.

    Attributes:
        state: Pending or firing.
        since: When it began to match.
        said_at: When it was last reported.
        severity: The worst that was reported.
        finding: The newest finding.
        hold: How long it must match before it fires.
    """

    state: AlertState
    since: float
    said_at: float
    severity: Severity
    finding: FindingRaised
    hold: float


def fingerprint(finding: FindingRaised) -> Fingerprint:
    """Returns what makes findings of a run one alert."""
    return finding.rule, finding.rank, finding.key


class Alerts:
    """The alerts of one run that are pending or firing."""

    def __init__(self) -> None:
        self.open: dict[Fingerprint, Alert] = {}
        self._pending: set[Fingerprint] = set()

    @property
    def has_pending(self) -> bool:
        """Whether time alone can make something fire."""
        return bool(self._pending)

    def take(self, finding: FindingRaised, options: Options) -> FindingRaised | None:
        """Takes what a rule says.

        Args:
            finding: A match (state ``"firing"``), or the end of one (``"resolved"``).
            options: The rule's.

        Returns:
            What is to be reported: the finding with its state, severity and action; None for nothing new.
        """
        name = fingerprint(finding)
        alert = self.open.get(name)
        if finding.state == "resolved":
            if alert is None:
                return None
            del self.open[name]
            self._pending.discard(name)
            return replace(
                finding,
                severity=alert.severity,
                step=alert.finding.step if finding.step is None else finding.step,
                parameters=finding.parameters or alert.finding.parameters,
            )
        if SEVERITIES[finding.severity] > SEVERITIES[options.at_most]:
            finding = replace(finding, severity=options.at_most)
        acts = options.action != "notify" and SEVERITIES[finding.severity] >= SEVERITIES[options.act_at]
        if acts:
            finding = replace(finding, action=options.action)
        if alert is None:
            state: AlertState = "pending" if options.hold > 0 else "firing"
            self.open[name] = Alert(state, finding.time, finding.time, finding.severity, finding, options.hold)
            if state == "firing":
                return finding
            self._pending.add(name)
            return replace(finding, state=state, action="notify")
        worse = SEVERITIES[finding.severity] > SEVERITIES[alert.severity]
        acts_now = acts and alert.finding.action == "notify"
        alert.finding = finding
        if alert.state == "pending":
            alert.since = min(alert.since, finding.time)
            return self._fire(name, alert, finding.time) if finding.time - alert.since >= alert.hold else None
        if not worse and not acts_now and 0 <= finding.time - alert.said_at < options.repeat:
            return None
        return self._say(alert, finding, finding.time)

    def advance(self, time: float) -> list[FindingRaised]:
        """Lets time pass: what has been pending for long enough fires.

        Args:
            time: Of the newest event.
        """
        if not self._pending:
            return []
        for name in self._pending:
            # A clock that was set back must not make a match wait until the clock is there again.
            self.open[name].since = min(self.open[name].since, time)
        due = [name for name in self._pending if time - self.open[name].since >= self.open[name].hold]
        return [self._fire(name, self.open[name], time) for name in sorted(due, key=str)]

    def forget(self, rule: str, time: float) -> list[FindingRaised]:
        """Drops what a rule has found; it was turned off.

        Args:
            rule: Its id.
            time: When.

        Returns:
            The ends of its alerts: nobody else will ever say that they are over.
        """
        gone = [name for name in self.open if name[0] == rule]
        self._pending.difference_update(gone)
        return [self._end(self.open.pop(name), time) for name in gone]

    @staticmethod
    def _end(alert: Alert, time: float) -> FindingRaised:
        return replace(alert.finding, time=time, severity=alert.severity, state="resolved", action="notify")

    def _fire(self, name: Fingerprint, alert: Alert, time: float) -> FindingRaised:
        alert.state = "firing"
        self._pending.discard(name)
        return self._say(alert, replace(alert.finding, time=time), time)

    @staticmethod
    def _say(alert: Alert, finding: FindingRaised, time: float) -> FindingRaised:
        alert.said_at = time
        if SEVERITIES[finding.severity] > SEVERITIES[alert.severity]:
            alert.severity = finding.severity
        return finding
