"""The table in docs/setups.md says what the setups are registered to give."""

from __future__ import annotations

from tests.matrix.setups import SETUPS
from tests.matrix.table import committed, registered, render


def test_the_documented_table_is_the_registered_one() -> None:
    assert committed() == render(registered).strip(), "make test-matrix writes the table anew"


def test_names_and_titles_are_unique() -> None:
    assert len({setup.name for setup in SETUPS}) == len({setup.title for setup in SETUPS}) == len(SETUPS)
