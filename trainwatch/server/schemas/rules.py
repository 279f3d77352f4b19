"""What the API says of rules, takes as their options, and answers when they are tried on past runs."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from trainwatch.events import Action as RuleAction
from trainwatch.events import AlertState, Severity
from trainwatch.server.http.spelling import Model
from trainwatch.server.schemas import State


class OptionInfo(Model):
    """An option of a rule, and what it takes."""

    name: str
    kind: Literal["yes or no", "number", "whole number", "choice", "text", "list"]
    default: Any
    meaning: str
    least: float | None = Field(description="The smallest number; null for no limit.")
    above: float | None = Field(description="Only numbers greater than this.")
    most: float | None
    choices: list[str]
    common: bool = Field(description="Every rule has it.")


class RuleInfo(Model):
    """A rule: what it sees, and what can be set of it."""

    id: str
    summary: str
    docs: str = Field(description="Its page in the documentation, from the project's root.")
    actions: list[RuleAction]
    options: list[OptionInfo]


class ProjectRules(Model):
    """The rules there are, and what a project sets of them."""

    project: str
    settings: dict[str, dict[str, Any]] = Field(description="Rule id to option to value; the rest has its default.")
    changed_at: float | None = Field(description="By the server's clock; null: nobody ever changed anything.")
    rules: list[RuleInfo]


class RuleSettingsRequest(Model):
    """All that a project sets of the rules; it replaces what was set before."""

    settings: dict[str, dict[str, Any]]


class RuleProblem(Model):
    """Why an option cannot be set."""

    rule: str
    option: str = Field(description="Empty when it is about the rule as a whole.")
    detail: str


class RuleProblems(Model):
    """Why settings of rules were refused; nothing of them was stored."""

    detail: str
    problems: list[RuleProblem] = Field(default=[], description="None when the request itself makes no sense.")


class BacktestRequest(Model):
    """Which rule settings to try on which runs."""

    settings: dict[str, Any] = Field(default={}, description="The rule's options; the rest has its default.")
    project: str | None = Field(default=None, description="Only this project's runs.")
    limit: int = Field(default=20, ge=1, le=100, description="How many runs, the newest first.")


class BacktestFinding(Model):
    """What the rule would have said."""

    severity: Severity
    state: AlertState
    point: int = Field(description="Index of the first rank's step; in an imported run, of the logged entry.")
    step: int | None
    rank: int | None
    time: float
    seconds: float = Field(description="Since the run's first event.")
    sentence: str


class BacktestRun(Model):
    """A run on which a rule was tried."""

    id: str
    name: str
    project: str
    state: State
    started_at: float
    step: int
    points: int = Field(description="Steps, or logged entries, that the rule was shown.")
    is_whole: bool = Field(description="False: the run is so long that only its begin was tried.")
    fired: bool
    count: int = Field(description="How often it would have said something; at most 20 of these are in `findings`.")
    findings: list[BacktestFinding]


class Backtest(Model):
    """What a rule would have said of past runs."""

    rule: str
    runs: list[BacktestRun]
    fired: int = Field(description="On how many of these runs it would have fired.")
    ended_well: int = Field(description="How many of them finished.")
    fired_on_ended_well: int
    left: int = Field(description="Runs that it did not come to in time.")
