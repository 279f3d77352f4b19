"""Waits for somebody who waits."""

from __future__ import annotations

import time

from sqlalchemy import Engine, text

from tests.patience import PATIENCE


def wait_for_a_lock(engine: Engine) -> None:
    """Waits until somebody waits for a lock in a Postgres database.

    Args:
        engine: Of the database.
    """
    deadline = time.monotonic() + PATIENCE
    with engine.connect() as connection:
        while not connection.scalar(text("SELECT count(*) FROM pg_locks WHERE NOT granted")):
            assert time.monotonic() < deadline, "nobody waits"
            connection.rollback()
            time.sleep(0.02)
