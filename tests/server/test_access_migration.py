from __future__ import annotations

import time

import anyio
from pydantic import SecretStr
from sqlalchemy import inspect, text

from tests.server.keys import make_token
from tests.server.shipping import RUN, batch, shipment, started
from trainwatch.server import migrate
from trainwatch.server.access import Keyring
from trainwatch.server.db import Database
from trainwatch.server.ingest.shipments import Ingest
from trainwatch.server.settings import Settings


def test_tokens_and_sessions_go_on_the_way_down_and_runs_stay(empty_database: Database) -> None:
    database = empty_database
    keyring = Keyring(Settings(token=SecretStr("own")), database, time.time, time.monotonic)
    for _ in range(2):
        migrate.upgrade(database)
        Ingest(database, lambda _run, _version: None, time.time).accept(shipment(batch([started()])))
        token = make_token(database, "read")
        for shown in (token, "own"):
            keyring.open_session(anyio.run(keyring.of_token, shown, ""))
        keyring.forget()
        with database.read() as connection:
            counts = [connection.scalar(text(f"SELECT count(*) FROM {name}")) for name in ("tokens", "sessions")]
        assert counts == [1, 2]
        migrate.downgrade(database, "0003")
        assert not {"tokens", "sessions"} & set(inspect(database.engine).get_table_names())
        with database.read() as connection:
            assert connection.scalar(text("SELECT id FROM runs")) == RUN
