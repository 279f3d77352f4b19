"""Makes values plain and free of secrets before they are recorded: nothing downstream ever sees one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Any, Final

from trainwatch.training.safety import Safety
from trainwatch.training.scrub import HIDDEN, hides, learn, scrub

_LONGEST: Final = 2000
_LONGEST_TRACE: Final = 20_000
_READ: Final = 200_000
"""What is looked at of a text, half of it at each end; far more than is kept."""
_DEEPEST: Final = 12
_MOST_ITEMS: Final = 2000
_safety = Safety()


def redact(value: Any, key: str = "") -> Any:
    """Makes a value plain (what MessagePack can hold) and free of secrets. Never raises.

    Args:
        value: Anything; unknown types become their text.
        key: The name it stands under; a name that speaks of a secret hides the whole value.
    """
    return _redact(value, key, 0)


def redact_trace(trace: str) -> str:
    """Takes the secrets out of a traceback; a very long one loses its middle, since both ends tell something.

    Args:
        trace: The traceback as text.
    """
    return _clean(trace, _LONGEST_TRACE)


def redact_command(arguments: Sequence[str]) -> str:
    """Writes a command line without its secrets.

    Args:
        arguments: The program and its arguments, as in ``sys.argv``.
    """
    parts: list[str] = []
    expected = ""
    for argument in islice(arguments, _MOST_ITEMS):
        option, separator, value = argument.partition("=")
        is_name = all(letter.isalnum() or letter in "-_.+/" for letter in option)
        if expected and not argument.startswith("--"):
            learn(argument)
            parts.append(HIDDEN)
            expected = ""
            continue
        expected = ""
        if separator and is_name and hides(option, value):
            learn(value)
            parts.append(f"{option}={HIDDEN}")
        else:
            if not separator and argument.startswith("-") and is_name and hides(argument, "something"):
                expected = argument
            parts.append(scrub(argument))
    # Once more as a whole: some secrets are seen only beside their neighbours ("-u user:password").
    return _clean(" ".join(parts), _LONGEST)


def learn_secrets(environment: Mapping[str, str]) -> None:
    """Remembers the secrets among environment variables, so that they are hidden wherever they come again.

    Args:
        environment: Variables, of which only those with a name that speaks of a secret are looked at.
    """
    for name, value in environment.items():
        if hides(name, value):
            learn(value)


def _redact(value: Any, key: str, depth: int) -> Any:
    if value is None or isinstance(value, bool):
        return value
    if key and hides(key, value if isinstance(value, str | int | float) else "something"):
        learn(value)
        return HIDDEN
    if isinstance(value, float):
        return float(value)  # numpy's float64 is a float, too, but none that MessagePack knows
    if isinstance(value, int):
        return int(value) if -(2**63) <= value < 2**63 else _text(value)
    if isinstance(value, Mapping | list | tuple | set | frozenset):
        if depth >= _DEEPEST:
            return "…"
        with _safety.guard("redaction of a container"):  # a mapping of somebody's making
            return _mapping(value, depth) if isinstance(value, Mapping) else _sequence(value, depth)
        return f"<{type(value).__name__}>"
    return _text(value)


def _mapping(value: Mapping[Any, Any], depth: int) -> dict[str, Any]:
    # {"name": "HF_TOKEN", "value": "…"}, as containers are told their variables
    named = str(value.get("name") or value.get("key") or "") if "value" in value else ""
    plain: dict[str, Any] = {}
    for name, item in islice(value.items(), _MOST_ITEMS):
        text = _text(name)
        plain[text] = _redact(item, named if text == "value" and named else text, depth + 1)
    if len(value) > _MOST_ITEMS:
        plain["…"] = f"({len(value) - _MOST_ITEMS} more)"
    return plain


def _sequence(value: Any, depth: int) -> list[Any]:
    plain: list[Any] = []
    before = ""
    # ("token", "…") and ["--token", "…"]: a name, and then what it names
    pair = isinstance(value, tuple) and len(value) == 2
    for item in islice(value, _MOST_ITEMS):
        plain.append(_redact(item, before, depth + 1))
        is_name = isinstance(item, str) and len(item) < 80 and (item.startswith("-") or (pair and len(plain) == 1))
        before = item if is_name and "=" not in item else ""
    if len(value) > _MOST_ITEMS:
        plain.append(f"… ({len(value) - _MOST_ITEMS} more)")
    return plain


def _text(value: Any) -> str:
    if hasattr(type(value), "data_ptr"):  # a tensor's text may be long, and asking a device for it stops everything
        return f"<{type(value).__name__} {tuple(value.shape)}>"
    with _safety.guard("redaction of a value"):
        return _clean(str(value), _LONGEST)
    return f"<{type(value).__name__}>"


def _clean(text: str, longest: int) -> str:
    if len(text) > _READ:
        text = text[: _READ // 2] + "\n" + text[-_READ // 2 :]
    # MessagePack holds UTF-8 only: no half of a surrogate pair.
    return _shorten(scrub(text.encode("utf-8", "replace").decode()), longest)


def _shorten(text: str, longest: int) -> str:
    if len(text) <= longest:
        return text
    half = longest // 2
    return f"{text[:half]}… ({len(text) - 2 * half} characters left out) …{text[-half:]}"
