"""Runs that were imported: they have no steps but those that were logged, and nobody waits for them."""

from __future__ import annotations

import math

from tests.server.shipping import RUN, T0, batch, shipment, started, step
from trainwatch import events, journal
from trainwatch.server.db import Database
from trainwatch.server.ingest.shipments import Ingest
from trainwatch.server.jobs import silence
from trainwatch.server.store import runs

CONTENT = [
    started(max_steps=30),
    events.Logged(time=T0 + 1, step=10, values={"train/loss_logged": 3.0}),
    events.Logged(time=T0 + 2, step=20, values={"train/loss_logged": math.inf}),
    events.Evaluated(time=T0 + 3, step=20, values={"eval/loss_reported": 2.5}),
]


def ship(database: Database, node: str, content: list[events.Event]) -> None:
    Ingest(database, lambda run, version: None, lambda: T0).accept(shipment(batch(content, node=node)))


def test_its_step_and_losses_are_those_that_were_logged(database: Database) -> None:
    ship(database, journal.IMPORTED_NODE, list(CONTENT))
    with database.read() as connection:
        (run,) = runs.listing(connection, project=None, state=None, limit=1, offset=0, now=T0).runs
    assert (run.step, run.last_loss, run.last_eval_loss) == (20, math.inf, 2.5)
    assert run.sparkline is not None
    assert run.sparkline.value == [3.0, math.inf]


def test_without_an_end_it_is_lost_at_once_and_that_is_no_alarm(sqlite: Database) -> None:
    ship(sqlite, journal.IMPORTED_NODE, [*CONTENT, step(21)])
    assert silence.mark_silent(sqlite, now=T0 + 1000, lost_after=60) == []
    with sqlite.read() as connection:
        (run,) = runs.listing(connection, project=None, state=None, limit=1, offset=0, now=T0).runs
        assert not runs.takes_commands(connection, RUN)
    assert run.state == "lost"
    assert run.sentence == "What was imported does not say how the run ended; its last step was 21."
    assert run.alerts.info + run.alerts.warning + run.alerts.critical == 0


def test_a_run_that_falls_silent_is_an_alarm(sqlite: Database) -> None:
    ship(sqlite, "node1", [*CONTENT, step(21)])
    assert [run for run, _ in silence.mark_silent(sqlite, now=T0 + 1000, lost_after=60)] == [RUN]
    with sqlite.read() as connection:
        (run,) = runs.listing(connection, project=None, state=None, limit=1, offset=0, now=T0).runs
    assert run.state == "lost"
    assert run.alerts.info + run.alerts.warning + run.alerts.critical == 1
