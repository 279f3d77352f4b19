"""The language in which somebody wants to read sentences."""

from __future__ import annotations

from typing import Annotated

from fastapi import Depends, Request

from trainwatch.rules.wording import Language


def preferred(header: str) -> Language:
    """Chooses the language of sentences.

    Args:
        header: An ``Accept-Language`` header.
    """
    best: tuple[float, Language] = (0.0, "en")
    for part in header.split(","):
        tag, _, parameters = part.strip().partition(";")
        name = tag.strip().partition("-")[0].lower()
        quality = _quality(parameters)
        if name in ("en", "zh") and quality > best[0]:
            best = quality, ("zh" if name == "zh" else "en")
    return best[1]


def _quality(parameters: str) -> float:
    name, _, value = parameters.strip().partition("=")
    try:
        return float(value) if name.strip() == "q" else 1.0
    except ValueError:
        return 0.0


def _of_request(request: Request) -> Language:
    return preferred(request.headers.get("accept-language", ""))


LanguageDep = Annotated[Language, Depends(_of_request)]
