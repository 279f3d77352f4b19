"""A project's settings of rules, with the catalogue that explains them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec
from fastapi import APIRouter, HTTPException
from starlette.responses import JSONResponse

from trainwatch.rules import RULES
from trainwatch.rules.catalogue import describe
from trainwatch.rules.settings import SettingsError, check
from trainwatch.server.schemas import rules as schemas
from trainwatch.server.services import ServicesDep
from trainwatch.server.store import rule_settings
from trainwatch.settings import is_name

router = APIRouter(tags=["rules"])
_DOCS: Final = "docs/rules/{}.md"
_RULES: Final = [schemas.RuleInfo(docs=_DOCS.format(rule.id), **msgspec.to_builtins(rule)) for rule in describe(RULES)]


@router.get("/projects/{project}/rules")
def rules(services: ServicesDep, project: str) -> schemas.ProjectRules:
    """Returns all rules, and what the project sets of them."""
    _check_name(project)
    with services.database.read() as connection:
        settings, changed_at = rule_settings.of_project(connection, project)
    return schemas.ProjectRules(project=project, settings=settings, changed_at=changed_at, rules=_RULES)


@router.put(
    "/projects/{project}/rules",
    responses={422: {"model": schemas.RuleProblems, "description": "An option is unknown or a value does not fit."}},
    response_model=schemas.ProjectRules,
)
def set_rules(services: ServicesDep, project: str, wanted: schemas.RuleSettingsRequest) -> Any:
    """Replaces the project's settings; running runs hear of them with the answer to their next shipment."""
    _check_name(project)
    problems = _problems(wanted.settings)
    if problems:
        found = schemas.RuleProblems(detail=problems[0].detail, problems=problems)
        return JSONResponse(found.model_dump(), status_code=422)
    settings = {rule: options for rule, options in wanted.settings.items() if options}
    now = services.clock()
    with services.database.write() as connection:
        rule_settings.put(connection, project, settings, now)
    return schemas.ProjectRules(project=project, settings=settings, changed_at=now, rules=_RULES)


def _problems(settings: Mapping[str, Mapping[str, Any]]) -> list[schemas.RuleProblem]:
    """Looks at each option for itself, so that each problem can be shown beside its field."""
    found = []
    for rule, options in settings.items():
        for option, one in [("", {}), *((name, {name: value}) for name, value in options.items())]:
            try:
                check({rule: one}, RULES)
            except SettingsError as error:
                found.append(schemas.RuleProblem(rule=rule, option=option, detail=str(error)))
                if not option:
                    break
    return found


def _check_name(project: str) -> None:
    if not is_name(project):
        raise HTTPException(404, f"There can be no project {project[:100]!r}.")
