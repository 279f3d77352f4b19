"""The database: engine, column types, and the one way to read and to write."""

from __future__ import annotations

import json
import math
import sqlite3
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from contextvars import ContextVar
from pathlib import Path
from typing import Any, Final

import psycopg
from sqlalchemy import Connection, Dialect, Double, Engine, LargeBinary, MetaData, Text, create_engine, event, exc
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.engine import make_url
from sqlalchemy.pool import ConnectionPoolEntry
from sqlalchemy.schema import Table
from sqlalchemy.types import TypeDecorator

# Named, so that a later migration can drop or change a constraint on either database.
metadata: Final = MetaData(
    naming_convention={
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "ck": "ck_%(table_name)s_%(constraint_name)s",
        "fk": "fk_%(table_name)s_%(column_0_name)s_%(referred_table_name)s",
        "pk": "pk_%(table_name)s",
    }
)

_WRITES: Final = "trainwatch_writes"
_WAKES: Final = "trainwatch_wakes"
_SNAPSHOT: Final[dict[str, Any]] = {"isolation_level": "REPEATABLE READ"}
_BUSY_SECONDS: Final = 30
_guard: ContextVar[Callable[[Connection], None] | None] = ContextVar("guard", default=None)

# A server that is frozen, or cut off, in the middle of a transaction holds locks that others wait for. Postgres ends
# its session after so long, and notices a peer that is gone; the client notices a Postgres that is gone.
_SESSION: Final = (
    "SET idle_in_transaction_session_timeout = '10s'",
    "SET tcp_keepalives_idle = 5",
    "SET tcp_keepalives_interval = 2",
    "SET tcp_keepalives_count = 3",
    "SET tcp_user_timeout = 10000",
)
POSTGRES_CONNECTION: Final[dict[str, Any]] = {
    "connect_timeout": 5,
    "keepalives_idle": 5,
    "keepalives_interval": 2,
    "keepalives_count": 3,
    "tcp_user_timeout": 10_000,
}
"""How a connection to Postgres notices within seconds that nobody is there any more."""


class Reading(TypeDecorator[float]):
    """A measured value: NaN is stored as NULL, ±Infinity as itself.

    SQLite turns NaN into NULL anyhow; Postgres could keep it, but then the same query would answer differently on the
    two. A reading's row exists only if there was a value, so that NULL can mean nothing but NaN.
    """

    impl = Double
    cache_ok = True

    def process_bind_param(self, value: float | None, dialect: Dialect) -> float | None:
        """Turns NaN into NULL."""
        return None if value is None or math.isnan(value) else value

    def process_result_value(self, value: float | None, dialect: Dialect) -> float:
        """Turns NULL into NaN."""
        return math.nan if value is None else value


class Words(TypeDecorator[str]):
    """Text of any length, without NUL characters: Postgres refuses those, and no reader misses them."""

    impl = Text
    cache_ok = True

    def process_bind_param(self, value: str | None, dialect: Dialect) -> str | None:
        """Drops NUL characters."""
        return value.replace("\x00", "") if value else value

    def process_result_value(self, value: str | None, dialect: Dialect) -> str | None:
        """Passes the text on."""
        return value


class Document(TypeDecorator[dict[str, Any]]):
    """Plain nested values as JSON in a text column.

    Not a JSON column: Python writes NaN as the literal ``NaN``, which is no JSON but comes back as NaN.
    """

    impl = Text
    cache_ok = True

    def process_bind_param(self, value: dict[str, Any] | None, dialect: Dialect) -> str:
        """Writes the document."""
        return json.dumps(plain(value or {}))

    def process_result_value(self, value: str | None, dialect: Dialect) -> dict[str, Any]:
        """Reads the document."""
        return dict(json.loads(value)) if value else {}


class Packed(TypeDecorator[bytes]):
    """Bytes; as ``bytes`` on either database."""

    impl = LargeBinary
    cache_ok = True

    def process_result_value(self, value: Any, dialect: Dialect) -> bytes | None:
        """Unwraps what a driver returns."""
        return None if value is None else bytes(value)


