"""``trainwatch rules``: the rules there are, and their options."""

from __future__ import annotations

import argparse
import difflib
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from trainwatch.cli.terminal import Mistake, paint, say
from trainwatch.events import RuleSettings
from trainwatch.rules import RULES
from trainwatch.rules.base import Options
from trainwatch.rules.catalogue import RuleInfo, describe


def add(commands: Any, home: argparse.ArgumentParser) -> None:
    """Adds the command to the parser."""
    parser = commands.add_parser("rules", help="list the rules: what each sees, and its options")
    parser.add_argument("names", nargs="*", metavar="RULE", help="only these (default: all)")
    parser.add_argument("--format", choices=("text", "json"), default="text", help="how to print (default: text)")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Lists them."""
    names = chosen(options.names)
    rules = describe(rule for rule in RULES if not names or rule.id in names)
    if options.format == "json":
        for rule in rules:
            say(json.dumps(_described(rule)))
        return 0
    for rule in rules:
        say(f"{paint('1', rule.id)}  {_actions(rule)}")
        say(f"  {rule.summary}")
        for option in rule.options:
            if not option.common:
                say(f"    {option.name} = {json.dumps(option.default)}  {option.meaning}")
        say("")
    say("Of every rule:")
    (bare, *_) = describe(rule for rule in RULES if rule.options_type is Options)
    for option in bare.options:
        default = "" if option.name == "action" else f" = {json.dumps(option.default)}"
        say(f"    {option.name}{default}  {option.meaning}")
    say("Set them in trainwatch.toml, under [rules.NAME]; each rule has a page in docs/rules.")
    return 0


def chosen(names: Iterable[str]) -> frozenset[str]:
    """Checks names of rules.

    Raises:
        Mistake: There is no rule of that name.
    """
    known = [rule.id for rule in RULES]
    for name in names:
        if name not in known:
            near = difflib.get_close_matches(name, known, 1)
            meant = f" (did you mean {near[0]}?)" if near else ""
            raise Mistake(f"there is no rule {name!r}{meant}; `trainwatch rules` lists them")
    return frozenset(names)


def settings_in(path: Path | None) -> RuleSettings:
    """Reads options of rules from a file like ``trainwatch.toml``.

    Raises:
        Mistake: It cannot be read, or something in it means nothing.
    """
    if path is None:
        return {}
    from trainwatch import configfile
    from trainwatch.rules.settings import SettingsError, check

    try:
        found, problems = configfile.read(path)
        if problems:
            raise Mistake(problems[0])
        return check(found, RULES)
    except (configfile.ConfigError, SettingsError) as error:
        raise Mistake(str(error)) from None


def _described(rule: RuleInfo) -> dict[str, Any]:
    options = {option.name: option.default for option in rule.options}
    told = {"rule": rule.id, "severity": _worst(rule), "sees": rule.summary}
    return {**told, "actions": rule.actions, "options": options}


def _actions(rule: RuleInfo) -> str:
    """Says what a rule does by default, and what else it can be told to do."""
    default = next(str(option.default) for option in rule.options if option.name == "action")
    others = [action for action in rule.actions if action != default]
    return f"{default} (or {', '.join(others)})" if others else default


def _worst(rule: RuleInfo) -> str:
    """Returns the highest severity that a rule gives by default."""
    return next(str(option.default) for option in rule.options if option.name == "at_most")
