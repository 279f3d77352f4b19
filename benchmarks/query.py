"""How fast the server answers: the chart of a long series, and the list of many runs, on SQLite and on Postgres.

Asked is the server's own function for the request, without HTTP: from the call to the finished JSON. The series are
written as shipments would write them, and rolled up by the server's own job.
"""

from __future__ import annotations

import random
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

import msgspec
import numpy as np
from sqlalchemy import insert

from benchmarks.support.report import Report, options, quantile, say
from benchmarks.support.stores import store
from trainwatch import events
from trainwatch.charts import Chart, chart_for
from trainwatch.server import drawing, migrate, upkeep
from trainwatch.server.db import Database
from trainwatch.server.ingest.shipments import Ingest
from trainwatch.server.jobs import rolling
from trainwatch.server.models import chunks, series
from trainwatch.server.store import removal
from trainwatch.server.store import runs as run_store
from trainwatch.server.store.codec import Columns
from trainwatch.server.store.points import chunk_row
from trainwatch.shipment import Batch, Shipment

_CHARTS: Final = {100_000: 20.0, 1_000_000: 30.0, 10_000_000: 60.0}
_RUNS: Final = 10_000
_LIST_MS: Final = 100.0
_WIDTH: Final = 1200


def _measure(report: Report, name: str, ask: Callable[[], object], times: int, target: float | None) -> None:
    ask()
    took, worked = [], []
    for _ in range(times):
        began, before = time.perf_counter(), time.process_time()
        ask()
        took.append(1000 * (time.perf_counter() - began))
        worked.append(1000 * (time.process_time() - before))
    report.one(f"{name}, p50", quantile(took, 0.5), "ms", target=target)
    report.one(f"{name}, p99", quantile(took, 0.99), "ms", note=f"of {times}")
    report.one(f"{name}, processor time p50", quantile(worked, 0.5), "ms", note="of the server")


def _long_run(database: Database, count: int, size: int) -> str:
    """Makes a run with a series of `count` points, in chunks of `size`, as a run does that ships now and then."""
    run = f"long{count}"
    ingest = Ingest(database, lambda _run, _version: None, time.time)
    ends: list[events.Event] = [
        events.RunStarted(time=1e9, name=run, pid=1, max_steps=count),
        events.RunEnded(time=1e9 + count * 0.25, step=count, outcome="finished"),  # only such a run can be deleted
    ]
    encoded = [_raw(events.encode(event)) for event in ends]
    batch = Batch(run=run, project="default", node="n", source="rank0", rank=0, first=0, events=encoded)
    ingest.accept(Shipment(batches=[batch], node="n", sent_at=1e9, runs=[run]))
    chance = np.random.default_rng(count)
    step = np.arange(1, count + 1)
    value = 2 + 4 / (1 + step / 500) + chance.normal(size=count) * 0.1
    value[chance.integers(0, count, 20)] = np.nan
    times = 1e9 + step * 0.25 + chance.normal(size=count) * 0.01
    with database.write() as connection:
        made = insert(series).returning(series.c.id)
        number = int(
            connection.execute(
                made.values(
                    run=run,
                    rank=0,
                    metric="train/loss",
                    device="",
                    points=count,
                    fresh=0,
                    nonfinite=int(np.count_nonzero(np.isnan(value))),
                    last_step=count,
                    last_time=float(times[-1]),
                    last_value=float(value[-1]),
                )
            ).scalar_one()
        )
        for group in range(0, count, 100 * size):
            rows = [
                chunk_row(number, at, Columns(step[at : at + size], times[at : at + size], value[at : at + size]))
                for at in range(group, min(group + 100 * size, count), size)
            ]
            connection.execute(insert(chunks), rows)
    return run


def _raw(encoded: bytes) -> msgspec.Raw:
    return msgspec.Raw(encoded)


