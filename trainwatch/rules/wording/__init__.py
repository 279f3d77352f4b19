"""The one catalogue of sentences: a finding's rule and evidence in, English or Chinese out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Literal

from trainwatch.rules.wording import curves, ended, forecast, known, memory, nonfinite, pace
from trainwatch.rules.wording.words import Wordings

Language = Literal["en", "zh"]

WORDINGS: Final[Wordings] = {
    **nonfinite.WORDINGS,
    **curves.WORDINGS,
    **ended.WORDINGS,
    **memory.WORDINGS,
    **known.WORDINGS,
    **pace.WORDINGS,
    **forecast.WORDINGS,
}


def sentence(
    rule: str,
    parameters: Mapping[str, Any],
    *,
    language: str = "en",
    step: int | None = None,
    rank: int | None = None,
) -> str:
    """Says a finding in one sentence.

    Never raises: evidence written by another version may lack a field, and a sentence less is better than a page less.

    Args:
        rule: The rule's id.
        parameters: The finding's evidence.
        language: ``"en"`` or ``"zh"``; anything else gives English.
        step: The step concerned.
        rank: The rank concerned.
    """
    wording = WORDINGS.get(rule)
    if wording is None:
        return rule.replace("_", " ")
    if rank is None:
        rank = parameters.get("culprit")
    try:
        return wording[1 if language == "zh" else 0](dict(parameters), step, rank)
    except (LookupError, TypeError, ValueError, ArithmeticError, AttributeError):
        return rule.replace("_", " ")
