"""What a training script and its ``trainwatch.toml`` set of the rules, and what that means for the guard."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from trainwatch import configfile
from trainwatch.events import Policy, RuleSettings
from trainwatch.rules.nonfinite import NONFINITE_GRADIENT, NONFINITE_LOSS
from trainwatch.rules.settings import accepted, merged
from trainwatch.settings import Settings

_GUARDED: Final = (NONFINITE_LOSS, NONFINITE_GRADIENT)
_POLICIES: Final[dict[str, Policy]] = {"halt": "halt", "skip": "protect", "notify": "record"}
"""Action of a rule to the guard's policy, the strictest first."""
_ACTIONS: Final = {policy: action for action, policy in _POLICIES.items()}


def collect(given: Mapping[str, Any] | None, settings: Settings, directory: Path) -> tuple[RuleSettings, list[str]]:
    """Collects the settings of rules; code goes before the file, option by option.

    Args:
        given: What the script gave the callback.
        settings: Of this process; they may name a file.
        directory: Where the training was started.

    Returns:
        What holds, and a sentence for each thing that is wrong.
    """
    problems: list[str] = []
    from_file: RuleSettings = {}
    path = configfile.find(settings.config, directory)
    if path is not None:
        try:
            content, problems = configfile.read(path)
        except configfile.ConfigError as error:
            problems = [str(error)]
        else:
            from_file, wrong = _accepted(content)
            problems += [f"{path}: {problem}" for problem in wrong]
    from_code, wrong = _accepted(given or {})
    return merged(from_file, from_code), problems + wrong


def _accepted(settings: Any) -> tuple[RuleSettings, list[str]]:
    if settings == {}:
        return {}, []
    from trainwatch.rules import RULES  # to import the rules takes longer than all else here, and few set any

    return accepted(settings, RULES)


def policy_for(given: Policy | None, rules: RuleSettings) -> tuple[Policy, RuleSettings]:
    """Decides what the guard does about non-finite steps.

    The guard is one for loss and gradients, so of two different actions the stricter one holds.

    Args:
        given: What the script says (``on_nonfinite``); it goes before the rules' actions.
        rules: The settings of rules.

    Returns:
        The policy, and the settings as they are then: both rules say what the guard does, where anybody said it.
    """
    wanted = {rules.get(rule, {}).get("action") for rule in _GUARDED}
    policy = given or next((policy for action, policy in _POLICIES.items() if action in wanted), None)
    if policy is None:
        return "protect", rules
    return policy, merged(rules, {rule: {"action": _ACTIONS[policy]} for rule in _GUARDED})