def _charts(report: Report, name: str, database: Database, times: int) -> None:
    chance = random.Random(1)
    for count, target in _CHARTS.items():
        say(f"{name}: a series of {count:,} points")
        run = _long_run(database, count, 1500)
        began = time.perf_counter()
        rolling.catch_up(database)
        report.one(f"{name}: rolling up {count:,} points", time.perf_counter() - began, "s")
        chart = chart_for("metric:train/loss")

        def draw(low: float | None = None, high: float | None = None, run: str = run, chart: Chart = chart) -> str:
            with database.read() as connection:
                return drawing.draw(
                    connection,
                    run,
                    chart,
                    axis="step",
                    low=low,
                    high=high,
                    width=_WIDTH,
                    theme="light",
                )

        def zoomed(count: int = count) -> str:
            length = count * 10 ** chance.uniform(-3, 0)
            low = chance.uniform(0, count - length)
            return draw(low, low + length)

        _measure(report, f"{name}: chart of {count:,} points", draw, times, target)
        _measure(report, f"{name}: any zoom into {count:,} points", zoomed, times, target)


def _list(report: Report, name: str, database: Database, times: int) -> None:
    say(f"{name}: {_RUNS:,} runs")
    ingest = Ingest(database, lambda _run, _version: None, time.time)
    for first in range(0, _RUNS, 250):
        batches = []
        for number in range(first, first + 250):
            content = [
                events.RunStarted(time=1e9 + number, name=f"run {number}", pid=1, max_steps=100),
                *(
                    events.StepEnded(
                        time=1e9 + number + n, step=n, values={"train/loss": 1 / n, "train/grad_norm": 1.0}
                    )
                    for n in range(1, 20)
                ),
            ]
            encoded = [_raw(events.encode(one)) for one in content]
            batches.append(
                Batch(run=f"r{number}", project="default", node="n", source="rank0", rank=0, first=0, events=encoded)
            )
        ingest.accept(Shipment(batches=batches, node="n", sent_at=1e9, runs=[]))

    def page(limit: int, offset: int = 0) -> bytes:
        with database.read() as connection:
            found = run_store.listing(
                connection, project=None, state=None, limit=limit, offset=offset, now=1e9, language="en"
            )
        return found.__pydantic_serializer__.to_json(found)

    _measure(report, f"{name}: first 100 of {_RUNS:,} runs", lambda: page(100), times, _LIST_MS)
    _measure(report, f"{name}: 100 from the middle", lambda: page(100, _RUNS // 2), times, _LIST_MS)


def _deletion(report: Report, name: str, database: Database) -> None:
    say(f"{name}: deleting runs")
    before = upkeep.size(database)
    for count in reversed(_CHARTS):
        began = time.perf_counter()
        with database.write() as connection:
            removal.delete_run(connection, f"long{count}", time.time())
        report.one(f"{name}: deleting a run of {count:,} points", 1000 * (time.perf_counter() - began), "ms")
    began = time.perf_counter()
    _, after = upkeep.vacuum(database)
    took = time.perf_counter() - began
    report.one(
        f"{name}: vacuum after that", took, "s", note=f"{before / 1e6:,.0f} MB before, {after / 1e6:,.0f} MB then"
    )


def main() -> None:
    """Measures."""
    parser = options(__doc__)
    parser.add_argument("--only", choices=("sqlite", "postgres"), help="one kind of database")
    chosen = parser.parse_args()
    report = Report("query", chosen.quick)
    times = 10 if chosen.quick else 50
    for kind in ("sqlite", "postgres"):
        if chosen.only not in (None, kind):
            continue
        with tempfile.TemporaryDirectory() as folder, store(kind, Path(folder)) as found:
            database = Database(found.url)
            try:
                migrate.upgrade(database)
                _charts(report, found.name, database, times)
                _list(report, found.name, database, times)
                _deletion(report, found.name, database)
            finally:
                database.close()
    report.note(
        f"Charts are {_WIDTH} pixels wide. A zoom shows a stretch of any length from a thousandth on, anywhere."
    )
    report.finish()


if __name__ == "__main__":
    main()
