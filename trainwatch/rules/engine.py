"""All rules over one run: events in, alerts out. The same in the agent, in the server and in back-tests."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from trainwatch.events import AnyEvent, Event, FindingRaised, RulesSet, RunStarted
from trainwatch.rules.alerts import Alerts
from trainwatch.rules.base import Rule
from trainwatch.rules.settings import SettingsError, merged, options_of

Guard = Callable[[str], AbstractContextManager[Any]]


def _no_guard(what: str) -> AbstractContextManager[Any]:
    return nullcontext()


class Engine:
    """All rules over one run.

    What it finds depends on the events and their order alone, never on when or in what pieces they came.

    Args:
        rules: The rules to apply.
        settings: Options of rules for this run, before all that the events say; they win over those.
        guard: Makes a context in which one rule looks at one event, told what for: it may swallow an exception, so
            that a rule's fault costs no other rule its finding.

    Raises:
        SettingsError: `settings` do not fit the rules.

    Attributes:
        alerts: Those that are open.
        rejected: Rule id to why the options that an event brought for it were not taken.
    """

    def __init__(
        self,
        rules: tuple[type[Rule[Any]], ...],
        settings: Mapping[str, Mapping[str, Any]] | None = None,
        guard: Guard = _no_guard,
    ) -> None:
        self.alerts = Alerts()
        self.rejected: dict[str, str] = {}
        self._guard = guard
        self._project: Mapping[str, Mapping[str, Any]] = {}
        self._script: Mapping[str, Mapping[str, Any]] = {}
        self._own = settings or {}
        self._rules = [rule(options_of(rule, self._own.get(rule.id, {}))) for rule in rules]
        self._listeners: dict[type[Event], list[Rule[Any]]] = {}
        self._seconded: list[Rule[Any]] = []
        self._started: set[int | None] = set()
        self._arrange()

    def observe(self, event: AnyEvent, rank: int | None) -> list[FindingRaised]:
        """Shows the next event to every rule that listens to its type.

        Args:
            event: What happened.
            rank: The rank whose journal holds the event, or that a sample is about; None for the node or the run.

        Returns:
            What is to be reported, in the order of the rules.
        """
        kind = type(event)
        found: list[FindingRaised] = []
        if kind is RulesSet:
            self._project = event.rules  # type: ignore[union-attr]
            found += self._configure(event.time)
        elif kind is RunStarted:
            if rank in self._started:
                found += self._begin_again(event.time)
            self._started.add(rank)
            if event.rules != self._script:  # type: ignore[union-attr]
                self._script = event.rules  # type: ignore[union-attr]
                found += self._configure(event.time)
        alerts = self.alerts
        self._show(self._listeners.get(kind, ()), event, rank, found)
        if alerts.has_pending:
            found += alerts.advance(event.time)
        if found and self._seconded:
            for first in tuple(found):
                self._show(self._seconded, first, first.rank, found)
        return found

    def options(self) -> dict[str, Any]:
        """Returns the options in force, by rule."""
        return {rule.id: rule.options for rule in self._rules}

    def _show(self, rules: Iterable[Rule[Any]], event: AnyEvent, rank: int | None, found: list[FindingRaised]) -> None:
        take = self.alerts.take
        for rule in rules:
            try:
                # Mostly nothing is found: an empty tuple, or a generator that ends at once.
                for finding in rule.observe(event, rank):
                    report = take(finding, rule.options)
                    if report is not None:
                        found.append(report)
            except Exception:
                # The guard is asked when something has happened: around every look it costs more than most rules do.
                with self._guard(f"rule {rule.id}"):
                    raise

    def _begin_again(self, time: float) -> list[FindingRaised]:
        # What was wrong with processes that were replaced is over: the server closes its alerts as well. What goes on
        # in the new ones must be said and acted upon again, also where steps go on as if nothing had happened.
        self._started.clear()
        over = [report for rule in self._rules for report in self.alerts.forget(rule.id, time)]
        self._rules = [rule.renewed() for rule in self._rules]
        self._arrange()
        return over

    def _configure(self, time: float) -> list[FindingRaised]:
        settings = merged(self._project, self._script, self._own)
        self.rejected.clear()
        over: list[FindingRaised] = []
        for place, rule in enumerate(self._rules):
            try:
                options = options_of(type(rule), settings.get(rule.id, {}))
            except SettingsError as error:
                # Written for another version of the rule; an event cannot be refused any more.
                self.rejected[rule.id] = str(error)
                options = self._without_project(type(rule))
            if options.enabled and not rule.options.enabled:
                # It has not looked for a while, and believes that what it once said still stands.
                self._rules[place] = type(rule)(options)
            else:
                rule.configure(options)
            if not options.enabled:
                over += self.alerts.forget(rule.id, time)
        self._arrange()
        return over

    def _without_project(self, rule: type[Rule[Any]]) -> Any:
        # A script that says "do not halt" must not be overruled by a server of another version.
        try:
            return options_of(rule, merged(self._script, self._own).get(rule.id, {}))
        except SettingsError:
            return options_of(rule, self._own.get(rule.id, {}))

    def _arrange(self) -> None:
        listeners: defaultdict[type[Event], list[Rule[Any]]] = defaultdict(list)
        for rule in self._rules:
            if rule.options.enabled:
                for kind in rule.listens:
                    listeners[kind].append(rule)
        # What was found is shown to those that explain it, and not what they make of it.
        self._seconded = listeners.pop(FindingRaised, [])
        self._listeners = dict(listeners)
