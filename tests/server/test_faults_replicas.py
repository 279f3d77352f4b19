"""Servers, databases and lines that fail under load, a few times each; ``scripts/faults.py`` does it for longer."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.faults import network, scenarios
from tests.faults.load import Count

pytestmark = pytest.mark.slow


def check(count: Count) -> None:
    assert count.acknowledged > 100, count.line()
    assert count.sound, count.line()


def test_a_server_that_is_killed_under_load_loses_nothing_and_doubles_nothing(tmp_path: Path) -> None:
    check(scenarios.server_killed(tmp_path, 2))


def test_a_postgres_that_is_killed_under_load_loses_nothing_and_doubles_nothing(tmp_path: Path) -> None:
    check(scenarios.postgres_killed(tmp_path, 2))


def test_a_postgres_that_does_not_answer_loses_nothing_and_doubles_nothing(tmp_path: Path) -> None:
    check(scenarios.postgres_frozen(tmp_path, 1))


def test_the_work_of_a_frozen_server_moves_to_another_and_shipping_goes_on(tmp_path: Path) -> None:
    check(scenarios.replica_frozen(tmp_path, 1))


def test_a_line_to_the_agents_that_is_cut_without_a_word_loses_nothing(tmp_path: Path) -> None:
    check(scenarios.line_cut(tmp_path, 1))


@pytest.mark.skipif(bool(network.why_not()), reason=network.why_not())
def test_a_network_that_is_cut_without_a_word_loses_nothing(tmp_path: Path) -> None:
    check(scenarios.network_cut(tmp_path, 1))
