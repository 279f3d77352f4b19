"""What only a view over several nodes shows: a rank that is slower, or fuller, than those of the other machines.

Each node's agent judges its own ranks. Of a run on several nodes the server shows the last steps of all ranks to the
rules that compare ranks, now and then. It remembers nothing between two looks but the runs that have not moved, so that
any server can take the next one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from msgspec.structs import replace
from sqlalchemy import Connection

from trainwatch.events import FindingRaised
from trainwatch.rules import RULES, Rule
from trainwatch.rules.engine import Engine
from trainwatch.rules.settings import accepted
from trainwatch.server.db import Database
from trainwatch.server.store import alerts, points, rebuilt, records, rule_settings

if TYPE_CHECKING:
    from trainwatch.server.services import Services

KEY: Final = "nodes"
"""Key of what is found here: an agent's own finding about the same rank is another alert."""
STEPS: Final = 260
"""How many of the last steps are looked at: twice two blocks of the rules, and what they take for warming up."""
EVERY_SECONDS: Final = 30.0
_COMPARING: Final = frozenset({"straggler", "memory_imbalance"})
_RULES: Final[tuple[type[Rule[Any]], ...]] = tuple(rule for rule in RULES if rule.id in _COMPARING)
_METRICS: Final = (
    "train/step_seconds",
    "train/data_seconds",
    "train/compute_seconds",
    "memory/peak",
    "memory/capacity",
    "memory/device_used",
    "memory/reserved",
    "memory/resident",
    "memory/others_used",
)
_KINDS: Final = frozenset(kind for rule in _RULES for kind in rule.listens)


def compare_nodes(database: Database, seen: dict[str, int]) -> list[tuple[str, int]]:
    """Looks at every running run of several nodes that went on since the last look.

    Args:
        database: The database.
        seen: Run id to the step at the last look; brought up to date.

    Returns:
        The ids and new versions of the runs whose alerts changed.
    """
    with database.read() as connection:
        running = records.running_on_several_nodes(connection)
    for gone in seen.keys() - running.keys():
        del seen[gone]
    changed = []
    for run, step in running.items():
        if seen.get(run) == step:
            continue
        seen[run] = step
        with database.read() as connection:
            found = judge(connection, run)
            open_ones = alerts.open_of(connection, run, KEY)
        news = _news(found, open_ones)
        if news:
            with database.write() as connection:
                locked = records.lock_runs(connection, [run]).get(run)
                if locked is None:
                    continue
                alerts.raise_alerts(connection, run, news, now=locked.heard_at)
                locked.version += 1
                records.save_run(connection, locked, described=False)
                changed.append((run, locked.version))
    return changed


def judge(connection: Connection, run: str) -> list[FindingRaised]:
    """Returns what the rules that compare ranks find in a run's last steps.

    Args:
        connection: A read transaction.
        run: The run's id.
    """
    settings = rule_settings.of_runs(connection, [run]).get(run, {})
    since = _time_of_last_steps(connection, run)
    if since is None:
        return []
    engine = Engine(_RULES, accepted(settings, _RULES)[0])
    told = rebuilt.events_of(connection, run, _KINDS, most=0, since=since, metrics=_METRICS)
    for _, rank, event in told.events:
        engine.observe(event, rank)
    nodes = len({rank.node for rank in records.ranks_of(connection, run).values()})
    return [
        replace(
            alert.finding,
            key=KEY,
            action="notify",
            time=told.events[-1][2].time,
            parameters={**alert.finding.parameters, "nodes": nodes},
        )
        for alert in engine.alerts.open.values()
        if alert.state == "firing"
    ]


def _time_of_last_steps(connection: Connection, run: str) -> float | None:
    """Returns when the first of the last :data:`STEPS` steps ended, by the first rank that tells steps."""
    for one in points.listed(connection, run, ["train/step_seconds"]):
        if one.last_step is not None:
            low = one.last_step - STEPS
            stored = points.read(connection, one.id, axis="step", low=low)
            times = stored.time[stored.step >= low]
            return float(times.min()) if len(times) else None
    return None


def _news(found: list[FindingRaised], open_ones: dict[tuple[str, int | None], FindingRaised]) -> list[FindingRaised]:
    """Returns what is not on record yet: begun, become another severity, or over."""
    now = {(finding.rule, finding.rank): finding for finding in found}
    news = [
        finding
        for name, finding in now.items()
        if name not in open_ones or open_ones[name].severity != finding.severity
    ]
    return news + [replace(old, state="resolved") for name, old in open_ones.items() if name not in now]


class Comparing:
    """The job: it remembers which runs have not moved since its last look."""

    def __init__(self) -> None:
        self._seen: dict[str, int] = {}

    def __call__(self, services: Services) -> None:
        """Compares the nodes of all runs once."""
        for run, version in compare_nodes(services.database, self._seen):
            services.live.publish(run, version)
