"""A version that is installed is known for what has just gone wrong."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from trainwatch.diagnosis.known import Known, known_harms
from trainwatch.events import FindingRaised, RunStarted
from trainwatch.rules.base import Options, Rule


class KnownVersions(Rule[Options]):
    """A package's version is known to cause what another rule has found.

    It says nothing before: most trainings with such a version are well.
    """

    id = "known_versions"
    listens = (RunStarted, FindingRaised)
    actions = ("notify",)

    def __init__(self, options: Options) -> None:
        super().__init__(options)
        self._known: tuple[Known, ...] = ()
        self._versions: dict[str, Any] = {}
        self._said: set[str] = set()

    def observe(self, event: RunStarted | FindingRaised, rank: int | None) -> Iterator[FindingRaised]:
        """See :class:`~trainwatch.rules.base.Rule`."""
        if isinstance(event, RunStarted):
            self._known = known_harms(event.environment, event.arguments, event.model)
            self._versions = dict(event.environment.get("packages", {})) if self._known else {}
            return
        if event.state != "firing":
            return
        for known in self._known:
            if event.rule in known.symptoms and known.id not in self._said:
                self._said.add(known.id)
                yield self.finding(
                    event,
                    "warning",
                    key=known.id,
                    evidence={
                        "known": known.id,
                        "versions": {name: str(self._versions.get(name, "")) for name in known.packages},
                        "found": event.rule,
                    },
                )
