"""A sender that dies at any point of its cycle: every message arrives, at most twice, under its one id."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

import trainwatch
from tests.server.dying import LEASE_SECONDS, POINTS
from tests.server.receiver import receiving
from tests.server.telling import Telling, finding
from trainwatch.server.db import Database

pytestmark = pytest.mark.slow

ROOT = Path(trainwatch.__file__).parent.parent
ALERTS = 4
AT_RECEIVER = ("accepted", "headers", "body", "answered")


def send(url: str, point: str, number: int) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "tests.server.dying", url, point, str(number)]
    return subprocess.Popen(command, cwd=ROOT)


@pytest.mark.parametrize("point", [*POINTS, *(f"receiver: {stage}" for stage in AT_RECEIVER)])
def test_what_was_committed_before_a_crash_is_delivered_after_it(database: Database, point: str) -> None:
    telling = Telling(database)
    telling.now = time.time()
    with receiving() as receiver:
        telling.channel(receiver.url)
        telling.tell(*(finding(n, key=f"device {n}") for n in range(1, ALERTS + 1)))
        committed = {row.uuid for row in telling.rows()}
        assert len(committed) == ALERTS

        # One arrives before, the second one is under way when the sender dies.
        first = send(database.url, point, 2)
        stages: Counter[str] = Counter()

        def kill(stage: str) -> None:
            stages[stage] += 1
            if f"receiver: {stage}" == point and stages[stage] == 2:
                os.kill(first.pid, signal.SIGKILL)

        receiver.at = kill
        assert first.wait(60) == -signal.SIGKILL, f"it never came to {point!r}"
        receiver.at = lambda _stage: None
        before = Counter(taken.delivery for taken in receiver.taken)
        assert sum(before.values()) in (1, 2)

        time.sleep(LEASE_SECONDS)
        assert send(database.url, "never", 0).wait(90) == 0
        arrived = Counter(taken.delivery for taken in receiver.taken)

    assert set(arrived) == committed, "each arrives"
    assert sum(arrived.values()) <= ALERTS + 1
    assert max(arrived.values()) <= 2, "and at most the one that was under way comes twice"
    again = {name for name, count in arrived.items() if count == 2}
    assert again <= set(before)
    bodies = {name: {taken.body for taken in receiver.taken if taken.delivery == name} for name in again}
    assert all(len(found) == 1 for found in bodies.values()), "and it says the same"
    assert set(telling.states()) == {"sent"}


def test_a_digest_that_was_under_way_comes_again_as_it_was(database: Database) -> None:
    telling = Telling(database)
    telling.now = time.time() - 100
    with receiving() as receiver:
        telling.channel(receiver.url, digest_most=1, digest_seconds=1.0)
        telling.tell(*(finding(n, key=f"device {n}") for n in range(1, ALERTS + 1)))
        telling.send()
        committed = {row.uuid for row in telling.rows()}
        assert send(database.url, "sent", 1).wait(60) == -signal.SIGKILL
        time.sleep(LEASE_SECONDS)
        assert send(database.url, "never", 0).wait(90) == 0
    single, digest, again = receiver.taken
    assert (digest.delivery, digest.json["alerts"]) == (again.delivery, again.json["alerts"])
    told = [one["delivery"] for one in (*single.json["alerts"], *digest.json["alerts"])]
    assert sorted(told) == sorted(committed)
