"""``trainwatch db``: looks after the database itself. It needs no server and no token."""

from __future__ import annotations

import argparse
import math
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from trainwatch.cli.database import opened, opened_at
from trainwatch.cli.terminal import Failure, Mistake, counted, need, say

if TYPE_CHECKING:
    from trainwatch.server.db import Database
    from trainwatch.server.store.removal import Standing

_DAY: Final = 86_400.0
_SHOWN: Final = 50
_AGAIN: Final = 1.0
_MIB: Final = 1 << 20


def add(commands: Any, home: argparse.ArgumentParser) -> None:
    """Adds the command to the parser."""
    parser = commands.add_parser("db", help="check, tidy up, back up, copy or upgrade the database; archive runs")
    tasks = parser.add_subparsers(dest="task", metavar="TASK", required=True)
    where = argparse.ArgumentParser(add_help=False, parents=[home])
    where.add_argument("--database", metavar="URL", help="e.g. postgresql://user@host/name (default: SQLite in --home)")

    check = tasks.add_parser("check", parents=[where], help="look for what does not fit together")
    check.add_argument("--deep", action="store_true", help="unpack every packed point, too")
    check.set_defaults(run=_check)

    vacuum = tasks.add_parser("vacuum", parents=[where], help="give the disk back what is not needed any more")
    vacuum.set_defaults(run=_vacuum)

    backup = tasks.add_parser("backup", parents=[where], help="copy an SQLite database to a file; a server may run")
    backup.add_argument("file", type=Path, metavar="FILE", help="the file to make")
    backup.set_defaults(run=_backup)

    copy = tasks.add_parser("copy", parents=[where], help="copy everything into an empty database of either kind")
    copy.add_argument("target", metavar="URL", help="e.g. postgresql://user@host/name or sqlite:////path/to/file.db")
    copy.set_defaults(run=_copy)

    archive = tasks.add_parser("archive", parents=[where], help="write runs to Parquet files")
    archive.add_argument("runs", nargs="*", metavar="RUN", help="ids of runs")
    archive.add_argument("--older-than", type=float, metavar="DAYS", help="all runs not heard for so many days")
    archive.add_argument("--project", metavar="P", help="with --older-than: only this project's")
    archive.add_argument("--to", type=Path, default=Path(), metavar="FOLDER", help="where to (default: here)")
    archive.add_argument("--delete", action="store_true", help="delete each run once its file is written")
    archive.set_defaults(run=_archive)

    restore = tasks.add_parser("restore", parents=[where], help="bring back runs from Parquet files")
    restore.add_argument("files", nargs="+", type=Path, metavar="FILE", help="as `trainwatch db archive` made it")
    restore.set_defaults(run=_restore)

    upgrade = tasks.add_parser("upgrade", parents=[where], help="bring the schema to this version's")
    upgrade.add_argument(
        "--wait", type=_seconds, default=0.0, metavar="S", help="wait so long for the database to answer (default: 0)"
    )
    upgrade.set_defaults(run=_upgrade)


def _check(options: argparse.Namespace) -> int:
    with opened(options, migrated=False) as database:
        from trainwatch.server import migrate, upkeep

        if migrate.current(database) != migrate.newest():
            raise Mistake("the database is of another version of TrainWatch: run `trainwatch db upgrade` first.")
        problems, rows = upkeep.check(database, deep=options.deep)
    say(", ".join(counted(rows[name], name.removesuffix("s"), name) for name in ("runs", "series", "points in all")))
    for problem in problems[:_SHOWN]:
        say(f"  {problem}")
    if problems:
        raise Failure(f"{counted(len(problems), 'problem')} found; restore a backup, or ask on the issue tracker.")
    say("Everything fits together.")
    return 0


def _vacuum(options: argparse.Namespace) -> int:
    with opened(options) as database:
        from trainwatch.server import upkeep

        before, after = upkeep.vacuum(database)
    say(f"{before / _MIB:,.1f} MiB before, {after / _MIB:,.1f} MiB now.")
    return 0


