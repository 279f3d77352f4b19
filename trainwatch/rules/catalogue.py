"""What can be said of each rule without running it: what it sees, its options and what they take."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any, Literal

import msgspec
from msgspec import inspect

from trainwatch.events import Action
from trainwatch.rules.base import Options, Rule

Kind = Literal["yes or no", "number", "whole number", "choice", "text", "list"]


class OptionInfo(msgspec.Struct, frozen=True, kw_only=True):
    """An option of a rule.

    Attributes:
        name: As in ``trainwatch.toml``.
        kind: What it takes.
        default: Its value where nobody sets it.
        meaning: What it means, in a sentence.
        least: The smallest number it takes; None for no limit.
        above: It takes only numbers greater than this.
        most: The largest number it takes.
        choices: The values that it takes.
        common: Every rule has it.
    """

    name: str
    kind: Kind
    default: Any
    meaning: str = ""
    least: float | None = None
    above: float | None = None
    most: float | None = None
    choices: list[str] = []
    common: bool = False


class RuleInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A rule.

    Attributes:
        id: Its name.
        summary: What it sees, in a sentence.
        actions: What it may be told to do.
        options: What can be set of it, its own before those that every rule has.
    """

    id: str
    summary: str
    actions: list[Action]
    options: list[OptionInfo]


def describe(rules: Iterable[type[Rule[Any]]]) -> list[RuleInfo]:
    """Describes rules.

    Args:
        rules: Which.
    """
    return [
        RuleInfo(id=rule.id, summary=summary(rule), actions=list(rule.actions), options=_options(rule))
        for rule in rules
    ]


def summary(rule: type[Rule[Any]]) -> str:
    """Returns what a rule sees: the first paragraph of its documentation.

    Args:
        rule: Which.
    """
    return _plain((rule.__doc__ or "").strip().partition("\n\n")[0])


def _options(rule: type[Rule[Any]]) -> list[OptionInfo]:
    kind = rule.options_type
    meanings: dict[str, str] = {}
    for base in reversed(kind.__mro__):
        meanings.update(_attributes(base.__doc__ or ""))
    common = {field.name for field in msgspec.structs.fields(Options)}
    info = inspect.type_info(kind)
    assert isinstance(info, inspect.StructType)
    defaults = msgspec.to_builtins(kind())
    found = [
        _option(field, defaults[field.encode_name], meanings.get(field.name, ""), field.name in common, rule)
        for field in info.fields
    ]
    return sorted(found, key=lambda option: option.common)


def _option(field: inspect.Field, default: Any, meaning: str, common: bool, rule: type[Rule[Any]]) -> OptionInfo:
    kind: Kind = "text"
    limits: dict[str, Any] = {}
    choices: list[str] = []
    wanted = field.type
    if isinstance(wanted, inspect.BoolType):
        kind = "yes or no"
    elif isinstance(wanted, inspect.FloatType | inspect.IntType):
        kind = "number" if isinstance(wanted, inspect.FloatType) else "whole number"
        limits = {"least": wanted.ge, "above": wanted.gt, "most": wanted.le}
    elif isinstance(wanted, inspect.LiteralType):
        kind, choices = "choice", [str(value) for value in wanted.values]
        if field.name == "action":
            choices = list(rule.actions)
        elif set(choices) == {"info", "warning", "critical"}:
            choices = ["info", "warning", "critical"]
    elif isinstance(wanted, inspect.CollectionType | inspect.VarTupleType | inspect.TupleType):
        kind = "list"
    return OptionInfo(
        name=field.encode_name, kind=kind, default=default, meaning=meaning, choices=choices, common=common, **limits
    )


def _attributes(documentation: str) -> dict[str, str]:
    """Reads the section ``Attributes:`` of a docstring: name to meaning."""
    section = documentation.partition("Attributes:\n")[2]
    found: dict[str, str] = {}
    name = ""
    for line in section.splitlines():
        match = re.match(r"\s{4,8}(\w+): (.*)", line)
        if match and not line.startswith(" " * 9):
            name = match[1]
            found[name] = match[2]
        elif name and line.strip():
            found[name] += " " + line.strip()
        elif not line.strip():
            name = ""
    return {name: _plain(text).removesuffix(" In settings its name is for.") for name, text in found.items()}


def _plain(text: str) -> str:
    """Takes the markup of Python's documentation out of a text."""
    return re.sub(r"(:\w+:)?`+~?([^`]*)`+", r"\2", " ".join(text.split()))
