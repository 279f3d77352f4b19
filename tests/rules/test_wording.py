"""Sentences are made of evidence that other versions wrote: whatever it is, a page must not fail for it."""

from __future__ import annotations

import contextlib
import math
from collections import defaultdict
from typing import Any

import pytest

from trainwatch.rules.wording import WORDINGS, sentence

ODD: tuple[Any, ...] = (None, math.nan, math.inf, -1, 10**400, "x", "", [], {}, [None], [{"kind": "none such"}])


class Anything(defaultdict[str, Any]):
    """Evidence that has every field, always the same value."""

    def __init__(self, value: Any) -> None:
        super().__init__(lambda: value)

    def get(self, key: str, default: Any = None) -> Any:
        return self[key]


@pytest.mark.parametrize("rule", sorted(WORDINGS))
@pytest.mark.parametrize("language", ["en", "zh"])
def test_no_evidence_makes_a_sentence_fail(rule: str, language: str) -> None:
    for value in ODD:
        # `sentence` makes a plain dict of it, so the wording's own fields are found by asking for them first.
        asked = Anything(value)
        with contextlib.suppress(Exception):
            WORDINGS[rule][language == "zh"](asked, 3, 1)
        assert sentence(rule, dict(asked), language=language, step=3, rank=1)
