"""The Postgres dashboard's queries, asked of a Postgres."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import pytest
from sqlalchemy import text

import trainwatch
from tests.postgres import temporary_postgres
from tests.server.shipping import RUN, batch, shipment, started, step
from trainwatch.server import migrate
from trainwatch.server.db import Database
from trainwatch.server.ingest.shipments import Ingest

PATH: Final = Path(trainwatch.__file__).parent.parent / "deploy" / "grafana" / "runs-postgres.json"
DASHBOARD: Final[dict[str, Any]] = json.loads(PATH.read_text("utf-8"))
TARGETS: Final = [
    (panel["title"], target["rawSql"]) for panel in DASHBOARD["panels"] for target in panel["targets"]
] + [(one["name"], one["query"]) for one in DASHBOARD["templating"]["list"] if one["type"] == "query"]
EXPECTED: Final = {"Runs": 1, "Last values of the run": 1, "project": 1, "run": 1, "metric": 1}


def filled(sql: str) -> str:
    """Does what Grafana does before it sends a query."""
    values = {"project:singlequote": "'default'", "run": RUN, "metric": "train/loss"}
    sql = re.sub(r"\$\{([\w:]+)\}", lambda match: values[match[1]], sql)
    sql = re.sub(r"\$__unixEpochFilter\((\w+)\)", r"\1 >= 0 AND \1 <= 4000000000", sql)
    assert "$" not in sql
    return sql


@pytest.fixture(scope="module")
def filled_database() -> Iterator[Database]:
    """A Postgres with a run of 2,500 steps."""
    with temporary_postgres() as url:
        database = Database(url)
        migrate.upgrade(database)
        steps = [step(n, math.nan if n == 5 else float(n)) for n in range(1, 2501)]
        ingest = Ingest(database, lambda _run, _version: None, lambda: 0.0)
        # The last 20 are rows: too few come at once to be packed at once.
        for at, end in pairwise([0, 500, 1000, 1500, 2000, 2480, 2500]):
            content = [started(), *steps[:end]] if at == 0 else steps[at:end]
            ingest.accept(shipment(batch(content, first=at + (at > 0))))
        yield database
        database.close()


@pytest.mark.parametrize(("title", "sql"), TARGETS, ids=[f"{title} {n}" for n, (title, _) in enumerate(TARGETS)])
def test_every_query_of_the_dashboard_answers(filled_database: Database, title: str, sql: str) -> None:
    with filled_database.read() as connection:
        rows = connection.execute(text(filled(sql).replace(":", r"\:"))).all()
    assert rows, title
    assert len(rows) == EXPECTED.get(title, len(rows))


def test_nothing_is_shown_twice(filled_database: Database) -> None:
    """Fresh and packed points together are all points."""
    with filled_database.read() as connection:
        fresh = connection.scalar(text("SELECT count(*) FROM fresh_points")) or 0
        packed = connection.scalar(text("SELECT sum(points) FROM chunk_summary")) or 0
        assert fresh + packed == connection.scalar(text("SELECT points FROM run_overview")) == 2500
        assert fresh
        assert packed
