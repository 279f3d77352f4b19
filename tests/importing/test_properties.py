"""Whatever the bytes: a run, or a sentence. Never a traceback."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.importing import encoding
from trainwatch import events
from trainwatch.importing import UnreadableError, read
from trainwatch.rules import RULES
from trainwatch.rules.replay import replay

STATE = json.dumps({"global_step": 3, "log_history": [{"loss": 1.0, "step": n, "_timestamp": n} for n in range(3)]})
LINES = '{"current_steps": 1, "total_steps": 3, "loss": 1.5, "elapsed_time": "0:00:03"}\n' * 3
TRACE = "t_seconds,series,value,unit\n0.0,gpu.0.memory_allocated_bytes,5,bytes\n0.0,host.available,3,MB\n"
SMI = "timestamp, index, memory.used [MiB]\n2024/03/01 10:00:00.000, 0, 100 MiB\n"
TABLE = "step,time,loss,eval_loss\n1,5,2.0,\n2,6,,3.0\n"
WHOLE: list[tuple[str, bytes]] = [
    ("trainer_state.json", STATE.encode()),
    ("trainer_log.jsonl", LINES.encode()),
    ("trace.csv", TRACE.encode()),
    ("smi.csv", SMI.encode()),
    ("table.csv", TABLE.encode()),
    (
        "run.wandb",
        encoding.wandb_file(
            encoding.run("r", "p"),
            encoding.history({"train/loss": 1.0, "_timestamp": 1.0}),
            encoding.stats(1.5, {"gpu.0.memoryAllocatedBytes": 5}),
        ),
    ),
    ("events.out.tfevents.1", encoding.event_file(encoding.event(1.0, 1, encoding.scalar("train/loss", 1.0)))),
]
JUNK = st.binary(min_size=0, max_size=12)


def read_all(name: str, content: bytes) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, name)
        path.write_bytes(content)
        try:
            run = read(path)
        except UnreadableError:
            return
        found = list(run.events())
        assert found
        points = [point for point, _, _ in found]
        assert points == sorted(points)
        assert points[0] >= 0
        assert points[-1] < run.points
        for _, _, event in found:
            events.decode(events.encode(event))
        replay(found, RULES)


@pytest.mark.parametrize(("name", "whole"), WHOLE, ids=[name for name, _ in WHOLE])
@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_damaged_files(name: str, whole: bytes, data: st.DataObject) -> None:
    content = bytearray(whole)
    for _ in range(data.draw(st.integers(0, 4))):
        at = data.draw(st.integers(0, len(content)))
        until = min(len(content), at + data.draw(st.integers(0, 8)))
        content[at:until] = data.draw(JUNK)
    read_all(name, bytes(content))


@settings(max_examples=150, deadline=None)
@given(name=st.sampled_from([name for name, _ in WHOLE] + ["x", "x.json", "x.bin"]), content=st.binary(max_size=200))
def test_anything(name: str, content: bytes) -> None:
    read_all(name, content)


VALUES: Any = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | st.just("NaN") | st.just(10**400),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=5,
)
TIMES = st.sampled_from(["_timestamp", "elapsed_time", "train_runtime"])
STEPS = st.sampled_from(["step", "global_step", "current_steps", "total_steps", "_step"])
METRICS = st.sampled_from(["loss", "eval_loss", "grad_norm", "learning_rate", "epoch", "train_loss", "train/loss", "x"])
KEYS = METRICS | STEPS | TIMES
ENTRIES = st.lists(st.dictionaries(KEYS, VALUES, max_size=6) | VALUES, max_size=8)


@settings(max_examples=300, deadline=None)
@given(entries=ENTRIES, steps=VALUES, as_lines=st.booleans())
def test_any_entries(entries: list[Any], steps: Any, as_lines: bool) -> None:
    if as_lines:
        read_all("log.jsonl", "\n".join(map(json.dumps, entries)).encode())
    else:
        state = {"log_history": entries, "max_steps": steps, "global_step": steps, "num_train_epochs": steps}
        read_all("state.json", json.dumps(state).encode())


NUMBERS = st.floats().map(str) | st.integers(-5, 5).map(str) | st.sampled_from(["", "x", "1e400", "5 MiB", "[N/A]"])


@settings(max_examples=200, deadline=None)
@given(
    header=st.sampled_from(
        [
            "t_seconds,series,value,unit",
            "timestamp, index, memory.used [MiB]",
            "step,loss,eval_loss",
            "time\tstep\tloss",
        ]
    ),
    rows=st.lists(
        st.lists(
            NUMBERS
            | st.sampled_from(["gpu.0.memory_allocated_pct", "proc.rss", "host.memory_percent", "host.available"])
            | st.sampled_from(["2024/03/01 10:00:00.000", "2024/13/99 99:99:99", "percent", "MB"]),
            max_size=5,
        ),
        max_size=8,
    ),
)
def test_any_table(header: str, rows: list[list[str]]) -> None:
    mark = "\t" if "\t" in header else ","
    read_all("table.csv", "\n".join([header, *(mark.join(row) for row in rows)]).encode())
