"""Runs as they are shown: the list, and one with all that is known of it."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from typing import Any, Final, NamedTuple

from sqlalchemy import Connection, Row, Select, exists, func, select

from trainwatch import journal
from trainwatch.charts import Cuts
from trainwatch.rules.ended import TRAINING_FAILED, brief
from trainwatch.rules.halting import halt_sentence, spoilt_since
from trainwatch.rules.wording import sentence
from trainwatch.server import schemas
from trainwatch.server.models import NO_RANK, alerts, devices, runs, sources
from trainwatch.server.store import alerts as alert_store
from trainwatch.server.store import details, evidence, points, records
from trainwatch.server.store.sparkline import Sparkline

_DESCRIPTION: Final = ("arguments", "environment", "model", "dataset", "differences")
_LISTED: Final = [column for column in runs.c if column.name not in _DESCRIPTION]
_SHOWN_NONFINITE: Final = 100
_LOUDEST: Final = {"info": 0, "warning": 1, "critical": 2}


def listing(
    connection: Connection,
    *,
    project: str | None,
    state: str | None,
    limit: int,
    offset: int,
    now: float,
    language: str = "en",
) -> schemas.RunList:
    """Returns a page of the list of runs, newest first."""
    matching = _matching(select(func.count()).select_from(runs), project, state)
    query = _matching(select(*_LISTED), project, state)
    rows = connection.execute(query.order_by(runs.c.started_at.desc(), runs.c.id).limit(limit).offset(offset)).all()
    return schemas.RunList(
        runs=[
            schemas.RunSummary.model_construct(**base, alerts=_counts(raised, now))
            for base, raised in _bases(connection, rows, now, language)
        ],
        total=connection.scalar(matching) or 0,
        projects=list(connection.scalars(select(runs.c.project).distinct().order_by(runs.c.project))),
    )


def version(connection: Connection, run: str) -> int | None:
    """Returns a run's version; None when there is no such run."""
    found: int | None = connection.scalar(select(runs.c.version).where(runs.c.id == run))
    return found


def takes_commands(connection: Connection, run: str) -> bool:
    """Tells whether a run may still obey: it runs, or is only silent. Keeps its end from being stored meanwhile."""
    row = connection.execute(select(runs.c.state, runs.c.node).where(runs.c.id == run).with_for_update()).one_or_none()
    return row is not None and row.state in ("running", "late", "lost") and row.node != journal.IMPORTED_NODE


class Named(NamedTuple):
    """A run in few words."""

    id: str
    name: str
    project: str
    state: Any
    started_at: float
    step: int


def newest(connection: Connection, *, project: str | None, limit: int) -> list[Named]:
    """Returns the newest runs, of one project or of all."""
    query = _matching(select(*(runs.c[name] for name in Named._fields)), project, None)
    rows = connection.execute(query.order_by(runs.c.started_at.desc(), runs.c.id).limit(limit))
    return [Named._make(row) for row in rows]


def started_at(connection: Connection, run: str) -> float | None:
    """Returns when a run began; None when there is no such run."""
    found: float | None = connection.scalar(select(runs.c.started_at).where(runs.c.id == run))
    return found


def end_of(connection: Connection, run: str) -> tuple[int, float, str] | None:
    """Returns last step, time and state of a run that is over or lost; None while it runs."""
    columns = (runs.c.step, runs.c.ended_at, runs.c.last_event_at, runs.c.state, runs.c.ending)
    row = connection.execute(select(*columns).where(runs.c.id == run)).one_or_none()
    if row is None or row.state in ("running", "late"):
        return None
    return row.ending.get("step", row.step), row.ended_at or row.last_event_at, row.state


def detail(
    connection: Connection, run: str, *, charts: Iterable[schemas.ChartInfo], now: float, language: str = "en"
) -> schemas.RunDetail | None:
    """Returns a run with all that is known of it; None when there is no such run."""
    row = connection.execute(select(runs).where(runs.c.id == run)).one_or_none()
    if row is None:
        return None
    [(base, _)] = _bases(connection, [row], now, language)
    found = records.ranks_of(connection, run)
    readings = _device_readings(connection, run)
    nonfinite, nonfinite_count = evidence.nonfinite_of(connection, run, _SHOWN_NONFINITE)
    cuts = Cuts(tuple(records.attempts_of(connection, run)))
    autopsies, autopsy_count = details.autopsies(connection, run, row.world_size)
    out_of_memory, out_of_memory_count = details.out_of_memory(connection, run, row.world_size)
    checkpoints = evidence.checkpoints_of(connection, run)
    return schemas.RunDetail(
        **base,
        ranks=[_rank(rank, readings.get(rank.rank, [])) for rank in found.values()],
        hosts=readings.get(NO_RANK, []),
        arguments=row.arguments,
        environment=row.environment,
        model=row.model,
        dataset=row.dataset,
        differences=details.differences(row.differences),
        signals=details.signals(connection, run),
        policy=row.policy,
        loss_source=row.loss_source,
        output_dir=row.output_dir,
        checkpoints=[
            schemas.Checkpoint(step=c.step, path=c.path, reason=c.reason, time=c.time, rank=c.rank) for c in checkpoints
        ],
        nonfinite=[_nonfinite(step, cuts) for step in nonfinite],
        nonfinite_count=nonfinite_count,
        autopsies=autopsies,
        autopsy_count=autopsy_count,
        out_of_memory=out_of_memory,
        out_of_memory_count=out_of_memory_count,
        phases=details.phases(connection, run),
        alerts=[_alert(alert, row.world_size, now, language) for alert in alert_store.alerts_of(connection, run, now)],
        end=_end(row, found, checkpoints, language),
        trouble=_trouble(records.sources_of(connection, run).values()),
        charts=list(charts),
    )


