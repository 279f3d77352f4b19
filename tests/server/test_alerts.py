"""Alerts: their states, silence, and the language of their sentences."""

from __future__ import annotations

import math
import threading
from collections import Counter
from pathlib import Path
from typing import Any

import httpx2
import pytest
from sqlalchemy import create_engine, text

from tests.patience import PATIENCE
from tests.server.conftest import running
from tests.server.locking import wait_for_a_lock
from tests.server.shipping import NODE, RUN, T0, batch, ended, send, shipment, started, step
from trainwatch.events import FindingRaised
from trainwatch.server import liveness
from trainwatch.server.db import Database
from trainwatch.server.http.language import preferred
from trainwatch.server.ingest.shipments import Ingest
from trainwatch.server.settings import Settings
from trainwatch.server.store import records, runs


def finding(moment: float, state: Any = "firing", **changes: Any) -> FindingRaised:
    fields: dict[str, Any] = {"rule": "nonfinite_eval_loss", "severity": "warning", "step": int(moment), "rank": 0}
    fields["parameters"] = {"value": "NaN", "nonfinite": int(moment), "batches": 10, "since": 1, "reported": None}
    return FindingRaised(time=T0 + moment, state=state, **{**fields, **changes})


class Told:
    """A run whose agent tells findings, on a real database."""

    def __init__(self, database: Database) -> None:
        self.database = database
        self.now = T0
        self.ingest = Ingest(database, lambda _run, _version: None, lambda: self.now)
        self.told: Counter[str] = Counter()
        self.ingest.accept(shipment(batch([started(), step(1)])))

    def tell(self, *found: FindingRaised, agent: str = "agent@node1", node: str = NODE) -> list[Any]:
        told = self.told[agent]
        self.ingest.accept(shipment(batch(found, rank=None, first=told, source=agent, node=node)))
        self.told[agent] += len(found)
        return self.alerts()

    def alerts(self) -> list[Any]:
        with self.database.read() as connection:
            detail = runs.detail(connection, RUN, charts=[], now=self.now)
            assert detail is not None
            return detail.alerts

    def counts(self) -> tuple[int, int, int]:
        with self.database.read() as connection:
            [one] = runs.listing(connection, project=None, state=None, limit=9, offset=0, now=self.now).runs
        return one.alerts.info, one.alerts.warning, one.alerts.critical


def test_rule_rank_and_key_tell_alerts_apart(database: Database) -> None:
    run = Told(database)
    found = run.tell(
        finding(1), finding(2), finding(3, rank=1), finding(4, key="cuda:0"), finding(5, key="cuda:0", action="halt")
    )
    assert sorted((a.rank, a.key, a.count, a.action) for a in found) == [
        (0, "", 2, "notify"),
        (0, "cuda:0", 2, "halt"),
        (1, "", 1, "notify"),
    ]


def test_pending_fires_is_resolved_and_fires_again(database: Database) -> None:
    run = Told(database)
    [alert] = run.tell(finding(1, "pending"))
    assert (alert.state, alert.count, alert.resolved_at) == ("pending", 0, None)
    assert run.counts() == (0, 0, 0)
    [alert] = run.tell(finding(2))
    assert (alert.state, alert.count) == ("firing", 1)
    assert run.counts() == (0, 1, 0)
    [alert] = run.tell(finding(3, "resolved"))
    assert (alert.state, alert.count, alert.resolved_at) == ("resolved", 1, T0 + 3)
    assert run.counts() == (0, 0, 0)
    [alert] = run.tell(finding(4, severity="critical"))
    assert (alert.state, alert.count, alert.resolved_at, alert.severity) == ("firing", 2, None, "critical")
    assert run.counts() == (0, 0, 1)


