"""``trainwatch import``: runs that other tools recorded. (A module cannot be called ``import``.)"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from trainwatch import settings
from trainwatch.cli.terminal import Failure, Mistake, counted, say, settings_with
from trainwatch.importing import ImportedRun, OtherFileError, UnreadableError, find, read
from trainwatch.importing.write import write
from trainwatch.local import version_at
from trainwatch.settings import Settings, is_name

_WIDTH: Final = 30
_REDRAW_SECONDS: Final = 0.1


def add(commands: Any, home: argparse.ArgumentParser) -> None:
    """Adds the command to the parser."""
    parser = commands.add_parser("import", parents=[home], help="import runs that other tools recorded")
    parser.add_argument("paths", nargs="+", type=Path, metavar="PATH", help="files, or folders of files")
    parser.add_argument(
        "--project", metavar="P", help="their project (default: as the file tells, else TRAINWATCH_PROJECT)"
    )
    parser.add_argument("--name", metavar="N", help="the run's name (default: as the file tells)")
    parser.add_argument("--server", metavar="URL", help=f"the server's address (default: {settings.DEFAULT_SERVER})")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Imports, and ships when a server is there."""
    home = None if options.home is None else str(options.home)
    chosen = settings_with({"TRAINWATCH_HOME": home, "TRAINWATCH_SERVER": options.server})
    if options.project is not None and not is_name(options.project):
        raise Mistake(f"--project {options.project!r}: use letters, digits, '-', '_' and '.', at most 100")
    for path in options.paths:
        if not path.exists():
            raise Mistake(f"{path} does not exist")
    ids: list[str] = []
    failed = others = 0
    for path, named in find(options.paths):
        try:
            ids.append(_one(path, chosen, options))
        except OtherFileError as error:
            if named:
                failed += 1
                sys.stderr.write(f"{error}\n")
            others += not named
        except UnreadableError as error:
            failed += 1
            sys.stderr.write(f"{error}\n")
        except OSError as error:
            raise Failure(f"{path} could not be written to {chosen.journals}: {error.strerror or error}") from None
    if others:
        say(f"{counted(others, 'other file')} passed over: no logs of a training.")
    if ids:
        _ship(chosen, ids)
    if failed or not ids:
        raise Failure(f"{counted(failed, 'file')} could not be imported." if failed else "there is no log to import.")
    return 0


def _one(path: Path, chosen: Settings, options: argparse.Namespace) -> str:
    found = read(path)
    project = options.project or (found.project if is_name(found.project) else chosen.project)
    run_id, is_new = write(
        found, chosen, project=project, name=options.name or "", progress=_bar(path.name, found.points)
    )
    if sys.stderr.isatty():
        sys.stderr.write("\r\033[K")
    if not is_new:
        say(f"{path}: is there already, as {run_id}")
        return run_id
    say(f"{path}: {counted(found.points, 'point')} ({found.format}) are run {run_id} of project {project}")
    _say_what_is_odd(found)
    return run_id


def _say_what_is_odd(found: ImportedRun) -> None:
    for note in found.notes:
        say(f"  {note}")
    for reason, count in sorted(found.skipped.items()):
        say(f"  left out: {reason} ({count:,})")


def _bar(name: str, total: int) -> Callable[[int], None]:
    """Returns what draws a progress bar, once an import takes long enough to be waited for."""
    if not sys.stderr.isatty() or total < 1:
        return lambda point: None
    drawn = time.monotonic() + 5 * _REDRAW_SECONDS

    def draw(point: int) -> None:
        nonlocal drawn
        now = time.monotonic()
        if now - drawn < _REDRAW_SECONDS:
            return
        drawn = now
        share = min((point + 1) / total, 1.0)
        filled = round(share * _WIDTH)
        sys.stderr.write(f"\r{name[:40]} [{'#' * filled}{'.' * (_WIDTH - filled)}] {share:4.0%}\033[K")
        sys.stderr.flush()

    return draw


def _ship(chosen: Settings, ids: list[str]) -> None:
    from trainwatch.agent.sync import sync

    if not version_at(chosen.server):
        what = "it" if len(ids) == 1 else "them"
        say(f"No server answers at {chosen.server}: `trainwatch serve` or `trainwatch sync` will ship {what}.")
        return
    for run_id in ids:
        try:
            report = sync(chosen, run=run_id)
        except (ValueError, OSError) as error:
            raise Failure(f"{chosen.server}: {error}") from None
        if report.left:
            raise Failure(f"{run_id} could not be shipped to {chosen.server} and stays on disk: {report.problem}")
        say(f"  {chosen.server}/runs/{run_id}")
