"""One run beside another: what they were started with, and where their curves part."""

from __future__ import annotations

from typing import Any, Final

from sqlalchemy import Connection

from trainwatch.charts import newest
from trainwatch.diagnosis.compare import parting
from trainwatch.diagnosis.differences import differences
from trainwatch.metrics import describe
from trainwatch.server import drawing
from trainwatch.server.schemas.comparison import Comparison, CurveDifference, SetupDifference
from trainwatch.server.store import points, records
from trainwatch.server.store.points import Listed

METRICS: Final = (
    "train/loss",
    "train/loss_logged",
    "eval/loss",
    "eval/loss_reported",
    "train/grad_norm",
    "train/learning_rate",
    "train/padded_tokens",
    "train/step_seconds",
    "memory/peak",
    "memory/allocated",
    "memory/resident",
)
"""What is compared, in this order."""
_MOST_POINTS: Final = 2_000_000
"""Points of a series beyond which it is left out: a page is waiting."""


def compare(connection: Connection, run: str, other: str, other_name: str) -> Comparison:
    """Compares two runs, by their first ranks.

    Args:
        connection: A read transaction.
        run: The run's id.
        other: The other's.
        other_name: Its name.
    """
    return Comparison(
        other=other, other_name=other_name, setup=_setup(connection, run, other), curves=_curves(connection, run, other)
    )


def _setup(connection: Connection, run: str, other: str) -> list[SetupDifference]:
    setups = [next(iter(records.setups_of(connection, one).values()), {}) or {} for one in (run, other)]
    found = differences(dict(enumerate(setups)))
    rows = []
    for difference in found:
        value: dict[int, Any] = {rank: holder.value for holder in difference.holders for rank in holder.ranks}
        rows.append(
            SetupDifference(key=difference.key, severity=difference.severity, ours=value.get(0), theirs=value.get(1))
        )
    return rows


def _curves(connection: Connection, run: str, other: str) -> list[CurveDifference]:
    ours, theirs = _first(points.listed(connection, run, METRICS)), _first(points.listed(connection, other, METRICS))
    found = []
    for metric, device in sorted(ours.keys() & theirs.keys(), key=lambda key: (METRICS.index(key[0]), key[1])):
        pair = (ours[metric, device], theirs[metric, device])
        if max(one.points for one in pair) > _MOST_POINTS:
            continue
        mine, its = (
            newest([drawing.whole(connection, one)], drawing.cuts_of(connection, name))[0]
            for one, name in zip(pair, (run, other), strict=True)
        )
        result = parting(mine.step, mine.value, its.step, its.value)
        if result is not None:
            about = describe(metric)
            found.append(
                CurveDifference(
                    metric=metric,
                    title=about.title,
                    unit=about.unit,
                    device=device,
                    common=result.common,
                    step=result.step,
                    ours=result.ours,
                    theirs=result.theirs,
                )
            )
    return found


def _first(listed: list[Listed]) -> dict[tuple[str, str], Listed]:
    """Returns of each metric and device the series of the first rank that has it."""
    found: dict[tuple[str, str], Listed] = {}
    for one in sorted(listed, key=lambda one: one.rank, reverse=True):
        if one.points and one.rank >= 0:
            found[one.metric, one.device] = one
    return found