def plain(value: Any, depth: int = 32) -> Any:
    """Returns `value` as something that JSON has a form for; what has none becomes text."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if depth == 0:
        return "…"
    if isinstance(value, dict):
        return {str(key): plain(inner, depth - 1) for key, inner in value.items()}
    if isinstance(value, list | tuple | set):
        return [plain(inner, depth - 1) for inner in value]
    return str(value)


class Database:
    """The engine, and who may write when.

    Args:
        url: SQLAlchemy address, ``sqlite:///…`` or ``postgresql+psycopg://…``.
    """

    def __init__(self, url: str) -> None:
        parsed = make_url(url)
        self.url = url
        self.wake: Callable[[str], None] = lambda _name: None
        """Told the names that :func:`wake_after_commit` noted, once they are committed."""
        self.kind = parsed.get_backend_name()
        # SQLite has one writer at a time. Waiting here, in order, is fairer and cheaper than SQLite's own polling.
        self._writer: AbstractContextManager[Any] = threading.Lock() if self.kind == "sqlite" else nullcontext()
        if self.kind == "sqlite":
            if parsed.database:
                Path(parsed.database).parent.mkdir(parents=True, exist_ok=True)
            self.engine = create_engine(
                url,
                pool_size=8,
                max_overflow=48,
                hide_parameters=True,  # an error that is logged must not say what was about to be stored
                connect_args={"timeout": _BUSY_SECONDS, "check_same_thread": False},
            )
            _prepare_sqlite(self.engine)
        else:
            self.engine = create_engine(
                url,
                pool_size=8,
                max_overflow=24,
                pool_pre_ping=True,
                hide_parameters=True,
                connect_args=POSTGRES_CONNECTION,
            )
            _prepare_postgres(self.engine)
        self._closed = False
        event.listen(self.engine, "checkin", self._returned)

    @contextmanager
    def read(self) -> Iterator[Connection]:
        """Opens a read transaction; never blocks, nor is blocked by, the writer."""
        with self.engine.connect() as plain_connection:
            # Several questions get answers of the same moment. SQLite does that anyhow; on Postgres points that are
            # packed between two of them would be found by neither.
            connection = (
                plain_connection.execution_options(**_SNAPSHOT) if self.kind == "postgresql" else plain_connection
            )
            with connection.begin():
                yield connection

    @contextmanager
    def write(self) -> Iterator[Connection]:
        """Opens a write transaction; committed at the end, rolled back on an exception.

        Whoever works under :func:`guarded` is checked first.
        """
        with self._writer, self.engine.connect() as plain_connection:
            connection = plain_connection.execution_options(**{_WRITES: True})
            try:
                with connection.begin():
                    check = _guard.get()
                    if check is not None:
                        check(connection)
                    yield connection
            except BaseException:
                connection.info.pop(_WAKES, None)
                raise
            wakes: set[str] = connection.info.pop(_WAKES, set())
        for name in wakes:
            self.wake(name)

    def close(self) -> None:
        """Closes all connections; one that a thread still works with, when it is done with it."""
        self._closed = True
        self.engine.dispose()

    def _returned(self, _connection: Any, record: ConnectionPoolEntry) -> None:
        if self._closed:
            record.invalidate()


@contextmanager
def guarded(check: Callable[[Connection], None]) -> Iterator[None]:
    """Has every write transaction of this thread begin with `check`, until the block ends.

    Args:
        check: Raises when the transaction must not be.
    """
    token = _guard.set(check)
    try:
        yield
    finally:
        _guard.reset(token)


@contextmanager
def driver(connection: Connection) -> Iterator[Any]:
    """Opens a cursor of the driver itself, for what SQLAlchemy has no words for, or takes too long for.

    Raises:
        DBAPIError: What the driver raised, as SQLAlchemy tells it.
    """
    cursor = connection.connection.cursor()
    try:
        yield cursor
    except (sqlite3.Error, psycopg.Error) as error:
        gone = connection.dialect.is_disconnect(error, connection.connection.dbapi_connection, cursor)  # type: ignore[arg-type]
        if gone:
            connection.invalidate(error)
        raise exc.DBAPIError.instance(
            None,
            None,
            error,
            connection.dialect.loaded_dbapi.Error,
            hide_parameters=True,
            connection_invalidated=gone,
        ) from error
    finally:
        with suppress(sqlite3.Error, psycopg.Error):
            cursor.close()


def _prepare_postgres(engine: Engine) -> None:
    @event.listens_for(engine, "connect")
    def on_connect(connection: Any, _record: Any) -> None:
        for line in _SESSION:
            connection.execute(line)
        connection.commit()


def wake_after_commit(connection: Connection, name: str) -> None:
    """Has a periodic job run as soon as this transaction is committed; not when it is rolled back.

    Args:
        connection: Of a write transaction.
        name: The job's name.
    """
    connection.info.setdefault(_WAKES, set()).add(name)


def _prepare_sqlite(engine: Engine) -> None:
    @event.listens_for(engine, "connect")
    def on_connect(connection: Any, _record: Any) -> None:
        # The driver's own transaction handling begins too late and knows no BEGIN IMMEDIATE.
        connection.isolation_level = None
        cursor = connection.cursor()
        cursor.execute("PRAGMA journal_mode = WAL")
        # With WAL, NORMAL survives every death of the process. After a power cut the last commits may be missing; the
        # stored sequences are then missing with them, and the agents send the rest again.
        cursor.execute("PRAGMA synchronous = NORMAL")
        cursor.execute("PRAGMA foreign_keys = ON")
        cursor.execute("PRAGMA temp_store = MEMORY")
        cursor.execute("PRAGMA cache_size = -32768")
        cursor.close()

    @event.listens_for(engine, "begin")
    def on_begin(connection: Connection) -> None:
        # A transaction that reads first and writes later fails with SQLITE_BUSY when another wrote in between.
        writes = connection.get_execution_options().get(_WRITES)
        connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")


def insert_for(dialect: str, table: Table) -> sqlite.Insert:
    """Returns an INSERT for `table` that knows ON CONFLICT; the two databases spell it alike."""
    if dialect == "postgresql":
        return postgresql.insert(table)  # type: ignore[return-value]
    return sqlite.insert(table)
