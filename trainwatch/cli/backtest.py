"""``trainwatch backtest``: what the rules would have said of runs that are over."""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec

from trainwatch.cli.rules import chosen, settings_in
from trainwatch.cli.terminal import Failure, Mistake, counted, say, settings_with
from trainwatch.events import Severity
from trainwatch.importing import ImportedRun, OtherFileError, UnreadableError, find, read, read_recorded
from trainwatch.rules import RULES
from trainwatch.rules.base import SEVERITIES
from trainwatch.rules.replay import Replayed, Report, replay

_AT_MOST = 5
"""Runs that the text names for one rule."""


class Tried(msgspec.Struct, kw_only=True):
    """One file or run.

    Attributes:
        file: As it was named.
        result: What came of it; None when it could not be read.
        error: Why not.
        is_log: Whether it is a log of a training at all.
    has_times: Whether its times are its own, and not made up where it tells none.
    """

    file: str
    result: Replayed | None = None
    error: str = ""
    is_log: bool = True
    has_times: bool = True


def add(commands: Any, home: argparse.ArgumentParser) -> None:
    """Adds the command to the parser."""
    parser = commands.add_parser("backtest", parents=[home], help="try the rules on runs that are over")
    parser.add_argument("targets", nargs="+", metavar="RUN|FILE|FOLDER", help="runs by id, files, or folders of files")
    parser.add_argument("--rules", type=Path, metavar="FILE.toml", help="options of rules, as in trainwatch.toml")
    parser.add_argument("--rule", action="append", default=[], metavar="ID", help="only this rule; may be repeated")
    parser.add_argument("--format", choices=("text", "json"), default="text", help="how to print (default: text)")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Tries the rules, and says what they would have said."""
    only = chosen(options.rule)
    settings = settings_in(options.rules)
    journals = settings_with({"TRAINWATCH_HOME": None if options.home is None else str(options.home)}).journals
    targets = list(_targets(options.targets, journals))
    done: list[Tried] = []
    counting = options.format == "text" and sys.stderr.isatty()
    for number, (name, make) in enumerate(targets, 1):
        one = _try(name, make, settings, only)
        done.append(one)
        if options.format == "json":
            say(json_line(one))
        elif counting:
            sys.stderr.write(f"\r{number:,} of {len(targets):,}\033[K")
    if counting:
        sys.stderr.write("\r\033[K")
    if options.format == "text":
        _print(done)
    if not any(one.result for one in done):
        raise Failure(f"none of {counted(len(done), 'file')} could be read.")
    return 0


def _targets(names: list[str], journals: Path) -> Iterator[tuple[str, Callable[[], ImportedRun]]]:
    """Yields what to try: its name, and what reads it."""
    for name in names:
        path = Path(name)
        if path.exists():
            for file, named in find([path]):
                yield name if named else str(file), lambda file=file: read(file)  # type: ignore[misc]
        elif name and (journals / name).is_dir():
            yield name, lambda name=name: read_recorded(journals, name)  # type: ignore[misc]
        else:
            raise Mistake(f"{name!r} is no file and no folder, and there is no such run in {journals}")


def _try(name: str, make: Callable[[], ImportedRun], settings: Any, only: frozenset[str]) -> Tried:
    try:
        found = make()
        try:
            result = replay(found.events(), RULES, settings, only=only)
        except Exception:
            # A rule's fault. Once more, with each rule for itself, which takes longer: the others must not lose theirs.
            faults = _Faults(name)
            result = replay(found.events(), RULES, settings, only=only, guard=faults)
        return Tried(file=name, result=result, has_times=found.clock != "made up")
    except UnreadableError as error:
        return Tried(file=name, error=str(error), is_log=not isinstance(error, OtherFileError))
    except OSError as error:
        return Tried(file=name, error=f"{name}: {error.strerror or error}.")


class _Faults:
    """Lets a rule's exception pass, and says once which rule it was."""

    def __init__(self, file: str) -> None:
        self._file = file
        self._told: set[str] = set()

    @contextlib.contextmanager
    def __call__(self, what: str) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            if what not in self._told:
                self._told.add(what)
                sys.stderr.write(f"{self._file}: {what} failed, a fault of TrainWatch: {error!r}\n")


