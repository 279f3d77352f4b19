"""What the database and the jobs say when somebody scrapes ``/metrics``."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final, get_args

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector
from sqlalchemy import Connection
from sqlalchemy.exc import SQLAlchemyError

from trainwatch.events import Severity
from trainwatch.server.db import Database
from trainwatch.server.jobs.runner import JobStatus
from trainwatch.server.models import NO_RANK
from trainwatch.server.schemas import State
from trainwatch.server.store import figures

logger = logging.getLogger(__name__)

_DELIVERY_STATES: Final = ("waiting", "sent", "failed", "suppressed", "gathered")
Metrics = Iterator[GaugeMetricFamily | CounterMetricFamily]


class Gauges(Collector):
    """Asks when it is scraped; what cannot be answered then is left out, and ``trainwatch_database_up`` says so.

    Args:
        database: The database.
        jobs: Says what became of this server's jobs.
        most_series: How many series of running runs are shown at most.
        clock: The server's clock, in Unix seconds.
    """

    def __init__(
        self,
        database: Database,
        jobs: Callable[[], Sequence[JobStatus]],
        *,
        most_series: int = 0,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._database = database
        self._jobs = jobs
        self._most_series = most_series
        self._clock = clock

    def describe(self) -> list[GaugeMetricFamily]:
        """Says nothing beforehand, or registering would ask the database."""
        return []

    def collect(self) -> Metrics:
        """Yields what is known now."""
        yield from _of_jobs(self._jobs())
        try:
            with self._database.read() as connection:
                found = list(self._of_database(connection))
        except SQLAlchemyError as error:
            logger.warning("the database did not answer a scrape: %s", type(error).__name__)
            found = []
        yield GaugeMetricFamily("trainwatch_database_up", "Whether the database answers.", value=float(bool(found)))
        yield from found

    def _of_database(self, connection: Connection) -> Metrics:
        yield _by("trainwatch_runs", "Runs by state.", "state", get_args(State), figures.runs_by_state(connection))
        firing = figures.firing_by_severity(connection)
        yield _by("trainwatch_alerts_firing", "Alerts of running runs.", "severity", get_args(Severity), firing)
        outbox = figures.outbox(connection)
        yield _by("trainwatch_outbox_deliveries", "Deliveries of alerts.", "state", _DELIVERY_STATES, outbox.by_state)
        yield GaugeMetricFamily(
            "trainwatch_outbox_overdue_seconds",
            "For how long the delivery that waits longest has been due.",
            value=0.0 if outbox.oldest_due is None else max(0.0, self._clock() - outbox.oldest_due),
        )
        attempts = CounterMetricFamily(
            "trainwatch_outbox_attempts", "Attempts to deliver an alert, by all servers.", labels=["outcome"]
        )
        attempts.add_metric(["taken"], outbox.attempts - outbox.failures)
        attempts.add_metric(["failed"], outbox.failures)
        yield attempts
        if self._most_series:
            yield from self._last_values(connection)

    def _last_values(self, connection: Connection) -> Metrics:
        values, total = figures.last_values(connection, self._most_series)
        shown = GaugeMetricFamily(
            "trainwatch_run_value",
            "Last value of a series of a running run.",
            labels=["run", "name", "project", "rank", "device", "metric"],
        )
        for one in values:
            rank = "" if one.rank == NO_RANK else str(one.rank)
            shown.add_metric([one.run, one.name, one.project, rank, one.device, one.metric], one.value)
        yield shown
        yield GaugeMetricFamily(
            "trainwatch_run_values_left_out",
            "Series of running runs that are not shown: see TRAINWATCH_METRICS_SERIES.",
            value=float(total - len(values)),
        )


def _of_jobs(jobs: Sequence[JobStatus]) -> Metrics:
    # Not "job": that is what Prometheus itself calls what it scrapes.
    held = GaugeMetricFamily(
        "trainwatch_job_held", "Whether this server does a job that only one may do.", labels=["work"]
    )
    runs = CounterMetricFamily("trainwatch_job_runs", "How often a job was done by this server.", labels=["work"])
    errors = CounterMetricFamily("trainwatch_job_errors", "How often a job failed on this server.", labels=["work"])
    seconds = GaugeMetricFamily("trainwatch_job_last_seconds", "How long a job's last run took.", labels=["work"])
    for job in jobs:
        held.add_metric([job.name], float(job.held))
        runs.add_metric([job.name], job.runs)
        errors.add_metric([job.name], job.errors)
        seconds.add_metric([job.name], job.last_seconds)
    yield from (held, runs, errors, seconds)


def _by(name: str, meaning: str, label: str, usual: Sequence[str], found: Mapping[str, int]) -> GaugeMetricFamily:
    """Makes a gauge with a value for each of the usual labels, 0 where there is none: what is absent alerts nobody."""
    family = GaugeMetricFamily(name, meaning, labels=[label])
    for value in (*usual, *sorted(set(found) - set(usual))):
        family.add_metric([value], found.get(value, 0))
    return family
