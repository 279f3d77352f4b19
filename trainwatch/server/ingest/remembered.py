"""What a server still knows of the rows that it wrote last, so that it need not read them again each second.

Whoever changes a run's sources, ranks or series does so under the run's row lock, and leaves the run with another
version or another time at which it was heard. So what is remembered holds exactly if the locked row has both as they
were left; another server, or a person, may have been there otherwise, and everything is read anew.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from trainwatch.server.store.points import Key, Series
from trainwatch.server.store.records import Rank, Run, Source

_MOST: Final = 100_000
"""Series that are remembered; some 0.4 kB each."""


@dataclass(slots=True)
class Known:
    """What is known of a run.

    Attributes:
        sources: By name; not all of them.
        ranks: By number; not all of them.
        series: By rank; of each of these ranks all.
    """

    sources: dict[str, Source] = field(default_factory=dict)
    ranks: dict[int, Rank] = field(default_factory=dict)
    series: dict[int, dict[Key, Series]] = field(default_factory=dict)

    def size(self) -> int:
        """Returns how many series are known."""
        return sum(map(len, self.series.values()))


@dataclass(slots=True)
class _Kept:
    known: Known
    version: int
    heard_at: float
    size: int


class Remembered:
    """Remembers runs, those that were heard last.

    Args:
        most: How many series it remembers.
    """

    def __init__(self, most: int = _MOST) -> None:
        self._most = most
        self._kept: OrderedDict[str, _Kept] = OrderedDict()
        self._size = 0
        self._lock = threading.Lock()

    def take(self, runs: Iterable[Run]) -> dict[str, Known]:
        """Hands out what is known of runs, and forgets it: a transaction that fails must leave nothing behind.

        Args:
            runs: Their rows, locked, as they were read.
        """
        found = {}
        with self._lock:
            for run in runs:
                kept = self._kept.pop(run.id, None)
                if kept is not None:
                    self._size -= kept.size
                holds = kept is not None and (kept.version, kept.heard_at) == (run.version, run.heard_at)
                found[run.id] = kept.known if kept is not None and holds else Known()
        return found

    def keep(self, runs: Mapping[str, Run], known: Mapping[str, Known]) -> None:
        """Remembers runs, once the transaction is committed.

        Args:
            runs: Their rows, as they were written.
            known: What is known of each.
        """
        with self._lock:
            for name, one in known.items():
                before = self._kept.pop(name, None)
                self._size -= before.size if before is not None else 0
                self._kept[name] = _Kept(one, runs[name].version, runs[name].heard_at, one.size())
                self._size += self._kept[name].size
            while self._size > self._most and self._kept:
                self._size -= self._kept.popitem(last=False)[1].size
