"""Full disks, on the server and on the node, and journals that were damaged."""

from __future__ import annotations

import os
import random
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import httpx2
import msgspec

from tests.agent.scripted import NODE, Rank, ending, node_folder, start_agent, step
from tests.faults.load import Count, Shipper, shipping, steps_of, tally
from tests.faults.scenarios import opened, progress
from tests.faults.servers import Replica, wait_until
from tests.postgres import running_postgres
from trainwatch import events, journal, settings
from trainwatch.agent.sync import sync
from trainwatch.probes import host
from trainwatch.server.db import Database
from trainwatch.server.store import records
from trainwatch.training.identity import Identity
from trainwatch.training.recorder import Recorder

_MIB = 2**20


def why_not() -> str:
    """Returns why no small disk can be mounted here; empty when one can."""
    return "" if os.geteuid() == 0 else "mounting a small disk needs root"


@contextmanager
def small_disk(folder: Path, mebibytes: int) -> Iterator[Path]:
    """Mounts a disk of a few MiB."""
    folder.mkdir()
    options = ["-t", "tmpfs", "-o", f"size={mebibytes}m", "tmpfs"]
    subprocess.run(["mount", *options, str(folder)], check=True)
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


def server_disk_full(folder: Path, times: int) -> Count:
    """The disk of a server with SQLite is full until somebody makes room."""
    count, began = Count("disk full on the server", faults=times), time.monotonic()
    size = 8
    with small_disk(folder / "disk", size) as disk:
        url = f"sqlite:///{disk / 'trainwatch.db'}"
        replica = Replica(folder, url)
        replica.start()
        shippers = [Shipper([replica.url], f"full-{number}") for number in range(3)]
        try:
            with shipping(*shippers):
                for _ in range(times):
                    progress(shippers)
                    filler = disk / "filler"
                    _fill(filler, disk)
                    before = sum(shipper.refused for shipper in shippers)
                    wait_until("refusals", partial(_is_refused, shippers, before + 5))
                    filler.unlink()
                    size += 8
                    subprocess.run(["mount", "-o", f"remount,size={size}m", str(disk)], check=True)
                    progress(shippers)
            with opened(url) as found:
                tally(count, found, shippers)
                with found.read() as connection:
                    whole = connection.exec_driver_sql("PRAGMA integrity_check").scalar_one()
                    count.notes["integrity_check is ok"] = float(whole == "ok")
            count.notes["answers 503"] = sum(shipper.refused for shipper in shippers)
        finally:
            replica.kill()
    count.seconds = time.monotonic() - began
    return count


def postgres_disk_full(folder: Path, times: int) -> Count:
    """The disk of Postgres is full until somebody makes room, and starts it again should it have given up."""
    count, began = Count("disk full on Postgres", faults=times), time.monotonic()
    starts, size = 0, 256
    # A path of its own: the folder of a test is closed to the user that Postgres runs as.
    with tempfile.TemporaryDirectory(prefix="tw-pg-") as outer:
        Path(outer).chmod(0o755)
        with (
            small_disk(Path(outer) / "disk", size) as disk,
            running_postgres("fsync=on", "min_wal_size=32MB", "max_wal_size=64MB", folder=disk) as postgres,
        ):
            replica = Replica(folder, postgres.url)
            replica.start()
            shippers = [Shipper([replica.url], f"full-{number}") for number in range(3)]
            try:
                with shipping(*shippers):
                    for _ in range(times):
                        progress(shippers)
                        filler = disk / "filler"
                        before = sum(shipper.refused for shipper in shippers)
                        full = partial(_is_refused, shippers, before + 20)
                        while not full():
                            _fill(filler, disk)  # again and again: Postgres also frees some
                            time.sleep(0.1)
                        filler.unlink()
                        size += 32
                        subprocess.run(["mount", "-o", f"remount,size={size}m", str(disk)], check=True)
                        if not postgres.runs():
                            postgres.start()
                            starts += 1
                        progress(shippers)
                with opened(postgres.url) as found:
                    tally(count, found, shippers)
                count.notes["answers 503"] = sum(shipper.refused for shipper in shippers)
                count.notes["Postgres had to be started again"] = starts
            finally:
                replica.kill()
    count.seconds = time.monotonic() - began
    return count