def _backup(options: argparse.Namespace) -> int:
    with opened(options, migrated=False) as database:
        from trainwatch.server import upkeep

        size = upkeep.backup(database, options.file)
    say(f"{options.file}: {size / _MIB:,.1f} MiB, checked.")
    return 0


def _copy(options: argparse.Namespace) -> int:
    with opened(options, migrated=False) as source:
        from trainwatch.server import upkeep
        from trainwatch.server.settings import Settings

        with opened_at(Settings(database=options.target).database_url, migrated=False) as target:
            rows = upkeep.copy(source, target, lambda name, count: say(f"  {name}: {counted(count, 'row')}"))
    say(f"{counted(rows, 'row')} copied and read back: they are the same.")
    return 0


def _archive(options: argparse.Namespace) -> int:
    need(("pyarrow",), "archive")
    if bool(options.runs) == (options.older_than is not None):
        raise Mistake("name runs, or say --older-than DAYS")
    options.to.mkdir(parents=True, exist_ok=True)
    moment = math.inf if options.older_than is None else time.time() - options.older_than * _DAY
    with opened(options) as database:
        names = options.runs or _old(database, options, moment)
        kept = [name for name in names if not _archive_one(database, name, options, moment)]
    if not names:
        say("No run is that old.")
    if kept:
        raise Failure(f"{counted(len(kept), 'run')} not deleted: {', '.join(kept)}")
    return 0


def _archive_one(database: Database, name: str, options: argparse.Namespace, moment: float) -> bool:
    """Archives a run, and deletes it if that is wanted.

    Returns:
        Whether all was done that was wanted; a run that changed meanwhile is not deleted.

    Raises:
        Mistake: It was named to be deleted, and is not over.
    """
    from trainwatch.server import archive
    from trainwatch.server.store import removal

    # Before it is written: a run that stands there still when it is deleted stood there all the time.
    with database.read() as connection:
        before = removal.standing_of(connection, name)
    if options.runs and options.delete and before is not None and not before.is_over():
        raise Mistake(f"run {name!r} is not over: halt it first, or archive it without --delete")
    if not options.runs and (before is None or not before.is_over(moment)):
        return True  # heard again, or deleted, since it was found to be old
    target = options.to / f"{name}{archive.SUFFIX}"
    points = archive.write(database, name, target)
    end, done = "", True
    if options.delete:
        done = _deleted(database, name, moment, before)
        end = "; the run is deleted" if done else "; the run changed meanwhile, and is not deleted"
    say(f"{target}: {counted(points, 'point')}, {target.stat().st_size / _MIB:,.1f} MiB{end}")
    return done


def _deleted(database: Database, name: str, moment: float, before: Standing | None) -> bool:
    from trainwatch.server.store import removal

    try:
        with database.write() as connection:
            removal.delete_run(connection, name, time.time(), moment=moment, unchanged=before)
    except removal.InUse:
        return False
    return True


def _old(database: Database, options: argparse.Namespace, moment: float) -> list[str]:
    from trainwatch.server.store import removal

    with database.read() as connection:
        return removal.silent_since(connection, options.project, moment)


def _restore(options: argparse.Namespace) -> int:
    need(("pyarrow",), "archive")
    with opened(options) as database:
        from trainwatch.server import archive

        for file in options.files:
            if not file.is_file():
                raise Mistake(f"there is no file {file}")
            run, points = archive.read(database, file)
            say(f"Run {run}: {counted(points, 'point')}")
    return 0


def _upgrade(options: argparse.Namespace) -> int:
    with opened(options, migrated=False) as database:
        from sqlalchemy import exc

        from trainwatch.server import migrate

        end = time.monotonic() + options.wait
        while True:
            try:
                before = migrate.current(database)
                migrate.upgrade(database)
                break
            except (exc.OperationalError, exc.InterfaceError):
                if time.monotonic() > end:
                    raise
            time.sleep(_AGAIN)
    after = migrate.newest()
    say(
        f"The schema is {after} already."
        if before == after
        else f"Brought the schema from {before or 'none'} to {after}."
    )
    return 0


def _seconds(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = -1.0
    if not 0 <= number <= 3600:
        raise argparse.ArgumentTypeError(f"{text!r} is no number of seconds from 0 to 3600")
    return number
