from __future__ import annotations

import math
import sqlite3
import threading
from typing import Any

import pytest
from sqlalchemy import insert, select, text

from tests.patience import PATIENCE
from trainwatch.server.db import Database, plain
from trainwatch.server.models import points


def test_a_reading_keeps_every_value_and_nan_is_null(database: Database) -> None:
    values = [1.5, math.nan, math.inf, -math.inf, 0.0, 5e-324, 1.7976931348623157e308]
    with database.write() as connection:
        connection.execute(
            insert(points),
            [{"series": 1, "position": i, "step": i, "time": 0.0, "value": v} for i, v in enumerate(values)],
        )
    with database.read() as connection:
        found = list(connection.scalars(select(points.c.value).order_by(points.c.position)))
        nulls = connection.execute(text("SELECT position FROM points WHERE value IS NULL")).scalars().all()
    assert [repr(v) for v in found] == [repr(v) for v in values]
    assert nulls == [1]


def test_a_reader_neither_waits_for_a_writer_nor_sees_half_of_it(database: Database) -> None:
    row = {"series": 1, "position": 0, "step": 0, "time": 0.0, "value": 1.0}
    inside, leave = threading.Event(), threading.Event()

    def write() -> None:
        with database.write() as connection:
            connection.execute(insert(points), [row])
            inside.set()
            leave.wait(PATIENCE)

    writer = threading.Thread(target=write)
    writer.start()
    try:
        assert inside.wait(PATIENCE)
        with database.read() as connection:
            assert connection.execute(select(points)).all() == []
    finally:
        leave.set()
        writer.join(PATIENCE)
    with database.read() as connection:
        assert len(connection.execute(select(points)).all()) == 1


def test_what_fails_half_way_leaves_nothing(database: Database) -> None:
    row = {"series": 1, "position": 0, "step": 0, "time": 0.0, "value": 1.0}

    def fail() -> None:
        with database.write() as connection:
            connection.execute(insert(points), [row])
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    with database.read() as connection:
        assert connection.execute(select(points)).all() == []


def test_plain_gives_everything_a_json_form() -> None:
    deep: list[object] = []
    for _ in range(100):
        deep = [deep]
    assert plain({1: {2.5}, "b": b"x", None: (None, True)}) == {"1": [2.5], "b": "b'x'", "None": [None, True]}
    assert "…" in str(plain(deep))


def test_a_connection_in_use_when_the_database_is_closed_is_closed_after_it(database: Database) -> None:
    """A server that ends does not wait for every reader."""
    with database.engine.connect() as connection:
        inner: Any = connection.connection.dbapi_connection
        connection.exec_driver_sql("SELECT 1")
        database.close()
        assert connection.exec_driver_sql("SELECT 2").scalar() == 2
    if database.kind == "postgresql":
        assert inner.closed
    else:
        with pytest.raises(sqlite3.ProgrammingError, match="closed"):
            inner.execute("SELECT 1")