def _matching(query: Select[Any], project: str | None, state: str | None) -> Select[Any]:
    if project is not None:
        query = query.where(runs.c.project == project)
    if state is not None:
        query = query.where(runs.c.state == state)
    return query


def _bases(
    connection: Connection, rows: Iterable[Row[Any]], now: float, language: str
) -> list[tuple[dict[str, Any], list[Row[Any]]]]:
    """Returns the fields of :class:`~trainwatch.server.schemas.RunBase` of each run, and its alerts."""
    listed = list(rows)
    ids = [row.id for row in listed]
    nodes: defaultdict[str, list[str]] = defaultdict(list)
    for run, node in connection.execute(
        select(sources.c.run, sources.c.node).distinct().where(sources.c.run.in_(ids)).order_by(sources.c.node)
    ):
        nodes[run].append(node)
    raised: defaultdict[str, list[Row[Any]]] = defaultdict(list)
    for alert in connection.execute(select(alerts).where(alerts.c.run.in_(ids))):
        raised[alert.run].append(alert)
    tightest = _headrooms(connection, ids)
    known = records.last_known(connection, [row.id for row in listed if row.state in ("late", "lost")])
    result = []
    for row in listed:
        line = Sparkline(row.sparkline)
        base = {
            "id": row.id,
            "name": row.name or row.id,
            "project": row.project,
            "state": row.state,
            "started_at": row.started_at,
            "ended_at": row.ended_at,
            "last_event_at": row.last_event_at,
            "step": row.step,
            "max_steps": row.max_steps,
            "world_size": row.world_size,
            "nodes": nodes[row.id],
            "last_loss": None if row.loss_rank is None else row.last_loss,
            "last_eval_loss": None if row.eval_rank is None else row.last_eval_loss,
            "sparkline": schemas.Sparkline.model_construct(step=line.step.tolist(), value=line.value.tolist()),
            "sentence": _sentence(row, raised[row.id], known.get(row.id, {}), now, language),
            "headroom": tightest.get(row.id),
            "version": row.version,
        }
        result.append((base, raised[row.id]))
    return result


def _headrooms(connection: Connection, ids: list[str]) -> dict[str, schemas.Headroom]:
    """Returns the device with the least memory left of each run."""
    left = devices.c.capacity - devices.c.used
    machine = devices.alias()
    # What a process has resident counts pages that it shares, of files above all; what limits it is the machine's, or
    # its control group's, and where that has been read it says more.
    is_read = exists().where(
        machine.c.run == devices.c.run, machine.c.device.startswith("host"), machine.c.used.is_not(None)
    )
    ordered = (
        select(
            devices,
            func.row_number()
            .over(partition_by=devices.c.run, order_by=(left, devices.c.rank, devices.c.device))
            .label("place"),
        )
        .where(devices.c.run.in_(ids), devices.c.capacity.is_not(None), devices.c.used.is_not(None))
        .where((devices.c.device != "cpu") | ~is_read)
        .subquery()
    )
    return {
        row.run: schemas.Headroom(
            bytes=row.capacity - row.used,
            capacity=row.capacity,
            device=row.device,
            rank=None if row.rank == NO_RANK else row.rank,
        )
        for row in connection.execute(select(ordered).where(ordered.c.place == 1))
    }


def _counts(raised: list[Row[Any]], now: float) -> schemas.AlertCounts:
    found = Counter(alert.severity for alert in raised if alert_store.is_loud(alert, now))
    return schemas.AlertCounts(info=found["info"], warning=found["warning"], critical=found["critical"])


def _sentence(row: Row[Any], raised: list[Row[Any]], known: dict[str, Any], now: float, language: str) -> str:
    """Says what is or was the matter: the end, else the silence, else the loudest and newest alert."""
    if row.ending and row.ending["outcome"] != "finished":
        return _end_sentence(row, language)
    if row.state == "lost" and row.node == journal.IMPORTED_NODE:
        return sentence("imported", {}, step=row.step, language=language)
    if row.state in ("late", "lost"):
        parameters = {"seconds": max(0.0, now - row.heard_at), **known}
        return sentence("silent", parameters, step=row.step, language=language)
    loud = [alert for alert in raised if alert_store.is_loud(alert, now)]
    if not loud:
        return ""
    loudest = max(loud, key=lambda alert: (_LOUDEST.get(alert.severity, 0), alert.last_at))
    return _alert(loudest, row.world_size, now, language).sentence


