"""A server that is killed while it tells of an alert, and one that had no time to begin."""

from __future__ import annotations

import json
import os
import signal
import time
import urllib.request
from collections import Counter
from typing import Any

import pytest

from tests.e2e import made
from tests.e2e.shipping import ship
from tests.e2e.world import World
from tests.server.receiver import receiving
from trainwatch.events import FindingRaised
from trainwatch.server.delivery.sender import LEASE_SECONDS

pytestmark = pytest.mark.slow


def post(url: str, content: dict[str, Any]) -> None:
    headers = {"Content-Type": "application/json"}
    with urllib.request.urlopen(urllib.request.Request(url, json.dumps(content).encode(), headers), timeout=20):
        return


def test_a_server_that_is_killed_while_it_tells_tells_again(world: World) -> None:
    world.environment["TRAINWATCH_ALERT_PRIVATE_HOSTS"] = "127.0.0.1"
    world.start_server()
    with receiving() as receiver:
        wish = {"name": "hook", "kind": "webhook", "url": receiver.url, "key": "k" * 32}
        post(f"{world.url}/api/projects/default/channels", wish)
        server = world.server
        assert server is not None

        def kill(stage: str) -> None:
            if stage == "body":
                os.kill(server.pid, signal.SIGKILL)

        receiver.at = kill
        began = time.time() - 60
        evidence = {"value": "NaN", "action": "skipped"}
        found = [
            FindingRaised(
                time=began + n, rule="nonfinite_loss", severity="critical", step=n, key=f"{n}", parameters=evidence
            )
            for n in range(1, 4)
        ]
        ship(world.url, "killed", [made.started(began), *made.steps(began, 1, 5), *found])
        server.wait(30)
        assert len(receiver.taken) == 1
        receiver.at = lambda _stage: None
        world.start_server()
        arrived = Counter(taken.delivery for taken in receiver.wait_for(4, LEASE_SECONDS + 60))
    first = receiver.taken[0].delivery
    assert arrived == {first: 2, **{name: 1 for name in arrived if name != first}}
    assert {taken.json["alerts"][0]["key"] for taken in receiver.taken} == {"1", "2", "3"}
