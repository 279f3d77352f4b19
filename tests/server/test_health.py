from __future__ import annotations

import re
import time
from pathlib import Path

import httpx2

from tests.server.conftest import running
from trainwatch.server import migrate
from trainwatch.server.db import Database
from trainwatch.server.main import Server
from trainwatch.server.settings import Settings


def test_a_server_that_is_up_is_ready(client: httpx2.Client) -> None:
    for path in ("/api/health", "/api/ready"):
        assert client.get(path).json()["status"] == "ok"


def test_without_migration_it_waits_until_somebody_migrated(tmp_path: Path) -> None:
    settings = Settings(home=tmp_path, port=0, migrate_on_start=False)
    with running(settings) as server, httpx2.Client(base_url=server.url) as client:
        assert client.get("/api/health").status_code == 200
        assert 'job_runs_total{work="liveness"} 0' in client.get("/metrics").text
        waiting = client.get("/api/ready")
        assert waiting.status_code == 503
        assert "trainwatch db upgrade" in waiting.json()["detail"]
        assert waiting.headers["retry-after"] == "2"
        database = Database(settings.database_url)
        migrate.upgrade(database, "0001")
        assert client.get("/api/ready").status_code == 503
        migrate.upgrade(database)
        assert client.get("/api/ready").status_code == 200
        database.close()
        wait_for_jobs(client)


def wait_for_jobs(client: httpx2.Client) -> None:
    """Periodic work begins once there is a schema for it."""
    end = time.monotonic() + 60
    while not re.search(r'job_runs_total{work="liveness"} [1-9]', client.get("/metrics").text):
        assert time.monotonic() < end
        time.sleep(0.2)


def test_a_database_of_a_newer_version_is_no_reason_to_wait(server: Server, settings: Settings) -> None:
    """During an upgrade, servers of both versions run, and the newer one has migrated."""
    database = Database(settings.database_url)
    with database.write() as connection:
        connection.exec_driver_sql("UPDATE alembic_version SET version_num = '9999_future'")
    database.close()
    assert httpx2.get(f"{server.url}/api/ready").status_code == 200


def test_a_server_without_its_database_is_up_but_not_ready(tmp_path: Path) -> None:
    away = "postgresql://nobody@127.0.0.1:1/nothing?connect_timeout=2"
    settings = Settings(home=tmp_path, port=0, database=away, migrate_on_start=False)
    with running(settings) as server, httpx2.Client(base_url=server.url, timeout=30) as client:
        assert client.get("/api/health").status_code == 200
        answer = client.get("/api/ready")
        assert answer.status_code == 503
        assert "nobody" not in answer.text
