"""Runs of which nothing is heard: late, lost, and back again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import update

from tests.server.shipping import RUN, T0, batch, ended, shipment, started, step
from tests.server.test_liveness import Clock, detail
from trainwatch import events
from trainwatch.server import models
from trainwatch.server.app import create_app
from trainwatch.server.db import Database
from trainwatch.server.ingest.shipments import Ingest
from trainwatch.server.jobs import silence
from trainwatch.server.services import Services
from trainwatch.server.settings import Settings
from trainwatch.server.store import alerts as alert_store
from trainwatch.server.store import leases, runs


def test_a_silent_run_is_lost_and_comes_back_by_a_heartbeat_alone(database: Database) -> None:
    clock, told = Clock(), []
    ingest = Ingest(database, lambda run, version: told.append((run, version)), clock)
    ingest.accept(shipment(batch([started(), step(1)])))
    clock.now += 59
    assert silence.mark_silent(database, now=clock(), lost_after=60) == []
    ingest.accept(shipment(runs=[RUN]))
    clock.now += 59
    assert silence.mark_silent(database, now=clock(), lost_after=60) == []
    clock.now += 2
    assert silence.mark_silent(database, now=clock(), lost_after=60) == [(RUN, 2)]
    assert silence.mark_silent(database, now=clock(), lost_after=60) == []
    found = detail(database)
    assert found.state == "lost"
    assert "Nothing was heard" in found.sentence
    assert found.end is None
    ingest.accept(shipment(runs=[RUN]))
    assert detail(database).state == "running"
    assert told == [(RUN, 1), (RUN, 3)]
    clock.now += 61
    silence.mark_silent(database, now=clock(), lost_after=60)
    ingest.accept(shipment(batch([step(2)], first=2)))
    assert detail(database).state == "running"


def test_a_lost_run_is_an_alert_until_it_is_heard_again(database: Database) -> None:
    clock = Clock()
    ingest = Ingest(database, lambda _run, _version: None, clock)

    def alerts() -> list[tuple[str, str, str, int | None]]:
        with database.read() as connection:
            return [(a.rule, a.severity, a.state, a.last_step) for a in alert_store.alerts_of(connection, RUN, 0.0)]

    ingest.accept(shipment(batch([started(), step(5)])))
    clock.now += 61
    assert alerts() == []
    silence.mark_silent(database, now=clock(), lost_after=60)
    assert alerts() == [("run_lost", "warning", "firing", 5)]
    (shown,) = detail(database).alerts
    assert shown.sentence == "Nothing was heard of the run for 61 s; its last step was 5."
    clock.now += 100
    ingest.accept(shipment(runs=[RUN]))
    assert alerts() == [("run_lost", "warning", "resolved", 5)]
    assert "for 161 s" in detail(database).alerts[0].sentence
    clock.now += 61
    silence.mark_silent(database, now=clock(), lost_after=60)
    assert alerts() == [("run_lost", "warning", "firing", 5)]
    ingest.accept(shipment(batch([step(6), ended(6)], first=2)))
    assert alerts()[0][2] == "resolved"


def test_a_run_that_ended_is_never_lost(database: Database) -> None:
    clock = Clock()
    ingest = Ingest(database, lambda _run, _version: None, clock)
    ingest.accept(shipment(batch([started(), step(5), ended(5)])))
    clock.now += 1000
    silence.mark_silent(database, now=clock(), lost_after=60)
    with database.read() as connection:
        assert alert_store.alerts_of(connection, RUN, 0.0) == []


def look(database: Database, now: float) -> None:
    silence.mark_silent(database, now=now, late_after=20, lost_after=60)


def test_a_run_is_late_before_it_is_lost_and_says_what_was_last_known(database: Database) -> None:
    clock = Clock()
    ingest = Ingest(database, lambda _run, _version: None, clock)
    memory = {"cuda:0": {"memory/device_used": 6.0 * 2**30, "memory/capacity": 8.0 * 2**30}}
    phase = events.PhaseEntered(time=T0 + 5, phase="eval", step=5)
    ingest.accept(shipment(batch([started(), step(5, devices=memory), phase])))

    def state_after(seconds: float) -> str:
        look(database, T0 + seconds)
        found: str = detail(database).state
        return found

    assert [state_after(seconds) for seconds in (19, 21, 59, 61, 100)] == ["running", "late", "late", "lost", "lost"]
    [alert] = detail(database).alerts
    expected = "its last step was 5, in phase eval, with 6 GiB of 8 GiB of cuda:0 in use."
    assert (alert.rule, alert.sentence) == ("run_lost", f"Nothing was heard of the run for 61 s; {expected}")
    with database.read() as connection:
        found = runs.detail(connection, RUN, charts=[], now=T0 + 100, language="zh")
    assert found is not None
    assert "eval" in found.sentence
    assert "6 GiB" in found.sentence
    clock.now += 200
    ingest.accept(shipment(batch([step(6)], first=3)))
    assert detail(database).state == "running"


@pytest.mark.parametrize("again", ["heartbeat", "events", "end"])
def test_a_late_run_that_is_heard_is_running_again_without_an_alert(database: Database, again: str) -> None:
    clock = Clock()
    ingest = Ingest(database, lambda _run, _version: None, clock)
    ingest.accept(shipment(batch([started(), step(1)])))
    clock.now += 30
    look(database, clock())
    late = detail(database)
    assert (late.state, late.end) == ("late", None)
    assert "Nothing was heard" in late.sentence
    if again == "heartbeat":
        ingest.accept(shipment(runs=[RUN]))
    else:
        ingest.accept(shipment(batch([step(2), ended(2)] if again == "end" else [step(2)], first=2)))
    found = detail(database)
    assert (found.state, found.alerts) == ("finished" if again == "end" else "running", [])
    assert found.version > late.version, "browsers hear of it"


@pytest.mark.parametrize("off", [-3600.0, 3600.0, 86400.0 * 365])
def test_the_clocks_of_the_nodes_do_not_matter(database: Database, off: float) -> None:
    """Two nodes, one of them hours ahead or behind: what counts is when the server heard of them."""
    clock = Clock()
    ingest = Ingest(database, lambda _run, _version: None, clock)
    for second in range(0, 100, 5):
        clock.now = T0 + second
        first = 0 if second == 0 else second // 5 + 1
        for rank, skew in enumerate((0.0, off)):
            content: list[Any] = [step(first, time=clock.now + skew)]
            if not first:
                content.insert(0, started(time=clock.now + skew, world_size=2))
            ingest.accept(shipment(batch(content, rank=rank, node=f"node{rank}", first=first)))
        look(database, clock() + 4)
        assert detail(database).state == "running"
    look(database, T0 + 95 + 21)
    assert detail(database).state == "late"
    look(database, T0 + 95 + 61)
    assert detail(database).state == "lost"
    assert detail(database).alerts[0].parameters["seconds"] == 61


# -- while nobody listens ----------------------------------------------------------------------------------------------


def test_silence_is_counted_from_when_somebody_listens(database: Database) -> None:
    ingest = Ingest(database, lambda _run, _version: None, Clock())
    ingest.accept(shipment(batch([started(), step(1)])))
    since = T0 + 600

    def state_after(seconds: float) -> str:
        silence.mark_silent(database, now=since + seconds, late_after=20, lost_after=60, listening_since=since)
        found: str = detail(database).state
        return found

    assert [state_after(seconds) for seconds in (0, 19, 21, 59)] == ["running", "running", "late", "late"]
    assert detail(database).alerts == []
    assert state_after(61) == "lost"
    assert detail(database).alerts[0].parameters["seconds"] == 661, "so long nothing was heard, whoever is to blame"


def test_after_an_outage_no_run_is_alarmed_before_it_could_be_heard(database: Database, tmp_path: Path) -> None:
    services: Services = create_app(Settings(home=tmp_path, database=database.url)).state.services

    def keep(owner: str) -> None:
        with database.write() as connection:
            leases.keep(connection, [silence.JOB], owner, 6)

    def forget(table: Any, column: str, seconds: float) -> None:
        """Lets the last word have come so many seconds ago."""
        with database.write() as connection:
            connection.execute(update(table).values({column: leases.clock(connection)[0] - seconds}))

    def look() -> str:
        silence.run(services)
        found: str = detail(database).state
        return found

    keep("a")
    services.ingest.accept(shipment(batch([started(), step(1)])))
    forget(models.leases, "expires_at", 600)  # server and database are away
    forget(models.runs, "heard_at", 606)
    assert look() == "running", "by a server that does not know yet that it was away"
    keep("a")
    assert look() == "running"
    with database.write() as connection:
        leases.release(connection, "a")
    keep("b")
    assert look() == "running", "also when another takes over"
    services.ingest.accept(shipment(runs=[RUN]))
    with database.write() as connection:  # some minutes later
        connection.execute(update(models.leases).where(models.leases.c.fence == 0).values(expires_at=1.0))
    forget(models.runs, "heard_at", 61)
    with database.write() as connection:
        leases.release(connection, "b")
    keep("c")
    assert look() == "lost", "at once: a mere change of servers delays nothing"
    services.database.close()