@pytest.mark.parametrize(
    ("late", "node"),
    [("agent@node1~bb", NODE), ("agent@node2~bb", "node2"), ("agent@node1~00", NODE)],
)
def test_what_comes_late_from_another_agent_counts_and_changes_nothing_else(
    database: Database, late: str, node: str
) -> None:
    """Of a disk that was away, or of another node."""
    run = Told(database)
    run.tell(finding(10, "resolved"), agent="agent@node1~aa")
    [alert] = run.tell(finding(5, severity="critical", action="halt"), agent=late, node=node)
    assert (alert.state, alert.severity, alert.resolved_at, alert.count) == ("resolved", "warning", T0 + 10, 1)
    assert (alert.first_step, alert.last_step, alert.first_at) == (5, 10, T0 + 5)
    [alert] = run.tell(finding(12), finding(11, "resolved"), agent=late, node=node)
    assert alert.state == "firing"


def test_what_an_agent_before_told_on_the_same_disk_comes_late_too(database: Database) -> None:
    run = Told(database)
    run.tell(finding(10, "resolved"), agent="agent@node1.1~bb")
    [alert] = run.tell(finding(5), agent="agent@node1~aa")
    assert alert.state == "resolved"
    [alert] = run.tell(finding(6), agent="agent@node1.1~bb")
    assert alert.state == "firing"


@pytest.mark.parametrize("rank", [0, None])
def test_a_clock_that_is_set_back_silences_nothing(database: Database, rank: int | None) -> None:
    run = Told(database)
    run.tell(finding(4000, rank=rank), finding(4001, "resolved", rank=rank))
    [alert] = run.tell(finding(402, rank=rank, severity="critical"))
    assert (alert.state, alert.severity, alert.count) == ("firing", "critical", 2)
    [alert] = run.tell(finding(403, "resolved", rank=rank))
    assert (alert.state, alert.resolved_at) == ("resolved", T0 + 403)
    [alert] = run.tell(finding(405, rank=rank), finding(404, "resolved", rank=rank))
    assert alert.state == "resolved", "as it was found, in one shipment too"


def test_the_agent_where_a_rank_runs_now_needs_no_clock(database: Database) -> None:
    run = Told(database)
    run.tell(finding(4000), agent="agent@node1~aa")
    moved = batch([started(time=T0 + 5000), step(21, time=T0 + 5001)], source="rank0~bb", node="node2")
    run.ingest.accept(shipment(moved))
    run.tell(finding(9000, "resolved"), agent="agent@node2~bb", node="node2")
    [alert] = run.tell(finding(6000), agent="agent@node2~bb", node="node2")
    assert alert.state == "firing"
    [alert] = run.tell(finding(7000, "resolved"), agent="agent@node1~aa")
    assert alert.state == "firing", "it does not run there any more"


def test_a_run_is_lost_and_found_again_also_when_the_servers_clock_goes_back(database: Database) -> None:
    run = Told(database)

    def lose() -> list[str]:
        with database.write() as connection:
            [one] = records.lock_runs(connection, [RUN]).values()
            liveness.tell_lost(connection, one, now=run.now, silent_since=run.now - 61, state="firing")
        return [alert.state for alert in run.alerts()]

    run.now = T0 + 4000
    assert lose() == ["firing"]
    with database.write() as connection:
        [one] = records.lock_runs(connection, [RUN]).values()
        liveness.tell_lost(connection, one, now=T0 + 3000, silent_since=T0, state="resolved")
    assert [alert.state for alert in run.alerts()] == ["resolved"]
    run.now = T0 + 3500
    assert lose() == ["firing"]


