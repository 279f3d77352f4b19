"""A rule on past runs, before it is armed."""

from __future__ import annotations

import math
import threading
from typing import Final

from fastapi import APIRouter, HTTPException

from trainwatch.events import FindingRaised
from trainwatch.rules import RULES
from trainwatch.rules.replay import Replayed, replay
from trainwatch.rules.settings import SettingsError, options_of
from trainwatch.rules.wording import sentence
from trainwatch.server.access import PrincipalDep, clipped
from trainwatch.server.http.language import LanguageDep
from trainwatch.server.schemas import Problem
from trainwatch.server.schemas.rules import Backtest, BacktestFinding, BacktestRequest, BacktestRun
from trainwatch.server.services import ServicesDep
from trainwatch.server.store import rebuilt
from trainwatch.server.store import runs as store

router = APIRouter(tags=["rules"])
POINTS_OF_A_RUN: Final = 500_000
SECONDS: Final = 15.0
FINDINGS_OF_A_RUN: Final = 20
_RULES: Final = {rule.id: rule for rule in RULES}
_one_at_a_time = threading.Lock()  # it computes for seconds, and shipments must go on beside it


@router.post(
    "/rules/{rule}/backtest",
    responses={
        404: {"model": Problem, "description": "There is no such rule."},
        429: {"model": Problem, "description": "Another one is still running."},
    },
)
@clipped
def backtest(
    services: ServicesDep, principal: PrincipalDep, language: LanguageDep, rule: str, wanted: BacktestRequest
) -> Backtest:
    """Shows the newest runs to a rule again, with the options given, and says what it would have said.

    It stops after some seconds; `left` counts the runs that it did not come to.
    """
    kind = _RULES.get(rule)
    if kind is None:
        raise HTTPException(404, f"There is no rule {rule[:100]!r}.")
    if FindingRaised in kind.listens:
        raise HTTPException(422, "This rule looks at what other rules find: it cannot be tried alone.")
    try:
        options_of(kind, wanted.settings)
    except SettingsError as error:
        raise HTTPException(422, str(error)) from None
    if wanted.project is not None and not principal.sees(wanted.project):
        raise HTTPException(404, f"There is no project {wanted.project[:100]!r}.")
    if not _one_at_a_time.acquire(blocking=False):
        raise HTTPException(429, "Another back-test is still running; try again in some seconds.")
    try:
        begin = services.clock()
        tried: list[BacktestRun] = []
        with services.database.read() as connection:
            newest = store.newest(connection, project=principal.project or wanted.project, limit=wanted.limit)
            for run in newest:
                if tried and not 0 <= services.clock() - begin <= SECONDS:
                    break
                found = rebuilt.events_of(connection, run.id, kind.listens, most=POINTS_OF_A_RUN)
                # Its own options are asked for, also where it is turned off for now.
                settings = {rule: {**wanted.settings, "enabled": True}}
                result = replay(found.events, (kind,), settings)
                tried.append(_told(run, result, found.is_whole, language))
    finally:
        _one_at_a_time.release()
    return Backtest(
        rule=rule,
        runs=tried,
        fired=sum(one.fired for one in tried),
        ended_well=sum(one.state == "finished" for one in tried),
        fired_on_ended_well=sum(one.fired and one.state == "finished" for one in tried),
        left=len(newest) - len(tried),
    )


def _told(run: store.Named, result: Replayed, is_whole: bool, language: str) -> BacktestRun:
    reports = [report for report in result.reports if report.finding.state != "pending"]
    return BacktestRun(
        id=run.id,
        name=run.name,
        project=run.project,
        state=run.state,
        started_at=run.started_at,
        step=run.step,
        points=result.points,
        is_whole=is_whole,
        fired=any(report.finding.state == "firing" for report in reports),
        count=len(reports),
        findings=[
            BacktestFinding(
                severity=report.finding.severity,
                state=report.finding.state,
                point=report.point,
                step=report.finding.step,
                rank=report.finding.rank,
                time=report.finding.time,
                seconds=report.seconds if math.isfinite(report.seconds) else 0.0,
                sentence=sentence(
                    report.finding.rule,
                    report.finding.parameters,
                    language=language,
                    step=report.finding.step,
                    rank=report.finding.rank,
                ),
            )
            for report in reports[:FINDINGS_OF_A_RUN]
        ],
    )
