from __future__ import annotations

import math
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import inspect, text

from tests.server.shipping import batch, shipment, started, step
from tests.server.telling import Telling, finding
from trainwatch.server import migrate, models, upkeep
from trainwatch.server.db import Database, metadata
from trainwatch.server.ingest.shipments import Ingest
from trainwatch.server.jobs import rolling
from trainwatch.server.settings import Refused
from trainwatch.server.store import channels, points, records, removal, runs


def test_the_migrated_schema_is_the_one_the_code_expects(database: Database) -> None:
    with database.read() as connection:
        context = MigrationContext.configure(connection, opts={"compare_type": True, "compare_server_default": True})
        assert compare_metadata(context, metadata) == []
    assert models.runs.name in metadata.tables
    assert migrate.current(database) == migrate.newest()


def test_down_and_up_again_from_empty_and_from_data(empty_database: Database) -> None:
    database = empty_database
    for _ in range(2):
        migrate.upgrade(database)
        ingest = Ingest(database, lambda _run, _version: None, lambda: 0.0)
        answer = ingest.accept(shipment(batch([started(), *(step(n) for n in range(1, 3000))])))
        assert answer.next == {"0123456789abcdef": {"rank0": 3000}}
        migrate.downgrade(database)
        assert migrate.current(database) is None
        assert set(inspect(database.engine).get_table_names()) <= {"alembic_version"}


def test_what_the_first_schema_holds_survives_the_way_up_and_down(empty_database: Database) -> None:
    database = empty_database
    migrate.upgrade(database, "0001")
    with database.write() as connection:
        for line in _OF_THE_FIRST_SCHEMA:
            connection.execute(text(line))
    migrate.upgrade(database)
    with database.read() as connection:
        found = runs.detail(connection, "old", charts=[], now=2000.0)
        assert records.setups_of(connection, "old") == {
            0: {"arguments": {"lr": math.inf}, "environment": {"torch": "2.9.0"}, "model": {}},
            1: {},
        }
        assert {name: one.started_at for name, one in records.sources_of(connection, "old").items()} == {
            "rank0~aaaa0000": 1000.0,
            "rank1~bbbb0000": 1001.0,
            "agent@node": None,
        }
    assert found is not None
    assert (found.step, found.environment, found.dataset, found.differences) == (7, {"torch": "2.9.0"}, {}, [])
    # It goes on as it is: the next steps of a process that was there already replace nothing.
    ingest = Ingest(database, lambda _run, _version: None, lambda: 0.0)
    content = [step(n, time=1000.0 + n) for n in range(8, 12)]
    ingest.accept(shipment(batch(content, run="old", source="rank0~aaaa0000", first=5)))
    with database.read() as connection:
        assert [tuple(one) for one in records.attempts_of(connection, "old")] == [(0, 1000.0, 8, 0)]
    migrate.downgrade(database, "0001")
    with database.read() as connection:
        assert connection.execute(text("SELECT step FROM runs")).scalar() == 11
        assert connection.execute(text("SELECT count(*) FROM ranks")).scalar() == 2
    migrate.upgrade(database)


def test_channels_go_and_alerts_stay_on_the_way_down_and_up(empty_database: Database) -> None:
    database = empty_database
    migrate.upgrade(database)
    told = Telling(database)
    told.channel("http://127.0.0.1:1/", digest_most=1, digest_seconds=60.0)
    told.tell(*(finding(n, key=f"device {n}") for n in range(1, 4)))
    told.send()
    told.send(61)
    with database.write() as connection:
        silence = {"project": "default", "rule": "", "run": "", "reason": "", "until": math.inf, "created_at": 0.0}
        channels.add_silence(connection, silence)
    migrate.downgrade(database, "0004")
    assert not {"channels", "deliveries", "silences"} & set(inspect(database.engine).get_table_names())
    with database.read() as connection:
        assert connection.execute(text("SELECT count(*) FROM alerts")).scalar() == 3
    migrate.upgrade(database)
    assert told.rows() == []
    told.channel("http://127.0.0.1:1/")
    told.tell(finding(9, key="device 1", severity="critical"))
    assert told.states() == ["waiting"]


