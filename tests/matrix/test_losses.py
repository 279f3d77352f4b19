"""Losses of all kinds: a cell takes a few tenths of a second."""

from __future__ import annotations

from tests.matrix.contract import Playground, check, parametrise
from tests.matrix.faults import Fault
from tests.matrix.setup import How, Setup
from tests.matrix.setups import LOSSES


@parametrise(LOSSES)
def test_what_is_recorded_is_what_happened(setup: Setup, fault: Fault, how: How, playground: Playground) -> None:
    check(playground.cell(setup, fault, how))
