"""What rules say, and what they are told."""

from __future__ import annotations

from typing import Any

from trainwatch.events.base import Action, AlertState, Event, RuleSettings, Severity


class FindingRaised(Event, frozen=True, kw_only=True, tag="finding_raised"):
    """A rule matched, or matches no longer.

    Its sentence is made from `rule` and `parameters` by :mod:`trainwatch.rules.wording`. The rule, the rank and `key`
    are its fingerprint within the run: findings with the same one are one alert.

    Attributes:
        rank: The rank concerned, or None for the run as a whole.
        parameters: The evidence; plain values under the names that the wording uses.
        key: What else tells it from other findings of its rule: a device, a metric; mostly empty.
        state: ``"pending"`` while it has not matched for as long as the rule's ``for`` wants, ``"firing"``, or
            ``"resolved"``.
        action: What is done about it.
    """

    rule: str
    severity: Severity
    step: int | None = None
    rank: int | None = None
    parameters: dict[str, Any] = {}
    key: str = ""
    state: AlertState = "firing"
    action: Action = "notify"


class RulesSet(Event, frozen=True, kw_only=True, tag="rules_set"):
    """The project's options of rules, as the server told them; they hold from here on.

    What the training script or its ``trainwatch.toml`` sets goes before them.

    Attributes:
        rules: All of them, also those that were set before.
    """

    rules: RuleSettings = {}
