"""Full disks and damaged journals, a few times each; ``scripts/faults.py`` does it for longer."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.faults import disks
from tests.faults.load import Count

needs_a_small_disk = pytest.mark.skipif(bool(disks.why_not()), reason=disks.why_not())


def check(count: Count) -> None:
    assert count.acknowledged > 100, count.line()
    assert count.sound, count.line()


@needs_a_small_disk
def test_a_server_whose_disk_is_full_refuses_and_goes_on_when_there_is_room(tmp_path: Path) -> None:
    count = disks.server_disk_full(tmp_path, 1)
    check(count)
    assert count.notes["answers 503"] > 5
    assert count.notes["integrity_check is ok"]


@needs_a_small_disk
def test_a_postgres_whose_disk_is_full_refuses_and_goes_on_when_there_is_room(tmp_path: Path) -> None:
    count = disks.postgres_disk_full(tmp_path, 1)
    check(count)
    assert count.notes["answers 503"] > 5


@needs_a_small_disk
def test_a_node_whose_disk_is_full_counts_what_it_could_not_keep(tmp_path: Path) -> None:
    count = disks.node_disk_full(tmp_path, 1)
    check(count)
    assert count.reported > 50


def test_a_damaged_journal_is_shipped_but_for_what_is_counted(tmp_path: Path) -> None:
    count = disks.journal_damaged(tmp_path, 12)
    check(count)
    assert count.reported > 0
