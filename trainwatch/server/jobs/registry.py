"""All periodic jobs."""

from __future__ import annotations

from trainwatch.server.delivery import sender
from trainwatch.server.jobs import nodes, retention, rolling, silence
from trainwatch.server.jobs.runner import Job


def all_jobs() -> tuple[Job, ...]:
    """Returns what a server does now and then, anew: some jobs remember something."""
    return (
        Job(silence.JOB, lambda settings: settings.liveness_seconds, silence.run),
        Job("nodes", nodes.EVERY_SECONDS, nodes.Comparing()),
        Job("rollups", rolling.EVERY_SECONDS, rolling.run),
        Job("retention", retention.EVERY_SECONDS, retention.run),
        Job("delivery", sender.EVERY_SECONDS, sender.run, alone=False),
        Job("delivery_record", sender.PRUNE_EVERY_SECONDS, sender.prune),
    )
