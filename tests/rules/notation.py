"""Tests of rules as data: a series in a short notation, a run made of series, and what must be found in it.

Modelled after the way Prometheus tests its rules. CONTRIBUTING.md ("A rule's cases") explains it with an example; this
file reads it. What is wrong in a case is a :class:`CaseError` that names the file, the case and the place.
"""

from __future__ import annotations

import math
import random
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, Literal

import msgspec
import yaml

from trainwatch import events
from trainwatch.events import AnyEvent, Evaluated, Event, Logged, Phase, Sampled, StepEnded

Series = str | float
Shown = tuple[AnyEvent, int | None]
"""An event and the rank in whose journal it stands."""

START: Final = 1_700_000_000.0
_SIZES: Final = {"": 1.0, "Ki": 2.0**10, "Mi": 2.0**20, "Gi": 2.0**30, "Ti": 2.0**40}
_NUMBER: Final = r"(?:\d+(?:\.\d*)?|\.\d+)(?:e[+-]?\d+)?(?:[KMGT]i)?"
_ITEM: Final = re.compile(
    rf"(?P<start>_|NaN|[+-]?Inf|[+-]?{_NUMBER})"
    rf"(?P<change>[+-]{_NUMBER})?(?P<factor>\*{_NUMBER})?(?P<noise>~{_NUMBER})?(?:x(?P<count>\d+))?"
)
_GROUP: Final = re.compile(r"\(([^()]*)\)x(\d+)|\S+")
_HELP: Final = (
    "a value (2.5, 40Gi, NaN, Inf), a row (2.0-0.01x50, 1*1.1x20, 2.0~0.05x100), a gap (_ or _x3), "
    "or a group that is repeated ((1 1 5)x10)"
)


class _Loader(yaml.SafeLoader):
    """YAML in which numbers are decimal and truth is true or false: 0x300 is 300 zeros here, and not 768."""


