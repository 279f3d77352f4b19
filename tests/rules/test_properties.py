"""What holds for every rule and every series: none raises, and how the points came makes no difference."""

from __future__ import annotations

import itertools
import math
import random
import tracemalloc
from collections.abc import Iterable
from typing import Any, Final

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trainwatch.events import AnyEvent, Evaluated, FindingRaised, Logged, Sampled, StepEnded
from trainwatch.rules import RULES, Engine
from trainwatch.rules.wording import sentence

Seen = tuple[AnyEvent, int | None]

STEP_METRICS: Final = (
    "train/loss",
    "train/grad_norm",
    "train/learning_rate",
    "train/loss_scale",
    "train/step_seconds",
    "train/data_seconds",
    "train/compute_seconds",
    "train/tokens",
    "train/padded_tokens",
    "train/padding_share",
    "train/tokens_per_second",
)
DEVICE_METRICS: Final = (
    "memory/allocated",
    "memory/reserved",
    "memory/peak",
    "memory/peak_reserved",
    "memory/device_used",
    "memory/capacity",
    "memory/alloc_retries",
)
LOG_METRICS: Final = ("train/loss_logged", "train/grad_norm", "train/learning_rate", "train/epoch")
EVAL_METRICS: Final = ("eval/loss", "eval/loss_reported", "eval/batches", "eval/nonfinite_batches")

# Any float at all, and often the ones that matter.
numbers = st.one_of(
    st.floats(),
    st.sampled_from([0.0, -0.0, 1.0, 2.0, 1e-12, 1e308, -1e308, 5e-324, math.nan, math.inf, -math.inf]),
    st.floats(0.1, 10.0),
)
times = st.one_of(st.floats(0, 2e9), st.just(0.0))
step_numbers = st.one_of(st.integers(0, 300), st.sampled_from([0, 1, 2**40]))
ranks = st.sampled_from([None, 0, 0, 0, 1, 7])


def table(names: tuple[str, ...]) -> st.SearchStrategy[dict[str, float]]:
    return st.dictionaries(st.sampled_from(names), numbers, max_size=6)


def devices() -> st.SearchStrategy[dict[str, dict[str, float]]]:
    return st.dictionaries(st.sampled_from(["cuda:0", "cuda:1", "cpu", "host"]), table(DEVICE_METRICS), max_size=2)


any_event: st.SearchStrategy[AnyEvent] = st.one_of(
    st.builds(StepEnded, time=times, step=step_numbers, values=table(STEP_METRICS), devices=devices()),
    st.builds(Logged, time=times, step=step_numbers, values=table(LOG_METRICS)),
    st.builds(Evaluated, time=times, step=step_numbers, values=table(EVAL_METRICS)),
    st.builds(Sampled, time=times, devices=devices(), rank=ranks, step=st.none() | step_numbers),
)

# Long and mostly regular, so that windows fill; with a value here and there that is anything.
level = st.sampled_from([0.0, 1e-6, 0.02, 1.0, 40.0, 1e9, -3.0])


@st.composite
def curve(draw: st.DrawFn) -> list[Seen]:
    """A run with a curve that changes its level now and then, and odd values in between."""
    live = draw(st.booleans())
    first = draw(st.integers(0, 50))
    seen: list[Seen] = []
    step, now = first, 1e9
    for _ in range(draw(st.integers(1, 5))):
        base, noise = draw(level), draw(st.sampled_from([0.0, 0.01, 0.5]))
        shape = random.Random(draw(st.integers(0, 1000)))
        odd = draw(st.dictionaries(st.integers(0, 59), numbers, max_size=3))
        for place in range(draw(st.integers(1, 60))):
            step += 1
            now += 1.0
            loss = odd.get(place, base * (1 + noise * shape.gauss(0, 1)))
            norm = odd.get(place + 1, abs(base) + noise)
            if live:
                values = {"train/loss": loss, "train/grad_norm": norm, "train/learning_rate": 1e-4}
                seen.append((StepEnded(time=now, step=step, values=values), 0))
            else:
                seen.append(
                    (Logged(time=now, step=step, values={"train/loss_logged": loss, "train/grad_norm": norm}), 0)
                )
            if place % 20 == 19:
                seen.append((Evaluated(time=now, step=step, values={"eval/loss_reported": loss}), 0))
        step -= draw(st.sampled_from([0, 0, 0, 10, step]))
        now -= draw(st.sampled_from([0.0, 0.0, 3600.0]))
    return seen


