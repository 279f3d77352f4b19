"""The forecast's rules take any series: none raises, and the same events give the same findings."""

from __future__ import annotations

from typing import Any, Final

from hypothesis import given, settings
from hypothesis import strategies as st

from trainwatch.events import AnyEvent, PhaseEntered, RunStarted, Sampled, StepEnded
from trainwatch.rules import Engine
from trainwatch.rules.memory_verdict import MemoryVerdict
from trainwatch.rules.peak_forecast import PeakForecast
from trainwatch.rules.phase_forecast import EvalAccumulation, PhaseForecast
from trainwatch.rules.wording import sentence

RULES: Final = (PeakForecast, PhaseForecast, EvalAccumulation, MemoryVerdict)
SETTINGS: Final = {"memory_verdict": {"first": 3, "every": 2}, "eval_accumulation": {"readings": 3}}

number = st.floats() | st.floats(min_value=0, max_value=1e12) | st.sampled_from([0.0, 1.0, 2.0, 512.0, 8e10])
time = st.floats(min_value=0, max_value=1e9) | st.floats()
step = st.integers(-3, 10**6) | st.integers(0, 60)
VALUES: Final = ["batch_length", "padded_tokens", "samples", "tokens", "micro_batches", "epoch"]
METRICS: Final = [
    *("peak", "allocated", "resident", "reserved", "peak_reserved", "inactive_split", "capacity"),
    *("device_used", "process_used", "others_used", "outside"),
]
values = st.dictionaries(st.sampled_from([f"train/{name}" for name in VALUES]), number)
devices = st.dictionaries(
    st.sampled_from(["cuda:0", "cpu", "host"]),
    st.dictionaries(st.sampled_from([f"memory/{name}" for name in METRICS]), number, max_size=6),
    max_size=2,
)
phase = st.sampled_from(["load", "train", "eval", "save", "idle"])
junk = st.none() | st.integers() | st.floats() | st.text(max_size=4) | st.lists(st.integers(), max_size=3)
arguments = st.dictionaries(
    st.sampled_from(["eval_strategy", "save_strategy", "eval_steps", "save_steps", "optim"]), junk
)
model = st.dictionaries(st.sampled_from(["parameters", "trainable_parameters", "dtypes", "devices"]), junk)
lengths = st.fixed_dictionaries({"max": number, "mean": number, "p99": number})
event = st.one_of(
    st.builds(StepEnded, time=time, step=step, values=values, devices=devices),
    st.builds(Sampled, time=time, devices=devices, rank=st.just(0), phase=st.none() | phase),
    st.builds(PhaseEntered, time=time, step=step, phase=phase, left=st.none() | phase, peak=devices, seconds=number),
    st.builds(
        RunStarted,
        time=time,
        name=st.just("any"),
        max_steps=st.integers(0, 100),
        arguments=arguments,
        model=model,
        dataset=st.fixed_dictionaries(
            {"train": st.fixed_dictionaries({"lengths": lengths, "complete": st.booleans()})}
        ),
    ),
)


def judged(series: list[AnyEvent]) -> list[Any]:
    engine = Engine(RULES, SETTINGS)
    return [found for each in series for found in engine.observe(each, 0)]


@settings(max_examples=150, deadline=None)
@given(st.lists(event, max_size=40))
def test_no_series_makes_a_rule_fail(series: list[AnyEvent]) -> None:
    found = judged(series)
    for report in found:
        for language in ("en", "zh"):
            assert sentence(report.rule, report.parameters, step=report.step, rank=0, language=language)
    assert repr(judged(series)) == repr(found)


def test_a_million_steps_leave_a_small_state() -> None:
    import pickle

    engine = Engine(RULES)
    engine.observe(RunStarted(time=0.0, name="long"), 0)

    def goes_on(first: int, last: int) -> None:
        for number in range(first, last):
            length = 100.0 + number * 37 % 900
            batch = {"train/batch_length": length, "train/padded_tokens": 2 * length, "train/samples": 2.0}
            memory = {"cuda:0": {"memory/peak": 1e9 + 1e6 * length, "memory/allocated": 9e8}}
            engine.observe(StepEnded(time=float(number), step=number, values=batch, devices=memory), 0)

    goes_on(1, 20_000)
    before = len(pickle.dumps([rule.__dict__ for rule in engine._rules]))
    goes_on(20_000, 40_000)
    after = len(pickle.dumps([rule.__dict__ for rule in engine._rules]))
    assert after < before + 4000
    assert after < 40_000
