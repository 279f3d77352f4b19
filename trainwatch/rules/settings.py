"""Options of rules, as people write them: checked, with a sentence for what is wrong."""

from __future__ import annotations

import difflib
import math
from collections.abc import Iterable, Mapping
from typing import Any, Final

import msgspec

from trainwatch.events import RuleSettings
from trainwatch.rules.base import Options, Rule

_LARGEST: Final = 2**53
"""No message between the processes, and no browser, holds a larger whole number."""


class SettingsError(ValueError):
    """Options that mean nothing; the message names the place and says what it takes."""


def options_of(rule: type[Rule[Any]], settings: Mapping[str, Any]) -> Options:
    """Returns a rule's options with those set that are given.

    Raises:
        SettingsError: An option is unknown, or a value does not fit.
    """
    place = f"rules.{rule.id}"
    known = set(rule.options_type.__struct_encode_fields__)
    for name in settings:
        if name not in known:
            raise SettingsError(
                f"{place}.{name} is no option{_meant(str(name), known)}. It takes {', '.join(sorted(known))}."
            )
    for name, value in settings.items():
        if not isinstance(value, bool | int | float | str | list | tuple | None):
            raise SettingsError(f"{place}.{name}: a plain value is wanted, and this is a {type(value).__name__}.")
        if isinstance(value, int) and abs(value) > _LARGEST:
            raise SettingsError(f"{place}.{name}: the number is too large.")
        if isinstance(value, float) and not math.isfinite(value):
            raise SettingsError(f"{place}.{name}: a finite number is wanted, and this is {value}.")
    try:
        options = msgspec.convert(dict(settings), rule.options_type)
    except msgspec.ValidationError as error:
        text = str(error).replace(" - at `$.", f" - at `{place}.")
        raise SettingsError(f"{place}: {text}") from None
    if options.action not in rule.actions:
        takes = ", ".join(f'"{action}"' for action in rule.actions)
        raise SettingsError(f'{place}.action = "{options.action}" is not possible for this rule: it takes {takes}.')
    return options


def check(settings: Any, rules: Iterable[type[Rule[Any]]]) -> RuleSettings:
    """Checks the options of rules.

    Args:
        settings: What somebody wrote: rule id to options.
        rules: The rules there are.

    Returns:
        The same.

    Raises:
        SettingsError: There is no such rule or option, or a value does not fit.
    """
    known = {rule.id: rule for rule in rules}
    if not isinstance(settings, Mapping):
        raise SettingsError(f"rules: a table of rules is wanted, and this is {settings!r}.")
    for name, options in settings.items():
        if name not in known:
            raise SettingsError(f"rules.{name} is no rule{_meant(str(name), known)}; `trainwatch rules` lists them.")
        if not isinstance(options, Mapping):
            raise SettingsError(f"rules.{name}: a table of options is wanted, and this is {options!r}.")
        options_of(known[name], options)
    return {name: dict(options) for name, options in settings.items()}


def accepted(settings: Any, rules: Iterable[type[Rule[Any]]]) -> tuple[RuleSettings, list[str]]:
    """Takes of the options of rules what means something.

    Args:
        settings: What somebody wrote: rule id to options.
        rules: The rules there are.

    Returns:
        The options that hold, and a sentence for each that does not.
    """
    known = tuple(rules)
    good: RuleSettings = {}
    problems: list[str] = []
    if not isinstance(settings, Mapping):
        try:
            check(settings, known)
        except SettingsError as error:
            problems.append(str(error))
        return {}, problems
    for name, options in settings.items():
        single = options.items() if isinstance(options, Mapping) and options else [(None, options)]
        for option, value in single:
            one = options if option is None else {option: value}
            try:
                check({name: one}, known)
            except SettingsError as error:
                if str(error) not in problems:
                    problems.append(str(error))
                continue
            good.setdefault(name, {}).update(one)
    return good, problems


def merged(*layers: Mapping[str, Mapping[str, Any]]) -> RuleSettings:
    """Lays settings over each other, option by option; a later one goes before an earlier one."""
    result: RuleSettings = {}
    for layer in layers:
        for name, options in layer.items():
            result[name] = {**result.get(name, {}), **options}
    return result


def _meant(name: str, known: Iterable[str]) -> str:
    near = difflib.get_close_matches(name, list(known), 1)
    return f" (did you mean {near[0]}?)" if near else ""
