"""What every test file of the matrix does with its setups."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.matrix.faults import Fault
from tests.matrix.judge import ASPECTS, Cell, course, load
from tests.matrix.running import cells, play_all
from tests.matrix.setup import How, Setup

Played = tuple[Path, str]


def parametrise(setups: Sequence[Setup]) -> Callable[[Any], Any]:
    """Makes a test take ``setup``, ``fault`` and ``how`` of all cells of some setups, and the fixture ``played``."""
    entries = [
        pytest.param(setup, fault, how, id=f"{setup.name}-{fault.name}-{how}")
        for setup in setups
        for fault, how in cells(setup)
    ]
    return pytest.mark.parametrize(("setup", "fault", "how"), entries)


class Playground:
    """Plays each setup when its first cell is asked for."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._played: dict[str, str] = {}

    def cell(self, setup: Setup, fault: Fault, how: How) -> Cell:
        """Returns a cell that was played.

        Raises:
            AssertionError: It did not come to its end.
        """
        folder = self._folder / setup.name
        if setup.name not in self._played:
            self._played[setup.name] = play_all(setup, folder)
        try:
            return load(setup, fault, how, folder)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self._played[setup.name]}") from None


def check(cell: Cell) -> None:
    """Judges a cell in every respect, and notes the result for the table.

    Raises:
        AssertionError: Something is not as it is registered; all of it is listed.
    """
    wrong: list[str] = []
    results: dict[str, str] = {}
    course(cell)
    for name, judge in ASPECTS.items():
        try:
            results[name] = judge(cell) or "yes"
        except (AssertionError, KeyError, ValueError) as error:
            results[name] = "no"
            wrong.append(f"{name}: {type(error).__name__}: {error}")
    _note(cell, results)
    assert not wrong, "\n".join(wrong)


def _note(cell: Cell, results: dict[str, str]) -> None:
    """Keeps the results when ``MATRIX_RESULTS`` names a folder: :mod:`tests.matrix.table` makes the table of them."""
    folder = os.environ.get("MATRIX_RESULTS")
    if folder:
        path = Path(folder, f"{cell.setup.name}-{cell.fault.name}-{cell.how}.json")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps({"setup": cell.setup.name, "fault": cell.fault.name, "how": cell.how, **results}))