# -- one line a file ---------------------------------------------------------------------------------------------------


def json_line(one: Tried) -> str:
    """Returns the line for a file: ``{"file", "findings"}``, and ``"error"`` when it could not be read."""
    line: dict[str, Any] = {"file": one.file, "findings": []}
    if one.result is None:
        line["error"] = one.error
    else:
        line["findings"] = [
            {
                "rule": report.finding.rule,
                "severity": report.finding.severity,
                "point": report.point,
                "step": report.finding.step,
                "t_seconds": round(report.seconds, 3) if math.isfinite(report.seconds) else None,
                "state": report.finding.state,
            }
            for report in one.result.reports
        ]
    return json.dumps(line)


# -- text --------------------------------------------------------------------------------------------------------------


def _print(done: list[Tried]) -> None:
    tried = [(one.file, one.result) for one in done if one.result is not None]
    timeless = {one.file for one in done if not one.has_times}
    good = sum(result.outcome == "finished" for _, result in tried)
    points = sum(result.points for _, result in tried)
    say(f"{counted(len(tried), 'run')} with {counted(points, 'point')}; {good:,} of them ended well.")
    fired = {
        rule.id: found
        for rule in RULES
        if (found := [(file, result, first) for file, result in tried if (first := _first(result, rule.id))])
    }
    for rule, found in sorted(fired.items(), key=lambda item: -len(item[1])):
        worst = max((_worst(result, rule) for _, result, _ in found), key=lambda severity: SEVERITIES[severity])
        well = sum(result.outcome == "finished" for _, result, _ in found)
        say("")
        say(f"{rule} ({worst}): {len(found):,} of {counted(len(tried), 'run')}, {well:,} of {good:,} that ended well")
        for file, result, first in found[:_AT_MOST]:
            say(f"  {file}: {_where(first, result, file not in timeless)}")
        if len(found) > _AT_MOST:
            say(f"  and {len(found) - _AT_MOST:,} more")
    silent = len(tried) - len({file for found in fired.values() for file, _, _ in found})
    say("")
    say(f"Nothing was found in {counted(silent, 'run')}.")
    broken = [one for one in done if one.result is None and one.is_log]
    for one in broken:
        say(f"Not read: {one.error}")
    others = [one for one in done if not one.is_log]
    if len(others) == 1:
        say(f"Not read: {others[0].error}")
    elif others:
        say(f"{len(others):,} other files are no logs of a training, such as {others[0].file}.")


def _first(result: Replayed, rule: str) -> Report | None:
    """Returns the first report of a rule that fired; one that was only pending does not count."""
    return next((one for one in result.reports if one.finding.rule == rule and one.finding.state == "firing"), None)


def _worst(result: Replayed, rule: str) -> Severity:
    """Returns the highest severity with which a rule fired."""
    fired = [one.finding for one in result.reports if one.finding.rule == rule and one.finding.state == "firing"]
    return max((finding.severity for finding in fired), key=lambda severity: SEVERITIES[severity])


def _where(first: Report, result: Replayed, has_times: bool) -> str:
    finding = first.finding
    worst = _worst(result, finding.rule)
    parts: list[str] = [finding.severity if worst == finding.severity else f"{finding.severity}, later {worst}"]
    if finding.step is not None:
        parts.append(f"step {finding.step:,} of {result.last_step:,}")
    parts.append(f"point {first.point:,} of {result.points:,}")
    if has_times:
        parts.append(
            f"{_duration(first.seconds)} after the begin, {_duration(result.seconds - first.seconds)} before the end"
        )
    return ", ".join(parts)


def _duration(seconds: float) -> str:
    if not math.isfinite(seconds):
        return "?"
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"
