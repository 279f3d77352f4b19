"""How long our own code takes inside a running training: clocks around functions, found in place, no sampling."""

from __future__ import annotations

import functools
import statistics
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

Place = tuple[Any, str]
"""A class or a module, and the name of a function in it."""


class Meter:
    """Puts clocks around functions, and adds up what they took in each step.

    A clock's own cost is measured and taken off: from the function that it is around, and from those around that.

    Args:
        places: Functions to put a clock around. Those inside others are counted as parts of these too.
    """

    def __init__(self, places: Iterable[Place]) -> None:
        self._places = list(places)
        self._stack: list[list[float]] = []
        self._own, self._whole = _cost_of_a_clock()
        self._step: dict[str, list[float]] = {}
        self.steps: list[dict[str, list[float]]] = []
        self.once: dict[str, list[float]] = {}

    def next_step(self) -> None:
        """A step begins."""
        self.steps.append(self._step)
        self._step = {}

    @contextmanager
    def attached(self) -> Iterator[None]:
        """Puts the clocks on, and takes them off again."""
        before = [(owner, name, _raw(owner, name)) for owner, name in self._places]
        for owner, name, function in before:
            setattr(owner, name, self._clocked(f"{_short(owner)}.{name}", function))
        try:
            yield
        finally:
            for owner, name, function in before:
                setattr(owner, name, function)

    def inclusive(self, name: str) -> list[float]:
        """Returns the microseconds that a function took in each step, all its calls and what they called together."""
        return [step[name][0] if name in step else 0.0 for step in self.steps]

    def exclusive(self, name: str) -> list[float]:
        """The same without what other clocks inside of it counted."""
        return [step[name][1] if name in step else 0.0 for step in self.steps]

    def calls(self, name: str) -> float:
        """Returns the median number of calls in a step."""
        return statistics.median([step[name][2] if name in step else 0.0 for step in self.steps])

    def outermost(self) -> list[float]:
        """Returns the microseconds of each step in functions that no other clock was around."""
        return [sum(times[3] for times in step.values()) for step in self.steps]

    @property
    def names(self) -> list[str]:
        """Names of all functions."""
        return [f"{_short(owner)}.{name}" for owner, name in self._places]

    def _clocked(self, label: str, function: Any) -> Callable[..., Any]:
        stack, clock, own, whole = self._stack, time.perf_counter_ns, self._own, self._whole

        @functools.wraps(function)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            # [time of the clocked calls inside, cost of the clocks inside]
            inner = [0.0, 0.0]
            stack.append(inner)
            began = clock()
            try:
                return function(*args, **kwargs)
            finally:
                took = clock() - began - own - inner[1]
                stack.pop()
                if stack:
                    stack[-1][0] += took
                    stack[-1][1] += whole + inner[1]
                entry = self._step.setdefault(label, [0.0, 0.0, 0.0, 0.0])
                entry[0] += took / 1000
                entry[1] += (took - inner[0]) / 1000
                entry[2] += 1
                if not stack:
                    entry[3] += took / 1000
                self.once.setdefault(label, []).append(took / 1000)

        return wrapper


def _raw(owner: Any, name: str) -> Any:
    return vars(owner)[name]


def _short(owner: Any) -> str:
    return str(owner.__name__).rpartition(".")[2]


class _Nothing:
    def nothing(self, *args: Any, **kwargs: Any) -> None:
        """Costs what a call costs."""


def _cost_of_a_clock() -> tuple[float, float]:
    """Returns what a clock adds, in nanoseconds: to the time that it shows, and to that of its caller."""
    clock, spans = time.perf_counter_ns, []
    for _ in range(5000):
        began = clock()
        spans.append(clock() - began)
    own = statistics.median(spans)
    meter = Meter.__new__(Meter)
    meter._stack, meter._step, meter.steps, meter.once = [], {}, [], {}
    meter._own, meter._whole = own, 0.0
    subject = _Nothing()
    plain, wrapped = subject.nothing, functools.partial(meter._clocked("nothing", _Nothing.nothing), subject)
    return own, max(_span(wrapped) - _span(plain), 0.0)


def _span(function: Callable[..., Any]) -> float:
    clock, spans = time.perf_counter_ns, []
    for _ in range(3000):
        began = clock()
        function(1, 2, 3, one=1, two=2)
        spans.append(clock() - began)
    return statistics.median(spans)
