"""What the server counts about itself, for Prometheus.

What happens in this process is counted as it happens; what the database knows is asked when somebody scrapes
(:mod:`trainwatch.server.telemetry.gauges`). A server counts for itself alone: of several replicas, each is scraped.
"""

from __future__ import annotations

import time
from typing import Any, Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector
from prometheus_client.exposition import choose_encoder
from sqlalchemy import Connection, Engine, event
from sqlalchemy.engine import ExceptionContext

from trainwatch import __version__

_REQUEST_SECONDS: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
_QUERY_SECONDS: Final = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.1, 0.25, 1.0, 5.0)
_OPERATIONS: Final = frozenset({"select", "insert", "update", "delete", "copy"})
_BEGAN: Final = "trainwatch_query_began"


class Telemetry:
    """The counters of one server.

    Attributes:
        registry: Holds them all.
    """

    def __init__(self) -> None:
        self.registry: Final = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        Gauge("trainwatch_build_info", "Version of the server.", ["version"], registry=self.registry).labels(
            __version__
        ).set(1)
        self._requests = Histogram(
            "trainwatch_http_request_duration_seconds",
            "Time from a request to the end of its answer; of an event stream, to its begin.",
            ["method", "route", "status"],
            buckets=_REQUEST_SECONDS,
            registry=self.registry,
        )
        self.streams: Final = Gauge("trainwatch_event_streams", "Open streams of live updates.", registry=self.registry)
        self._acknowledgements = Counter(
            "trainwatch_acknowledgements_total",
            "Shipments answered, by HTTP status; 200 is an acknowledgement.",
            ["status"],
            registry=self.registry,
        )
        self._bytes = Counter(
            "trainwatch_ingest_bytes_total",
            "Bytes of acknowledged shipments, as sent.",
            registry=self.registry,
        )
        self._events = Counter(
            "trainwatch_ingest_events_total",
            "Events of acknowledged shipments, repeated ones included.",
            registry=self.registry,
        )
        self._points = Counter("trainwatch_ingest_points_total", "Points stored, each once.", registry=self.registry)
        self._answers = Counter(
            "trainwatch_shared_answers_total",
            "Answers about a run: made, or one that was made for somebody else.",
            ["how"],
            registry=self.registry,
        )
        for how in ("made", "shared"):
            self._answers.labels(how)
        self._queries = Histogram(
            "trainwatch_database_query_duration_seconds",
            "Time of a statement until the database's first answer.",
            ["operation"],
            buckets=_QUERY_SECONDS,
            registry=self.registry,
        )
        self._errors = Counter(
            "trainwatch_database_errors_total", "Statements that failed.", ["error"], registry=self.registry
        )

    def requested(self, method: str, route: str, status: int, seconds: float) -> None:
        """Counts an answered request."""
        self._requests.labels(method, route, str(status)).observe(seconds)

    def acknowledged(self, status: int) -> None:
        """Counts an answered shipment."""
        self._acknowledgements.labels(str(status)).inc()

    def shipped(self, size: int, events: int) -> None:
        """Counts what came with an acknowledged shipment.

        Args:
            size: Bytes, as they travelled.
            events: Events, of all its batches.
        """
        self._bytes.inc(size)
        self._events.inc(events)

    def stored(self, points: int) -> None:
        """Counts points that were committed."""
        self._points.inc(points)

    def answered(self, made: bool) -> None:
        """Counts an answer about a run, made or shared."""
        self._answers.labels("made" if made else "shared").inc()

    def watch(self, engine: Engine) -> None:
        """Counts the statements that go through an engine, and its connections."""
        Gauge(
            "trainwatch_database_connections", "Connections to the database in use.", registry=self.registry
        ).set_function(lambda: float(getattr(engine.pool, "checkedout", int)()))

        @event.listens_for(engine, "before_cursor_execute")
        def begin(connection: Connection, *_: Any) -> None:
            connection.info[_BEGAN] = time.perf_counter()

        @event.listens_for(engine, "after_cursor_execute")
        def end(connection: Connection, _cursor: Any, statement: str, *_: Any) -> None:
            began = connection.info.pop(_BEGAN, None)
            if began is not None:
                self._queries.labels(_operation(statement)).observe(time.perf_counter() - began)

        @event.listens_for(engine, "handle_error")
        def fail(context: ExceptionContext) -> None:
            self._errors.labels(type(context.original_exception).__name__).inc()

    def exposition(self, accept: str) -> tuple[bytes, str]:
        """Returns all counters, and their content type.

        Args:
            accept: What the asker takes: Prometheus' text or OpenMetrics.
        """
        encode, kind = choose_encoder(accept)
        return encode(self.registry), kind


def _operation(statement: str) -> str:
    word = statement.lstrip()[:8].partition(" ")[0].lower()
    return word if word in _OPERATIONS else "other"
