"""The tables. The schema itself is made by :mod:`trainwatch.migrations` alone; a test compares the two.

Times are Unix seconds. Unless a column says otherwise they are by the clock of the machine that saw the event.
"""

from trainwatch.server.models.access import sessions, tokens
from trainwatch.server.models.columns import NO_RANK
from trainwatch.server.models.delivery import channels, deliveries, delivery_attempts, silences
from trainwatch.server.models.growth import deleted_runs, retention, rollups
from trainwatch.server.models.recorded import (
    alerts,
    autopsies,
    checkpoints,
    chunks,
    commands,
    devices,
    layer_chunks,
    layer_sets,
    nonfinite_steps,
    out_of_memory,
    phase_totals,
    phases,
    points,
    ranks,
    rule_settings,
    runs,
    series,
    sources,
)
from trainwatch.server.models.work import leases

__all__ = [
    "NO_RANK",
    "alerts",
    "autopsies",
    "channels",
    "checkpoints",
    "chunks",
    "commands",
    "deleted_runs",
    "deliveries",
    "delivery_attempts",
    "devices",
    "layer_chunks",
    "layer_sets",
    "leases",
    "nonfinite_steps",
    "out_of_memory",
    "phase_totals",
    "phases",
    "points",
    "ranks",
    "retention",
    "rollups",
    "rule_settings",
    "runs",
    "series",
    "sessions",
    "silences",
    "sources",
    "tokens",
]