def _end_sentence(row: Row[Any], language: str) -> str:
    end = row.ending
    parameters = end["parameters"]
    # A halt is agreed by all ranks and may come a step after what caused it.
    step = parameters.get("step", end["step"])
    culprit = parameters.get("culprit")
    rank = (end["rank"] if culprit is None else culprit) if row.world_size > 1 else None
    if end["outcome"] == "failed":
        evidence_of = {"error": brief(end["error"])}
        return sentence(TRAINING_FAILED, evidence_of, step=end["step"], rank=rank, language=language)
    if end["outcome"] == "died" and end["step"] == 0:
        step = None
    if not end["rule"]:
        halted = {"zh": f"训练在第 {end['step']} 步之后停止。"}
        return halted.get(language, f"The training was halted after step {end['step']}.")
    if end["outcome"] == "halted":
        named = parameters if row.world_size > 1 else {**parameters, "culprit": None}
        return halt_sentence(end["rule"], named, step=end["step"], rank=rank, language=language)
    return sentence(end["rule"], parameters, step=step, rank=rank, language=language)


def _end(row: Row[Any], found: dict[int, records.Rank], saved: list[Any], language: str) -> schemas.End | None:
    end = row.ending
    if not end:
        return None
    teller = found.get(end["rank"])
    spoilt = spoilt_since(end["rule"], end["parameters"]) if end["outcome"] == "halted" else None
    good = [one.path for one in saved if spoilt is None or one.step <= spoilt]
    checkpoint = end["parameters"].get("checkpoint") if spoilt is None else None
    finished = end["outcome"] == "finished"
    return schemas.End(
        outcome=end["outcome"],
        sentence="" if finished else _end_sentence(row, language),
        step=end["step"],
        rank=end["rank"],
        time=end["time"],
        error=end["error"],
        traceback=teller.traceback if teller else "",
        resume_from="" if finished else str(checkpoint or (good[-1] if good else "")),
    )


def _device_readings(connection: Connection, run: str) -> dict[int, list[schemas.DeviceInfo]]:
    used = {(row.rank, row.device): row for row in connection.execute(select(devices).where(devices.c.run == run))}
    grouped: defaultdict[tuple[int, str], list[points.Listed]] = defaultdict(list)
    for one in points.listed(connection, run):
        if one.device:
            grouped[one.rank, one.device].append(one)
    result: defaultdict[int, list[schemas.DeviceInfo]] = defaultdict(list)
    for (rank, device), same in sorted(grouped.items()):
        known = used.get((rank, device))
        result[rank].append(
            schemas.DeviceInfo(
                device=device,
                time=max(one.last_time for one in same),
                used=known.used if known else None,
                capacity=known.capacity if known else None,
                readings={one.metric: one.last_value for one in same},
            )
        )
    return result


def _rank(rank: records.Rank, readings: list[schemas.DeviceInfo]) -> schemas.RankInfo:
    return schemas.RankInfo(
        rank=rank.rank,
        node=rank.node,
        pid=rank.pid,
        state=rank.state,
        step=rank.step,
        phase=rank.phase,
        last_event_at=rank.last_event_at,
        devices=readings,
    )


def _nonfinite(row: Row[Any], cuts: Cuts) -> schemas.NonFiniteStep:
    return schemas.NonFiniteStep(
        step=row.step,
        rank=row.rank,
        time=row.time,
        where=row.where,
        value=row.value,
        action=row.action,
        micro_batches=row.micro_batches,
        local=row.local,
        parameters=row.parameters.get("names", []),
        parameter_count=row.parameter_count,
        in_a_row=row.in_a_row,
        replaced=cuts.replaced(row.rank, row.step, row.time),
    )


def _alert(row: Row[Any], world_size: int, now: float, language: str) -> schemas.Alert:
    rank = None if row.rank == NO_RANK else row.rank
    named = rank if world_size > 1 else None  # the only rank there is goes without saying
    return schemas.Alert(
        id=row.id,
        rule=row.rule,
        severity=row.severity,
        state=row.state,
        sentence=sentence(row.rule, row.parameters, step=row.last_step, rank=named, language=language),
        rank=rank,
        key=row.key,
        action=row.action,
        resolved_at=row.resolved_at,
        silenced=alert_store.is_silenced(row, now),
        silenced_until=row.silenced_until,
        first_step=row.first_step,
        last_step=row.last_step,
        count=row._mapping["count"],
        first_at=row.first_at,
        last_at=row.last_at,
        parameters=row.parameters,
    )


def _trouble(found: Iterable[records.Source]) -> schemas.Trouble:
    errors: Counter[str] = Counter()
    lost: Counter[str] = Counter()
    message = ""
    for source in found:
        errors.update(source.reported_errors)
        lost.update(source.reported_lost)
        lost.update(source.lost)
        message = source.message or message
    return schemas.Trouble(errors=dict(errors), lost=dict(lost), message=message)