any_run: st.SearchStrategy[list[Seen]] = st.one_of(st.lists(st.tuples(any_event, ranks), max_size=60), curve())


def found(events: Iterable[Seen], engine: Engine | None = None) -> list[FindingRaised]:
    engine = engine or Engine(RULES)
    return [finding for event, rank in events for finding in engine.observe(event, rank)]


def alike(findings: list[FindingRaised]) -> list[str]:
    """Findings as text: NaN is not equal to itself, and is a legal value of evidence."""
    return [repr(finding) for finding in findings]


@settings(max_examples=150, deadline=None)
@given(any_run)
def test_no_rule_raises_and_every_finding_can_be_said(events: list[Seen]) -> None:
    for finding in found(events):
        for language in ("en", "zh"):
            text = sentence(finding.rule, finding.parameters, language=language, step=finding.step, rank=finding.rank)
            # Where a sentence could not be made, the rule's name stands for it.
            assert finding.state == "resolved" or text != finding.rule.replace("_", " "), (finding, text)


@settings(max_examples=60, deadline=None)
@given(any_run)
def test_the_same_input_gives_the_same_findings(events: list[Seen]) -> None:
    assert alike(found(events)) == alike(found(events))


@settings(max_examples=60, deadline=None)
@given(any_run, st.lists(st.integers(0, 300), max_size=5))
def test_findings_do_not_depend_on_how_points_were_batched(events: list[Seen], cuts: list[int]) -> None:
    engine = Engine(RULES)
    pieces = []
    edges = sorted({0, len(events), *(min(cut, len(events)) for cut in cuts)})
    for begin, end in itertools.pairwise(edges):
        # An agent ships and reads in batches, and other runs' engines work in between.
        pieces += found(events[begin:end], engine)
        found(events[: min(end, 5)])
    assert alike(pieces) == alike(found(events))


@settings(max_examples=30, deadline=None)
@given(curve())
def test_a_rule_finds_alone_what_it_finds_among_the_others(events: list[Seen]) -> None:
    together = found(events)
    for rule in RULES:
        alone = found(events, Engine((rule,)))
        assert alike(alone) == alike([finding for finding in together if finding.rule == rule.id])


@settings(max_examples=60, deadline=None)
@given(any_run)
def test_only_what_was_found_is_resolved(events: list[Seen]) -> None:
    open_ones: set[tuple[Any, ...]] = set()
    for finding in found(events):
        name = (finding.rule, finding.rank, finding.key)
        if finding.state == "resolved":
            assert name in open_ones
            open_ones.discard(name)
        else:
            open_ones.add(name)


def test_one_point_is_enough_for_nothing_but_what_it_shows() -> None:
    assert not found([(StepEnded(time=1.0, step=1, values={"train/loss": 2.0, "train/grad_norm": 1.0}), 0)])
    (finding,) = found([(Logged(time=1.0, step=1, values={"train/loss_logged": math.nan}), 0)])
    assert finding.rule == "nonfinite_loss"


@pytest.mark.slow
def test_a_million_points_take_bounded_memory() -> None:
    numbers = random.Random(4)
    engine = Engine(RULES)
    steps = 50_000  # of 20 points each

    def step(number: int) -> StepEnded:
        noise = numbers.random()
        values = dict.fromkeys(STEP_METRICS, 1.0 + noise)
        values["train/padding_share"] = noise / 4
        memory = {"memory/allocated": 1e9, "memory/peak": 2e9 + 1e6 * noise, "memory/capacity": 8e9}
        return StepEnded(
            time=1e9 + number, step=number, values=values, devices={"cuda:0": {**memory, "memory/reserved": 3e9}}
        )

    for number in range(2_000):
        engine.observe(step(number), 0)
    tracemalloc.start()
    before, _ = tracemalloc.get_traced_memory()
    for number in range(2_000, 4_000):
        engine.observe(step(number), 0)
    after, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert after - before < 200_000
    for number in range(4_000, steps):
        engine.observe(step(number), 0)
    tracemalloc.start()
    before, _ = tracemalloc.get_traced_memory()
    for number in range(steps, steps + 2_000):
        engine.observe(step(number), 0)
    after, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert after - before < 200_000