def test_points_survive_the_way_down_and_up_without_rollups(empty_database: Database) -> None:
    database = empty_database
    migrate.upgrade(database)
    ingest = Ingest(database, lambda _run, _version: None, lambda: 0.0)
    ingest.accept(shipment(batch([started(), *(step(n, 1 / n) for n in range(1, 20_001))])))
    ingest.accept(shipment(batch([step(n, 1 / n) for n in range(20_001, 20_031)], first=20_001)))
    rolling.catch_up(database)
    with database.write() as connection:
        removal.keep(connection, "default", removal.Kept(raw=1), 0.0)
        removal.delete_run(connection, "never", 0.0)
        assert connection.execute(text("SELECT count(*) FROM rollups")).scalar() == 1
        packed = connection.execute(text("SELECT count(*) FROM chunks")).scalar()
        views = [connection.execute(text(f"SELECT * FROM {view}")).all() for view in _VIEWS]
        assert [len(rows) for rows in views] == [1, 1, 30, packed]
        assert views[0][0].points == 20_030
    migrate.downgrade(database, "0005")
    with database.read() as connection:
        assert connection.execute(text("SELECT count(*) FROM chunks")).scalar() == packed
        assert connection.execute(text("SELECT points, fresh FROM series")).one() == (20_030, 30)
    migrate.upgrade(database)
    assert rolling.catch_up(database) == 1
    assert upkeep.check(database, deep=True)[0] == []
    with database.read() as connection:
        assert removal.kept_of(connection, "default") == (removal.Kept(), None)
        [one] = points.listed(connection, "0123456789abcdef")
        assert points.read(connection, one.id).step.tolist() == list(range(1, 20_031))


_VIEWS = ("run_overview", "last_values", "fresh_points", "chunk_summary")
_OF_THE_FIRST_SCHEMA = [
    "INSERT INTO runs (id, project, name, state, node, started_at, last_event_at, heard_at, superseded_until, step,"
    " max_steps, world_size, described_by, policy, loss_source, output_dir, arguments, environment, model, ending,"
    " version) VALUES ('old', 'default', 'old', 'running', 'node', 1000, 1007, 1007, 0, 7, 0, 2, 0, 'record', '', '',"
    """ '{"lr": Infinity}', '{"torch": "2.9.0"}', '{}', '{}', 1)""",
    *(
        "INSERT INTO ranks (run, rank, node, source, started_at, pid, state, step, phase, last_event_at, reason,"
        f" parameters, error, traceback, oom_kills) VALUES ('old', {rank}, 'node', '{source}', {1000 + rank}, 1,"
        " 'running', 7, '', 1007, '', '{}', '', '', 0)"
        for rank, source in enumerate(("rank0~aaaa0000", "rank1~bbbb0000"))
    ),
    *(
        "INSERT INTO sources (run, source, node, rank, next, lost, reported_errors, reported_lost, message)"
        f" VALUES ('old', '{source}', 'node', {rank}, 5, '{{}}', '{{}}', '{{}}', '')"
        for source, rank in (("rank0~aaaa0000", 0), ("rank1~bbbb0000", 1), ("agent@node", "NULL"))
    ),
]


def test_the_revisions_are_those_that_alembic_knows() -> None:
    config = Config()
    config.set_main_option("script_location", "trainwatch:migrations")
    known = [script.revision for script in ScriptDirectory.from_config(config).walk_revisions()]
    assert known[0] == migrate.newest()
    assert len(known) >= 7


def test_where_there_is_nothing_to_migrate_alembic_is_not_loaded(database: Database) -> None:
    look = (
        "import sys; from trainwatch.server import main, migrate; from trainwatch.server.db import Database;"
        " database = Database(sys.argv[1]); migrate.upgrade(database); assert not migrate.is_behind(database);"
        " database.close(); assert 'alembic' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", look, database.url], check=True)


def test_servers_that_start_at_once_migrate_once(empty_database: Database) -> None:
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda _: migrate.upgrade(empty_database), range(4)))
    assert migrate.current(empty_database) == migrate.newest()


def test_a_database_of_a_newer_version_is_refused_with_a_sentence(database: Database) -> None:
    with database.write() as connection:
        connection.exec_driver_sql("UPDATE alembic_version SET version_num = '9999'")
    with pytest.raises(Refused, match="newer version of TrainWatch"):
        migrate.upgrade(database)