def node_disk_full(folder: Path, times: int) -> Count:
    """The disk with the journals is full for a while: what it refuses is counted, and shown with the run."""
    count, began = Count("disk full on the node", faults=times), time.monotonic()
    replica = Replica(folder)
    replica.start()
    with small_disk(folder / "disk", 4) as disk:
        configured = msgspec.structs.replace(settings.load({"TRAINWATCH_HOME": str(disk)}), node=NODE)
        identity = Identity(run="full", node=NODE, rank=0, local_rank=0, world_size=1)
        recorder = Recorder(configured, identity)
        agent = start_agent(recorder.node_directory, replica.url, log=folder / "agent.log")
        kept: list[int] = []
        number = 0

        def write(how_many: int) -> None:
            nonlocal number
            for _ in range(how_many):
                number += 1
                before = sum(recorder.lost.values())
                recorder.record(step(number))
                if sum(recorder.lost.values()) == before:
                    kept.append(number)

        try:
            with ending(agent):
                recorder.record(
                    events.RunStarted(
                        time=time.time(), name="full", pid=os.getpid(), process_started=host.started() or 0.0
                    )
                )
                for turn in range(1, times + 1):
                    write(200)
                    filler = disk / "filler"
                    _fill(filler, disk)
                    while sum(recorder.lost.values()) <= 50 * turn:
                        write(20)
                    filler.unlink()
                    write(200)
                recorder.record(events.TroubleCounted(time=time.time(), errors={}, lost=dict(recorder.lost)))
                recorder.record(events.RunEnded(time=time.time(), step=number, outcome="finished"))
                with opened(f"sqlite:///{folder / 'trainwatch.db'}") as found:
                    wait_until("the end of the run", lambda: steps_of(found, "full")[-1:] == [number], 90)
                    stored = steps_of(found, "full")
            shown = _trouble(replica, "full").get("journal not writable", 0)
        finally:
            recorder.close()
            replica.kill()
    count.acknowledged, count.stored, count.reported = len(stored), len(stored), shown
    count.lost = len(set(kept).difference(stored)) + abs(number - len(stored) - shown)
    count.double = len(stored) - len(set(stored))
    count.seconds = time.monotonic() - began
    return count


def journal_damaged(folder: Path, times: int) -> Count:
    """A byte of a journal is flipped, or cut out, or its end is cut off, before it is shipped and half-way."""
    count, began, chance = Count("journal damaged", faults=times), time.monotonic(), random.Random(3)
    replica = Replica(folder)
    replica.start()
    configured = msgspec.structs.replace(settings.load({"TRAINWATCH_HOME": str(folder)}), server=replica.url, node=NODE)
    tails = 0
    try:
        with opened(f"sqlite:///{folder / 'trainwatch.db'}") as found:
            for number in range(times):
                run = f"damaged-{number}"
                rank = Rank(node_folder(folder, run, NODE), segment_bytes=1500)
                rank.start()
                rank.steps(1, 20)
                before = 0
                if number % 2:  # what was acknowledged before stays, whatever becomes of its journal
                    sync(configured, run=run)
                    before = len(steps_of(found, run))
                    count.lost += before != 20
                rank.steps(21, 40)
                rank.writer.close()
                tail = _damage(rank.directory, chance)
                tails += tail
                sync(configured, run=run)
                stored = steps_of(found, run)
                reported = sum(_trouble(replica, run).values())
                count.acknowledged += _next(found, run, rank.source)
                count.stored += len(stored)
                count.reported += reported
                count.double += len(stored) - len(set(stored))
                # RunStarted may be the one that was lost: it is no step.
                unexplained = 40 - len(stored) - reported - tail
                count.lost += max(0, unexplained) + max(0, before - len(set(stored).intersection(range(1, 21))))
    finally:
        replica.kill()
    count.notes["cut off at the end, without a trace"] = tails
    count.seconds = time.monotonic() - began
    return count


def _damage(directory: Path, chance: random.Random) -> int:
    """Damages a journal; returns how many of its records are gone without a trace: those behind a cut at the end."""
    files = sorted(directory.glob("*.twj"))
    file = chance.choice(files)
    data = bytearray(file.read_bytes())
    place = chance.randrange(len(data))
    kind = chance.choice(["flip", "cut out", "cut off"])
    if kind == "flip":
        data[place] ^= chance.choice([0x01, 0x80, 0xFF])
    elif kind == "cut out":
        del data[place]
    else:
        del data[place:]
    before = sum(1 for _ in _all(directory))
    file.write_bytes(bytes(data))
    if file != files[-1]:
        return 0
    found = list(_all(directory))
    return before - (found[-1].sequence + 1 if found else 0)


def _all(directory: Path) -> Iterator[journal.Record]:
    reader = journal.Reader(directory)
    while found := reader.read():
        yield from found


def _is_refused(shippers: list[Shipper], more_than: int) -> bool:
    return sum(shipper.refused for shipper in shippers) > more_than


def _fill(filler: Path, disk: Path) -> None:
    with filler.open("ab", buffering=0) as file:
        while True:
            free = os.statvfs(disk)
            if free.f_bavail == 0:
                return
            try:
                file.write(b"\0" * min(_MIB, free.f_bavail * free.f_frsize))
            except OSError:
                return


def _trouble(replica: Replica, run: str) -> dict[str, int]:
    with httpx2.Client(base_url=replica.url, timeout=20) as client:
        answer = client.get(f"/api/runs/{run}")
        found: dict[str, int] = answer.json()["trouble"]["lost"] if answer.status_code == 200 else {}
        return found


def _next(database: Database, run: str, source: str) -> int:
    with database.read() as connection:
        found = records.sources_of(connection, run, [source]).get(source)
    return 0 if found is None else found.next
