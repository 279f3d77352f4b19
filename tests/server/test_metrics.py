"""What Prometheus reads, read with Prometheus' own parser."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path

import httpx2
import pytest
from prometheus_client.parser import text_string_to_metric_families
from pydantic import SecretStr

from tests.server.conftest import running
from tests.server.shipping import RUN, batch, ended, send, started, step
from trainwatch import __version__
from trainwatch.server.db import Database
from trainwatch.server.main import Server
from trainwatch.server.settings import Settings


def scrape(client: httpx2.Client) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    answer = client.get("/metrics")
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"].startswith("text/plain; version=")
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(answer.text)
        for sample in family.samples
    }


def key(metric_name: str, /, **labels: str) -> tuple[str, frozenset[tuple[str, str]]]:
    return f"trainwatch_{metric_name}", frozenset(labels.items())


def test_shipments_are_counted(client: httpx2.Client) -> None:
    first = scrape(client)
    assert first[key("build_info", version=__version__)] == 1
    assert first[key("ingest_points_total")] == 0
    send(client, batch([started(), *(step(n) for n in range(1, 11))]))
    send(client, batch([step(10)], first=10))  # it has come before
    refused = client.post("/api/ingest", content=b"nonsense", headers={"content-type": "application/msgpack"})
    assert refused.status_code == 400
    found = scrape(client)
    assert found[key("ingest_points_total")] == 10
    assert found[key("ingest_events_total")] == 12
    assert found[key("ingest_bytes_total")] > 50
    assert found[key("acknowledgements_total", status="200")] == 2
    assert found[key("acknowledgements_total", status="400")] == 1
    route = {"method": "POST", "route": "/api/ingest"}
    assert found[key("http_request_duration_seconds_count", **route, status="200")] == 2
    assert found[key("database_query_duration_seconds_count", operation="insert")] > 0


def test_routes_are_told_by_their_pattern(client: httpx2.Client) -> None:
    for path in (f"/api/runs/{RUN}", "/api/runs/other", "/api/runs/other/charts/loss", "/some/page", "/api/nothing"):
        client.get(path)
    found = {
        dict(labels)["route"] for name, labels in scrape(client) if name.endswith("request_duration_seconds_count")
    }
    assert found - {"/metrics"} == {"/api/runs/{run}", "/api/runs/{run}/charts/{chart:path}", "ui"}


def test_runs_and_open_streams_are_counted(server: Server, client: httpx2.Client) -> None:
    send(client, batch([started(), step(1)]), batch([started(), step(1), ended(1)], run="other"))
    with httpx2.Client(base_url=server.url) as browser, browser.stream("GET", "/api/events") as stream:
        lines = stream.iter_lines()
        next(lines)
        found = scrape(client)
    assert found[key("event_streams")] == 1
    assert found[key("runs", state="running")] == 1
    assert found[key("runs", state="finished")] == 1
    assert found[key("runs", state="lost")] == 0
    assert found[key("database_up")] == 1
    assert found[key("outbox_deliveries", state="waiting")] == 0
    assert key("job_held", work="liveness") in found
    assert not [name for name, _ in found if name.startswith("trainwatch_run_value")]


def test_last_values_of_running_runs_are_bounded_and_exact(tmp_path: Path) -> None:
    with (
        running(Settings(home=tmp_path, port=0, metrics_series=3)) as server,
        httpx2.Client(base_url=server.url) as client,
    ):
        values = {"train/loss": math.nan, "train/grad_norm": math.inf, "a": -math.inf, "z": 2.5}
        send(client, batch([started(), step(1, values=values)]), batch([started(), step(1), ended(1)], run="other"))
        found = scrape(client)
    labels = {"run": RUN, "name": "tiny", "project": "default", "rank": "0", "device": ""}
    assert found[key("run_value", **labels, metric="a")] == -math.inf
    assert found[key("run_value", **labels, metric="train/grad_norm")] == math.inf
    assert math.isnan(found[key("run_value", **labels, metric="train/loss")])
    assert len([name for name, _ in found if name == "trainwatch_run_value"]) == 3
    assert found[key("run_values_left_out")] == 1


def test_it_answers_while_the_database_does_not(client: httpx2.Client, settings: Settings) -> None:
    database = Database(settings.database_url)
    with database.write() as connection:
        connection.exec_driver_sql("ALTER TABLE alerts RENAME TO elsewhere")
    found = scrape(client)
    assert found[key("database_up")] == 0
    found = scrape(client)  # what the last one met has been counted
    assert found[key("database_errors_total", error="OperationalError")] >= 1
    with database.write() as connection:
        connection.exec_driver_sql("ALTER TABLE elsewhere RENAME TO alerts")
    database.close()
    assert scrape(client)[key("database_up")] == 1


@pytest.fixture(params=[False, True], ids=["guarded", "public"])
def public(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[bool, httpx2.Client]]:
    """A client without credentials, of a server with a token, whose metrics are public or not."""
    chosen = Settings(home=tmp_path, port=0, token=SecretStr("a long token"), metrics_public=request.param)
    with running(chosen) as server, httpx2.Client(base_url=server.url) as client:
        yield request.param, client


def test_who_may_read_them(public: tuple[bool, httpx2.Client]) -> None:
    is_public, client = public
    assert client.get("/metrics").status_code == (200 if is_public else 401)
    assert client.get("/metrics", headers={"authorization": "Bearer wrong"}).status_code == (200 if is_public else 401)
    assert client.get("/metrics", headers={"authorization": "Bearer a long token"}).status_code == 200


def test_a_token_of_one_project_does_not_see_the_servers_figures(tmp_path: Path) -> None:
    chosen = Settings(home=tmp_path, port=0, token=SecretStr("a long token"))
    with running(chosen) as server, httpx2.Client(base_url=server.url) as client:
        admin = {"authorization": "Bearer a long token"}
        for project, status in (("vision", 403), ("", 200)):
            wanted = {"name": "prometheus", "project": project, "scopes": ["read"], "days": 1}
            made = client.post("/api/admin/tokens", json=wanted, headers=admin)
            assert made.status_code == 201, made.text
            shown = {"authorization": f"Bearer {made.json()['token']}"}
            assert client.get("/metrics", headers=shown).status_code == status, project


def test_openmetrics_for_those_who_ask(client: httpx2.Client) -> None:
    answer = client.get("/metrics", headers={"accept": "application/openmetrics-text; version=1.0.0"})
    assert answer.headers["content-type"].startswith("application/openmetrics-text")
    assert answer.text.endswith("# EOF\n")
