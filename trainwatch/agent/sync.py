"""Ships what stayed on disk: runs recorded without an agent, or whose server was away when they ended.

Does an agent's work without its waiting: evaluates the rules, notes processes that are gone, ships.
"""

from __future__ import annotations

import time as system_time
from pathlib import Path
from typing import Final

import msgspec

from trainwatch.agent.clock import SYSTEM, Clock
from trainwatch.agent.link import Link
from trainwatch.agent.lock import FolderLock
from trainwatch.agent.record import Recorder
from trainwatch.agent.settled import is_settled, settle
from trainwatch.agent.ship import Shipper
from trainwatch.agent.trouble import Trouble
from trainwatch.agent.watch import Watch
from trainwatch.settings import Settings

PATIENCE_SECONDS: Final = 10.0
# A journal that is written to belongs to somebody alive, whatever the process table says (another pid namespace).
QUIET_SECONDS: Final = 2.0


class Report(msgspec.Struct, kw_only=True):
    """What a sync did.

    Attributes:
        runs: Ids of the runs of which something was shipped.
        events: How many events were shipped.
        gone: How many processes were found to have died without a word.
        watched: ``RUN/NODE`` that a living agent ships.
        left: ``RUN/NODE`` that could not be shipped to the end.
        problem: Why not, in a sentence; empty when all is well.
    """

    runs: list[str] = []
    events: int = 0
    gone: int = 0
    watched: list[str] = []
    left: list[str] = []
    problem: str = ""


def sync(
    settings: Settings, *, run: str | None = None, patience: float = PATIENCE_SECONDS, clock: Clock = SYSTEM
) -> Report:
    """Ships everything below ``settings.journals`` that the server has not acknowledged.

    Folders that a living agent ships are left to it. Nothing is lost or doubled when this is interrupted.

    Args:
        settings: Where the journals are, and the server.
        run: Only this run; None for all.
        patience: Seconds without progress after which it gives up.
        clock: The clock.

    Raises:
        ValueError: The server's address is none.
    """
    report = Report()
    link = Link(settings.server, settings.token)
    is_away = False
    try:
        for node_directory in sorted(settings.journals.glob(f"{run or '*'}/*/")):
            if not node_directory.is_dir() or is_settled(node_directory):
                continue
            name = f"{node_directory.parent.name}/{node_directory.name}"
            if is_away:
                report.left.append(name)  # not to wait for the server once for each
                continue
            lock = FolderLock(node_directory)
            try:
                if not lock.acquire():
                    report.watched.append(name)
                    continue
                shipped = report.events
                _sync_folder(node_directory, link, settings.node, report, patience, clock)
                is_away = name in report.left and report.events == shipped
            except OSError as error:  # somebody else's folder, or one that is being deleted: the others still go
                report.left.append(name)
                report.problem = str(error)
            finally:
                lock.release()
    finally:
        link.close()
    return report


def _sync_folder(
    node_directory: Path, link: Link, this_node: str, report: Report, patience: float, clock: Clock
) -> None:
    trouble = Trouble(clock)
    recorder = Recorder(node_directory, trouble)
    watch = Watch(node_directory, recorder, trouble)
    _read_all(watch)
    if node_directory.name == this_node:
        report.gone += _bury(watch, clock)
    event = trouble.take()
    if event:
        recorder.record(event)
    recorder.close()
    shipper = Shipper(node_directory, link, trouble, clock)
    shipper.hurry = True
    gives_up_at = clock.monotonic() + patience
    while shipper.empty_at < 0:
        shipped = shipper.events
        wait = shipper.step()
        now = clock.monotonic()
        if shipper.events > shipped:
            gives_up_at = now + patience
        if now >= gives_up_at and wait > 0 and shipper.empty_at < 0:
            report.left.append(f"{node_directory.parent.name}/{node_directory.name}")
            report.problem = shipper.problem
            break
        if shipper.empty_at < 0 and wait > 0:
            system_time.sleep(min(wait, max(gives_up_at - now, 0.01)))
    report.events += shipper.events
    if shipper.events and node_directory.parent.name not in report.runs:
        report.runs.append(node_directory.parent.name)
    if shipper.empty_at >= 0 and not watch.ranks.running:
        settle(node_directory)


def _read_all(watch: Watch) -> None:
    watch.scan()
    while watch.read():
        pass


def _bury(watch: Watch, clock: Clock) -> int:
    """Notes the ranks whose processes no longer exist; returns how many."""
    dead = [state for state in watch.ranks.running if not state.is_alive(clock.time())]
    if dead and any(clock.time() - state.last_time < QUIET_SECONDS for state in dead):
        before = {state.source.name: state.last_time for state in dead}
        system_time.sleep(QUIET_SECONDS)
        _read_all(watch)
        dead = [state for state in dead if not state.over and state.last_time == before[state.source.name]]
    return sum(watch.bury(state, state.last_time or clock.time()) for state in dead)
