"""Work that many ask for at once and that is cheaper done together."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")
R = TypeVar("R")


class _Asked(Generic[T, R]):
    __slots__ = ("answer", "error", "group", "item", "signal", "weight")

    def __init__(self, item: T, weight: int) -> None:
        self.item = item
        self.weight = weight
        self.signal = threading.Event()
        self.group: list[_Asked[T, R]] = []  # not empty: the thread is to work for these, itself the first
        self.answer: R | None = None
        self.error: Exception | None = None


class Together(Generic[T, R]):
    """Does what several threads ask for in one go.

    The thread that comes first works for itself and for all who wait meanwhile: nobody waits for company, and the more
    there is to do, the more is done at once.

    Args:
        work: Does several things at once; returns an answer for each.
        weigh: How heavy a thing is.
        most: What is done at once weighs at most so much, unless it is a single thing.
        at_once: How many threads may work at the same time.
        hopeless: Errors that would hit each of the things alone, too. After any other error each is tried alone, so
            that only the one that is to blame fails.
    """

    def __init__(
        self,
        work: Callable[[list[T]], list[R]],
        *,
        weigh: Callable[[T], int],
        most: int,
        at_once: int = 1,
        hopeless: tuple[type[Exception], ...] = (),
    ) -> None:
        self._work = work
        self._weigh = weigh
        self._most = most
        self._free = at_once
        self._hopeless = hopeless
        self._lock = threading.Lock()
        self._waiting: deque[_Asked[T, R]] = deque()

    def __call__(self, item: T) -> R:
        """Has a thing done, and returns the answer.

        Raises:
            Exception: What the work raised.
        """
        mine = _Asked[T, R](item, self._weigh(item))
        with self._lock:
            if self._free:  # then nobody waits
                self._free -= 1
                mine.group = [mine]
            else:
                self._waiting.append(mine)
        if not mine.group:
            mine.signal.wait()
        if mine.group:
            try:
                self._do(mine.group)
            finally:
                self._hand_over()
        if mine.error is not None:
            raise mine.error
        return mine.answer  # type: ignore[return-value]

    def _do(self, group: list[_Asked[T, R]]) -> None:
        try:
            self._try(group)
        except Exception as error:
            if len(group) == 1 or isinstance(error, self._hopeless):
                for one in group:
                    one.error = error
            else:
                for one in group:
                    try:
                        self._try([one])
                    except Exception as its_own:
                        one.error = its_own
        finally:
            for one in group[1:]:
                one.signal.set()

    def _try(self, group: list[_Asked[T, R]]) -> None:
        for one, answer in zip(group, self._work([one.item for one in group]), strict=True):
            one.answer = answer

    def _hand_over(self) -> None:
        """Gives one's place to the first who waits, together with as many as may go along."""
        with self._lock:
            if not self._waiting:
                self._free += 1
                return
            first = self._waiting.popleft()
            first.group = [first]
            weight = first.weight
            while self._waiting and weight + self._waiting[0].weight <= self._most:
                weight += self._waiting[0].weight
                first.group.append(self._waiting.popleft())
        first.signal.set()
