"""Sentences about versions that are known to harm trainings."""

from __future__ import annotations

from typing import Any, Final

from trainwatch.diagnosis.known import KNOWN
from trainwatch.rules.wording.words import Wordings

_ENTRIES: Final = {entry.id: entry for entry in KNOWN}


def _versions(p: dict[str, Any], joint: str) -> str:
    return joint.join(f"{name} {version}" for name, version in p["versions"].items())


def _known(p: dict[str, Any], step: int | None, rank: int | None) -> str:
    entry = _ENTRIES[p["known"]]
    verb = "are" if len(p["versions"]) > 1 else "is"
    who = "" if entry.evidence == "maintainers" else ", as users report"
    return (
        f"{_versions(p, ' with ')} {verb} known for this{who}: {entry.what}. {_capital(entry.remedy)} ({entry.source})."
    )


def _known_zh(p: dict[str, Any], step: int | None, rank: int | None) -> str:
    entry = _ENTRIES[p["known"]]
    return f"{_versions(p, ' 与 ')} 已知会导致此问题：{entry.what_zh}。{entry.remedy_zh}（{entry.source}）。"


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


WORDINGS: Final[Wordings] = {"known_versions": (_known, _known_zh)}
