"""Rules: from events to findings and alerts. Pure judgement, shared by agent, server and back-tests.

What is public here is imported when it is first used: a training needs a few words of the rules, and not the rules.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from trainwatch.rules.base import Options, Rule
    from trainwatch.rules.engine import Engine
    from trainwatch.rules.registry import RULES

__all__ = ["RULES", "Engine", "Options", "Rule"]

_HOMES = {
    "RULES": "trainwatch.rules.registry",
    "Engine": "trainwatch.rules.engine",
    "Options": "trainwatch.rules.base",
    "Rule": "trainwatch.rules.base",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'trainwatch.rules' has no attribute {name!r}")
    from importlib import import_module

    value = globals()[name] = getattr(import_module(_HOMES[name]), name)
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
