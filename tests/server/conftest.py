"""A real server on a real socket over a real database file."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx2
import pytest
from sqlalchemy import create_engine, text

from tests.patience import PATIENCE
from tests.postgres import find_postgres, temporary_postgres
from tests.server.receiver import Receiver, receiving
from tests.server.telling import Telling
from trainwatch.server import migrate
from trainwatch.server.db import Database
from trainwatch.server.main import Server
from trainwatch.server.settings import Settings


@contextmanager
def running(settings: Settings) -> Iterator[Server]:
    """Runs a server in a thread until the block ends."""
    server = Server(settings)
    up = threading.Event()
    thread = threading.Thread(target=server.run, args=(lambda _url: up.set(),))
    thread.start()
    try:
        assert up.wait(PATIENCE), "the server did not come up"
        yield server
    finally:
        server.stop()
        thread.join(PATIENCE)
        assert not thread.is_alive(), "the server did not stop"


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    """Settings for a server of the test's own."""
    return Settings(home=tmp_path, port=0)


@pytest.fixture
def server(settings: Settings) -> Iterator[Server]:
    """A running server without a token."""
    with running(settings) as found:
        yield found


@pytest.fixture
def client(server: Server) -> Iterator[httpx2.Client]:
    """A client of the server."""
    with httpx2.Client(base_url=server.url, timeout=PATIENCE) as found:
        yield found


@pytest.fixture
def sqlite(tmp_path: Path) -> Iterator[Database]:
    """A migrated SQLite database."""
    yield from _migrated(f"sqlite:///{tmp_path / 'store.db'}")


@pytest.fixture(params=["sqlite", "postgresql"])
def database(request: pytest.FixtureRequest) -> Iterator[Database]:
    """A migrated database, once of each kind."""
    url: Callable[[], str] = request.getfixturevalue("new_url")
    yield from _migrated(url())


@pytest.fixture(params=["sqlite", "postgresql"])
def empty_database(request: pytest.FixtureRequest) -> Iterator[Database]:
    """A database without a schema, once of each kind."""
    url: Callable[[], str] = request.getfixturevalue("new_url")
    found = Database(url())
    yield found
    found.close()


@pytest.fixture
def new_url(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[], str]:
    """Makes addresses of empty databases, of the kind that the test's parameter names."""

    def sqlite_url() -> str:
        return f"sqlite:///{tmp_path / uuid.uuid4().hex}.db"

    def postgresql_url() -> str:
        url: str = request.getfixturevalue("postgres")
        engine = create_engine(url)
        with engine.begin() as connection:
            connection.execute(text("DROP SCHEMA public CASCADE"))
            connection.execute(text("CREATE SCHEMA public"))
        engine.dispose()
        return url

    kinds = {"sqlite": sqlite_url, "postgresql": postgresql_url}
    return kinds[request.node.callspec.params.get("database") or request.node.callspec.params["empty_database"]]


@pytest.fixture(scope="session")
def postgres() -> Iterator[str]:
    """The address of a Postgres server that lives as long as the tests."""
    if find_postgres() is None:
        pytest.fail("there is no Postgres on this machine: `make setup` gets one")
    with temporary_postgres() as url:
        yield url


def _migrated(url: str) -> Iterator[Database]:
    database = Database(url)
    migrate.upgrade(database)
    yield database
    database.close()


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    """A receiver of messages."""
    with receiving() as found:
        yield found


@pytest.fixture
def telling(database: Database) -> Telling:
    """A run whose agent tells findings, and a sender."""
    return Telling(database)