_Loader.yaml_implicit_resolvers = {
    letter: [(tag, pattern) for tag, pattern in found if tag.rpartition(":")[2] not in ("int", "float", "bool")]
    for letter, found in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
for _tag, _pattern, _letters in (
    ("bool", r"true|false", "tf"),
    ("int", r"[-+]?[0-9]+", "-+0123456789"),
    ("float", r"[-+]?(?:[0-9]+\.[0-9]*|\.[0-9]+)(?:e[-+]?[0-9]+)?|[-+]?[0-9]+e[-+]?[0-9]+", "-+.0123456789"),
):
    _Loader.add_implicit_resolver(f"tag:yaml.org,2002:{_tag}", re.compile(rf"(?:{_pattern})\Z"), list(_letters))
_Loader.add_constructor("tag:yaml.org,2002:int", lambda loader, node: int(node.value))  # 010 is ten


class CaseError(ValueError):
    """A case that cannot be read; the message says which, where and why."""


def series(text: Series, seed: str = "") -> list[float | None]:
    """Reads a series.

    Args:
        text: Items with spaces between: ``2.5`` a value; ``2.0-0.01x50`` 50 values that fall by 0.01; ``1*1.1x20`` 20
            that grow by a tenth each; ``2.0~0.05x100`` 100 with normal noise of that standard deviation; ``_x3`` three
            steps without a value; ``(1 1 5)x10`` a group ten times. Numbers may end in Ki, Mi, Gi, Ti.
        seed: Of the noise; the same text and seed give the same values.

    Raises:
        CaseError: It cannot be read.
    """
    numbers = random.Random(seed)
    values: list[float | None] = []
    for found in _GROUP.finditer(str(text)):
        group, times = found.groups()
        for _ in range(1 if group is None else int(times)):
            for item in [found[0]] if group is None else group.split():
                values += _item(item, str(text), numbers)
    if not values:
        raise CaseError(f"an empty series: it takes {_HELP}")
    return values


def _item(item: str, text: str, numbers: random.Random) -> Iterator[float | None]:
    match = _ITEM.fullmatch(item)
    if match is None or (match["start"] == "_" and (match["change"] or match["factor"] or match["noise"])):
        raise CaseError(f"cannot read {item!r} in {text!r}: it takes {_HELP}")
    count = 1 if match["count"] is None else int(match["count"])
    if (match["change"] or match["factor"]) and match["count"] is None:
        raise CaseError(f"{item!r} in {text!r} changes, but how often? Write {item}x20 for 20 values")
    start, change = _number(match["start"]), _number(match["change"] or "0")
    factor, noise = _number((match["factor"] or "*1")[1:]), _number((match["noise"] or "~0")[1:])
    for place in range(count):
        if start is None:
            yield None
        else:
            assert change is not None
            assert factor is not None
            assert noise is not None
            exact = (start + place * change) * factor**place
            yield exact + numbers.gauss(0.0, noise) if noise else exact


def _number(text: str) -> float | None:
    if text == "_":
        return None
    unit = text[-2:] if text[-2:] in _SIZES else ""
    return float(text.removesuffix(unit)) * _SIZES[unit]


class Expected(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A report that must come.

    Attributes:
        rule: Whose; the file's when not given.
        severity: How bad.
        state: Pending, firing or resolved.
        step: At which step exactly.
        between: At which steps, first and last.
        rank: Of which rank; ``"none"`` for the run as a whole.
        key: The finding's key.
        action: What is done.
        says: What the English sentence must hold; several texts in a list.
    """

    rule: str | None = None
    severity: events.Severity | None = None
    state: events.AlertState = "firing"
    step: int | None = None
    between: tuple[int, int] | None = None
    rank: int | Literal["none"] | None = None
    key: str | None = None
    action: events.Action | None = None
    says: str | list[str] = []

    def is_about(self, found: events.FindingRaised) -> bool:
        """Tells whether a report is the one that is meant, were it at the right step."""
        return (
            found.rule == self.rule
            and found.state == self.state
            and self.severity in (None, found.severity)
            and self.key in (None, found.key)
            and (self.rank is None or found.rank == (None if self.rank == "none" else self.rank))
        )


class Case(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One run, and what must be found in it; the fields are explained in CONTRIBUTING.md."""

    name: str
    about: str = ""
    run: dict[str, Any] = {}
    ranks: list[int] = msgspec.field(default_factory=lambda: [0])
    first_step: int = 0
    seconds_per_step: float = 1.0
    numbers: Series | None = None
    steps: dict[str, Series] = {}
    memory: dict[str, Series] = {}
    logged: dict[str, Series] = {}
    evals: dict[str, Series] = {}
    samples: dict[str, Series] = {}
    events: list[dict[str, Any]] = []
    settings: dict[str, Any] = {}
    rules: Literal["own", "all"] = "own"
    expect: list[Expected] = []
    silent: bool = False


class CaseFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A rule's cases; the file's name is the rule's id."""

    cases: list[Case]


def read(path: Path) -> list[Case]:
    """Reads a rule's cases.

    Raises:
        CaseError: The file is no YAML, or not of cases.
    """
    try:
        cases = msgspec.convert(yaml.load(path.read_text("utf-8"), _Loader), CaseFile).cases
    except (yaml.YAMLError, msgspec.ValidationError) as error:
        raise CaseError(f"{path.name}: {error}") from None
    names = [case.name for case in cases]
    for name in names:
        if names.count(name) > 1:
            raise CaseError(f"{path.name}: two cases are named {name!r}")
    for case in cases:
        _check(path, case)
    return cases


def _check(path: Path, case: Case) -> None:
    where = f"{path.name}, case {case.name!r}"
    if case.silent == bool(case.expect):
        raise CaseError(f"{where}: a case is either `silent: true` or has something to `expect`")
    for expected in case.expect:
        if expected.step is not None and expected.between is not None:
            raise CaseError(f"{where}: expect a step or a range of steps (between), not both")
        if expected.between is not None and expected.between[0] > expected.between[1]:
            raise CaseError(f"{where}: between: [{expected.between[0]}, {expected.between[1]}] holds no step")
    try:
        if not list(played(case)):
            raise CaseError("nothing happens in it")
    except CaseError as error:
        raise CaseError(f"{where}: {error}") from None


class _Clock:
    """Where a case is: what has passed, and what the machine's clock shows, which may be set."""

    def __init__(self) -> None:
        self.passed = 0.0
        self.shift = 0.0

    @property
    def time(self) -> float:
        return START + self.passed + self.shift


class _Table:
    """Series by name; ``name@1`` is that of rank 1 alone."""

    def __init__(self, place: str, table: dict[str, Series], ranks: list[int], case: str) -> None:
        self.columns: dict[int, dict[str, list[float | None]]] = {rank: {} for rank in ranks}
        self.length = 0
        for whose_own in (False, True):  # a rank's own series goes before that of all
            for name, text in table.items():
                metric, own, rank = name.partition("@")
                if bool(own) is not whose_own:
                    continue
                if own and (not rank.isdigit() or int(rank) not in self.columns):
                    raise CaseError(f"{place}.{name}: there is no rank {rank!r} in this run; it has {ranks}")
                for one in [int(rank)] if own else ranks:
                    try:
                        values = series(text, f"{case} {name} {one}")
                    except CaseError as error:
                        raise CaseError(f"{place}.{name}: {error}") from None
                    self.columns[one][metric] = values
                    self.length = max(self.length, len(values))

    def row(self, rank: int, place: int) -> dict[str, float]:
        """Returns the values at a place, counted from 0; what has none is left out."""
        found = {}
        for name, values in self.columns[rank].items():
            value = values[place] if place < len(values) else None
            if value is not None:
                found[name] = value
        return found


def _by_device(row: dict[str, float]) -> dict[str, dict[str, float]]:
    devices: dict[str, dict[str, float]] = {}
    for name, value in row.items():
        device, space, metric = name.partition(" ")
        if not space:
            raise CaseError(f"{name!r} is no reading: write the device, a space and the metric (cuda:0 memory/peak)")
        devices.setdefault(device, {})[metric] = value
    return devices


def _every(table: dict[str, Series], default: float) -> tuple[float, dict[str, Series]]:
    every = table.get("every", default)
    if isinstance(every, str) or every <= 0:
        raise CaseError(f"every: {every!r} is no distance")
    return float(every), {name: text for name, text in table.items() if name != "every"}


def played(case: Case) -> Iterator[Shown]:
    """Plays a case.

    Yields:
        Its events in order, with the rank of each.

    Raises:
        CaseError: It cannot be played.
    """
    # What has passed when it happens, then the clock's shift from there on; steps go before samples of the same moment.
    happened = list(_happened(case))
    shift = [(passed, event.time - START - passed) for passed, event, _ in happened]
    for passed, devices, rank in _sampled(case):
        moved = next((by for at, by in reversed(shift) if at <= passed), 0.0)
        happened.append((passed, Sampled(time=START + passed + moved, devices=devices, rank=rank), rank))
    happened.sort(key=lambda one: one[0])
    step: dict[int | None, int] = {}
    phase: dict[int | None, Phase] = {}
    for _, event, rank in happened:
        if isinstance(event, StepEnded):
            step[rank] = event.step
        elif isinstance(event, events.PhaseEntered):
            phase[rank] = event.phase
        elif isinstance(event, Sampled) and event.step is None and event.rank is not None:
            event = msgspec.structs.replace(event, step=step.get(rank), phase=phase.get(rank))
        yield event, rank


def _sampled(case: Case) -> Iterator[tuple[float, dict[str, dict[str, float]], int | None]]:
    every, columns = _every(case.samples, 1.0)
    whole = {name: text for name, text in columns.items() if name.startswith(("host ", "disk "))}
    own = {name: text for name, text in columns.items() if name not in whole}
    for ranks, table in ((case.ranks, own), ([-1], whole)):  # the node's readings belong to no rank
        found = _Table("samples", table, ranks, case.name)
        for place in range(found.length):
            for rank in ranks:
                devices = _by_device(found.row(rank, place))
                if devices:
                    yield place * every, devices, None if rank < 0 else rank


def _happened(case: Case) -> Iterator[tuple[float, AnyEvent, int | None]]:
    clock = _Clock()
    first = {"name": case.name, "world_size": len(case.ranks), "first_step": case.first_step} | case.run
    for rank in case.ranks:
        yield clock.passed, _made("run", {"type": "run_started", "time": clock.time, **first}), rank
    steps = _Table("steps", case.steps, case.ranks, case.name)
    memory = _Table("memory", case.memory, case.ranks, case.name)
    periodic: list[tuple[type[Logged] | type[Evaluated], int, _Table]] = []
    for kind, place, written in ((Logged, "logged", case.logged), (Evaluated, "evals", case.evals)):
        every, columns = _every(written, 1)
        periodic.append((kind, int(every), _Table(place, columns, case.ranks, case.name)))
    count = max([steps.length, memory.length, *(every * table.length for _, every, table in periodic)])
    if case.numbers is None:
        numbers = [case.first_step + place + 1 for place in range(count)]
    else:
        numbers = [round(value) for value in series(case.numbers) if value is not None]
        if len(numbers) != count:
            raise CaseError(f"numbers: there are {len(numbers)} for {count} steps")
    literal = _Literals(case)
    yield from literal.at(case.first_step, clock)
    for place, number in enumerate(numbers):
        rows = {rank: (steps.row(rank, place), memory.row(rank, place)) for rank in case.ranks}
        clock.passed += max(_seconds(values, case.seconds_per_step) for values, _ in rows.values())
        for rank, (values, readings) in rows.items():
            if values or readings:
                event: Event = StepEnded(time=clock.time, step=number, values=values, devices=_by_device(readings))
                yield clock.passed, event, rank
        for kind, every, table in periodic:
            if (place + 1) % every == 0:
                for rank in case.ranks:
                    row = table.row(rank, (place + 1) // every - 1)
                    if row:
                        yield clock.passed, kind(time=clock.time, step=number, values=row), rank
        yield from literal.at(number, clock)
    literal.check_all_happened()


def _seconds(values: dict[str, float], otherwise: float) -> float:
    took = values.get("train/step_seconds")
    if took is None or not math.isfinite(took):
        return otherwise
    waited = values.get("train/data_seconds", 0.0)
    return took + (waited if math.isfinite(waited) else 0.0)


class _Literals:
    """Events that a case writes out, by the step after which they come."""

    def __init__(self, case: Case) -> None:
        self._first_rank = case.ranks[0]
        self._by_step: dict[int, list[dict[str, Any]]] = {}
        for written in case.events:
            at = written.get("at")
            if not isinstance(at, int):
                raise CaseError(f"events: {written}: `at` says after which step; {case.first_step} is the begin")
            self._by_step.setdefault(at, []).append(written)

    def at(self, step: int, clock: _Clock) -> Iterator[tuple[float, AnyEvent, int | None]]:
        """Yields what happens after a step, the first time that it is done."""
        for written in self._by_step.pop(step, ()):
            fields = {name: value for name, value in written.items() if name not in ("at", "after", "clock")}
            clock.passed += float(written.get("after", 0.0))
            clock.shift += float(written.get("clock", 0.0))
            rank = fields.pop("rank", self._first_rank)
            kind = _TYPES.get(str(fields.get("type")))
            if kind is None:
                raise CaseError(f"events: {written}: `type` is one of {', '.join(sorted(_TYPES))}")
            if "step" in kind.__struct_fields__:
                fields.setdefault("step", step)
            if "rank" in kind.__struct_fields__:
                fields["rank"] = rank
            yield clock.passed, _made("events", {"time": clock.time, **fields}), rank

    def check_all_happened(self) -> None:
        """Refuses events that would never come."""
        if self._by_step:
            raise CaseError(f"events: nothing ends at step {', '.join(map(str, sorted(self._by_step)))}")


_TYPES: Final = {str(kind.__struct_config__.tag): kind for kind in Event.__subclasses__()}


def _made(place: str, fields: dict[str, Any]) -> AnyEvent:
    kind = _TYPES[fields["type"]]
    unknown = set(fields) - set(kind.__struct_fields__) - {"type"}
    if unknown:
        raise CaseError(f"{place}: {fields['type']} has no {', '.join(sorted(unknown))}")
    try:
        return msgspec.convert(fields, AnyEvent, strict=False)  # type: ignore[no-any-return]
    except msgspec.ValidationError as error:
        raise CaseError(f"{place}: {fields['type']}: {error}") from None