def test_an_alert_is_silenced_while_it_is_found_again(tmp_path: Path, postgres: str) -> None:
    """Both change the alert and its run; whoever is second waits for the first."""
    engine = create_engine(postgres)
    with engine.begin() as connection:
        connection.execute(text("DROP SCHEMA public CASCADE"))
        connection.execute(text("CREATE SCHEMA public"))
    answers: list[int] = []
    with (
        running(Settings(home=tmp_path, port=0, database=postgres)) as server,
        httpx2.Client(base_url=server.url, timeout=PATIENCE) as client,
    ):
        send(client, batch([started(), step(1)]), batch([finding(1)], rank=None))
        [alert] = client.get(f"/api/runs/{RUN}").json()["alerts"]
        place = f"/api/runs/{RUN}/alerts/{alert['id']}/silence"
        silence = threading.Thread(target=lambda: answers.append(client.put(place, json={"hours": 1}).status_code))
        with engine.begin() as connection:  # what the ingest locks, in its order
            connection.execute(text("SELECT 1 FROM runs FOR UPDATE"))
            silence.start()
            wait_for_a_lock(engine)
            connection.execute(text("SET LOCAL lock_timeout = '2s'"))
            connection.execute(text("UPDATE alerts SET count = count + 1"))
        silence.join(PATIENCE)
    assert answers == [204]
    engine.dispose()


def test_taking_a_run_up_again_closes_what_was_wrong_with_the_processes_before(database: Database) -> None:
    run = Told(database)
    run.ingest.accept(shipment(batch([step(n) for n in range(2, 20)], first=2)))
    run.tell(finding(5), finding(6, rule="process_gone", parameters={"oom_kills": 0}))
    run.ingest.accept(shipment(batch([started(time=T0 + 100), step(101)], source="rank0.1")))
    assert {a.state for a in run.alerts()} == {"resolved"}
    assert {a.resolved_at for a in run.alerts()} == {T0 + 19}
    run.tell(finding(7, rule="training_failed", parameters={"error": "late"}))
    assert {a.state for a in run.alerts()} == {"resolved"}, "found in the life before, told late"
    run.tell(finding(101))
    assert next((a.rule, a.state) for a in run.alerts()) == ("nonfinite_eval_loss", "firing")


def test_the_order_is_firing_pending_silenced_resolved(client: httpx2.Client) -> None:
    send(client, batch([started(), step(1)]))
    found = [
        finding(9, "resolved", key="resolved", severity="critical"),
        finding(8, key="silenced", severity="critical"),
        finding(7, "pending", key="pending", severity="critical"),
        finding(1, key="old"),
        finding(2, key="new"),
        finding(1, key="bad", severity="critical"),
    ]
    send(client, batch(found, rank=None))

    def alerts() -> list[dict[str, Any]]:
        listed: list[dict[str, Any]] = client.get(f"/api/runs/{RUN}").json()["alerts"]
        return listed

    [silenced] = [a["id"] for a in alerts() if a["key"] == "silenced"]
    place = f"/api/runs/{RUN}/alerts/{silenced}/silence"
    version = client.get(f"/api/runs/{RUN}").json()["version"]
    assert client.put(place, json={"hours": 1}).status_code == 204
    assert client.get(f"/api/runs/{RUN}").json()["version"] == version + 1
    assert [a["key"] for a in alerts()] == ["bad", "new", "old", "pending", "silenced", "resolved"]
    [row] = client.get("/api/runs").json()["runs"]
    assert row["alerts"] == {"info": 0, "warning": 2, "critical": 1}
    assert client.put(place, json={}).status_code == 204
    [alert] = [a for a in alerts() if a["key"] == "silenced"]
    assert (alert["silenced"], alert["silenced_until"]) == (True, "Infinity")
    assert client.delete(place).status_code == 204
    [alert] = [a for a in alerts() if a["key"] == "silenced"]
    assert (alert["silenced"], alert["silenced_until"]) == (False, None)
    assert client.put(place.replace(str(silenced), "999"), json={"hours": 1}).status_code == 404
    assert client.put(place.replace(RUN, "nobody"), json={"hours": 1}).status_code == 404
    assert client.put(place, json={"hours": -1}).status_code == 422


def test_the_word_for_the_memory_of_every_run_is_no_news(database: Database) -> None:
    run = Told(database)
    words = {"verdict": "steady", "device": "cpu", "held": 2**20, "peak": 2**20}
    run.tell(finding(1, rule="memory_verdict", severity="info", parameters=words))
    assert [alert.rule for alert in run.alerts()] == ["memory_verdict"], "it stands beside its chart"
    assert run.counts() == (0, 0, 0)
    with database.read() as connection:
        [one] = runs.listing(connection, project=None, state=None, limit=9, offset=0, now=run.now).runs
    assert one.sentence == ""
    run.tell(finding(2, severity="info"))
    assert run.counts() == (1, 0, 0)


def test_a_silence_ends_by_itself(database: Database) -> None:
    from trainwatch.server.store import alerts

    run = Told(database)
    [alert] = run.tell(finding(1))
    with database.write() as connection:
        assert alerts.silence(connection, RUN, alert.id, T0 + 100)
    assert run.counts() == (0, 0, 0)
    assert run.tell(finding(2))[0].silenced, "being found again does not end it"
    run.now = T0 + 101
    assert run.counts() == (0, 1, 0)
    assert not run.alerts()[0].silenced
    with database.write() as connection:
        assert alerts.silence(connection, RUN, alert.id, math.inf)
    run.now = T0 + 1e9
    assert run.alerts()[0].silenced_until == math.inf


def test_sentences_come_in_the_language_that_is_asked_for(client: httpx2.Client) -> None:
    send(client, batch([started(), step(1)]), batch([finding(1)], rank=None))
    chinese = {"accept-language": "zh-CN,zh;q=0.9,en;q=0.8"}
    run = client.get(f"/api/runs/{RUN}", headers=chinese).json()
    assert "个评估批次" in run["alerts"][0]["sentence"]
    assert run["sentence"] == run["alerts"][0]["sentence"]
    assert "个评估批次" in client.get("/api/runs", headers=chinese).json()["runs"][0]["sentence"]
    assert "batches" in client.get(f"/api/runs/{RUN}", headers={"accept-language": "de"}).json()["sentence"]
    halted = ended(4, "halted", reason="command", parameters={"reason": "x"})
    send(client, batch([halted], first=2))
    assert "停止" in client.get(f"/api/runs/{RUN}", headers=chinese).json()["end"]["sentence"]


@pytest.mark.parametrize(
    ("header", "language"),
    [
        ("", "en"),
        ("zh", "zh"),
        ("zh-Hans-CN;q=0.9, en;q=0.8", "zh"),
        ("en-GB, zh;q=0.9", "en"),
        ("de, fr", "en"),
        ("fr, zh;q=0.5", "zh"),
        ("zh;q=often, en;q=0.1", "en"),
        ("*", "en"),
    ],
)
def test_the_language_follows_the_browsers_preferences(header: str, language: str) -> None:
    assert preferred(header) == language


def test_a_halt_by_a_rule_is_told_with_its_evidence_by_the_node_that_knows_it(client: httpx2.Client) -> None:
    evidence = {"value": "NaN", "nonfinite": 7, "batches": 10, "since": 2, "reported": None, "culprit": 1}
    known = ended(
        9,
        "halted",
        reason="nonfinite_eval_loss",
        parameters={**evidence, "found_at": 8, "checkpoint": "out/checkpoint-9"},
    )
    vague = ended(9, "halted", reason="command", parameters={"reason": "", "checkpoint": "out/checkpoint-9"})
    send(
        client,
        batch([started(world_size=2), step(1), vague], rank=0),
        batch([started(world_size=2), step(1), known], rank=1, node="node2"),
    )
    end = client.get(f"/api/runs/{RUN}").json()["end"]
    assert end["sentence"] == (
        "Halted at step 9: the eval loss is NaN in 7 of 10 batches since step 2 on rank 1."
        " Resume from out/checkpoint-9."
    )


def test_what_is_pending_when_a_run_ends_is_over(database: Database) -> None:
    told = Told(database)
    told.tell(finding(2, "pending", rule="data_bound"), finding(2))
    told.ingest.accept(shipment(batch([ended(2)], first=2)))
    assert {one.rule: one.state for one in told.alerts()} == {
        "data_bound": "resolved",
        "nonfinite_eval_loss": "firing",
    }
