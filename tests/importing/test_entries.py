"""Trainer states, LLaMA-Factory's log, JSON lines and plain tables: one logged entry, one point."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from trainwatch.events import AnyEvent, Evaluated, Logged, RunEnded, RunStarted
from trainwatch.importing import ImportedRun, OtherFileError, UnreadableError, read

Write = Callable[..., Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def make(name: str, content: str | bytes) -> Path:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        return path

    return make


def events(run: ImportedRun) -> list[tuple[int, AnyEvent]]:
    return [(point, event) for point, _, event in run.events()]


def of(run: ImportedRun, kind: type[Any]) -> list[Any]:
    return [event for _, event in events(run) if isinstance(event, kind)]


STATE = """{"epoch": 1.0, "global_step": 30, "max_steps": 30, "num_train_epochs": 1, "log_history": [
  {"epoch": 0.1, "grad_norm": NaN, "learning_rate": 0.0002, "loss": 4.5, "step": 10},
  {"epoch": 0.5, "eval_loss": Infinity, "eval_accuracy": 0.5, "eval_runtime": 2.0, "step": 20},
  {"epoch": 0.6, "loss": 0.0, "grad_norm": -Infinity, "rewards/chosen": 1.5, "step": 20},
  {"epoch": 1.0, "step": 30, "train_loss": 2.2, "train_runtime": 60.0, "total_flos": 1e15}]}"""


def test_a_trainer_state_with_bare_nan_and_infinity(write: Write) -> None:
    run = read(write("llama/checkpoint-30/trainer_state.json", STATE))
    assert (run.name, run.points, run.clock) == ("llama", 4, "made up")
    assert "one second a logged entry" in run.notes[0]
    found = events(run)
    assert [point for point, _ in found] == [0, 0, 1, 2, 3, 3]
    started, first, evaluated, third, summary, ended = (event for _, event in found)
    assert isinstance(started, RunStarted)
    assert started.max_steps == 30
    assert started.arguments == {"num_train_epochs": 1}
    assert started.environment["imported"]["clock"] == "made up"
    assert isinstance(first, Logged)
    assert math.isnan(first.values.pop("train/grad_norm"))
    assert first.values == {"train/loss_logged": 4.5, "train/learning_rate": 0.0002, "train/epoch": 0.1}
    assert first.step == 10
    assert isinstance(evaluated, Evaluated)
    assert evaluated.values["eval/loss_reported"] == math.inf
    assert evaluated.values["eval/accuracy"] == 0.5
    assert isinstance(third, Logged)
    assert third.values["train/grad_norm"] == -math.inf
    assert third.values["train/rewards/chosen"] == 1.5
    assert isinstance(summary, Logged)
    assert summary.values["train/loss_average"] == 2.2
    assert isinstance(ended, RunEnded)
    assert ended.outcome == "finished"
    times = [event.time for _, event in found]
    assert times == sorted(times)


def test_a_run_that_was_interrupted_has_no_end(write: Write) -> None:
    state = {"global_step": 10, "max_steps": 30, "log_history": [{"loss": 1.0, "step": 10}]}
    assert of(read(write("trainer_state.json", json.dumps(state))), RunEnded) == []


def test_a_resumed_run_may_repeat_steps(write: Write) -> None:
    history = [{"loss": float(step), "step": step} for step in (10, 20, 30, 20, 30)]
    run = read(write("a.json", json.dumps({"log_history": history})))
    assert [event.step for event in of(run, Logged)] == [10, 20, 30, 20, 30]
    assert [point for point, event in events(run) if isinstance(event, Logged)] == [0, 1, 2, 3, 4]


def test_an_entry_with_both_is_both_at_one_point(write: Write) -> None:
    run = read(write("a.json", json.dumps({"log_history": [{"loss": 1.0, "eval_loss": 2.0, "step": 5}]})))
    assert [(point, type(event)) for point, event in events(run)][1:] == [(0, Logged), (0, Evaluated)]


def test_times_are_taken_where_they_are_given(write: Write) -> None:
    history = [{"loss": 1.0, "_timestamp": 1000.5}, {"loss": 2.0}, {"loss": 3.0, "_timestamp": 1010.0}]
    run = read(write("a.json", json.dumps({"log_history": history})))
    assert (run.clock, run.started, run.notes) == ("file", 1000.5, [])
    assert [event.time for event in of(run, Logged)] == [1000.5, 1000.5, 1010.0]


def test_odd_entries_are_counted_and_keep_their_place(write: Write) -> None:
    history: list[Any] = ["text", {"step": 1}, {"loss": "0.5", "step": 2}, {"loss": None, "note": "x"}, {"loss": True}]
    run = read(write("a.json", json.dumps({"log_history": history})))
    assert [(point, event.values) for point, event in events(run) if isinstance(event, Logged)] == [
        (2, {"train/loss_logged": 0.5})
    ]
    assert run.skipped == {"entries that are no table of values": 1, "entries without a number": 3}
    list(run.events())
    assert sum(run.skipped.values()) == 4, "reading again does not count again"


def test_llamafactory(write: Write) -> None:
    lines = [
        {"current_steps": 10, "total_steps": 30, "loss": 1.5, "lr": 1e-5, "epoch": 0.1, "elapsed_time": "0:01:03"},
        {"current_steps": 20, "total_steps": 30, "eval_loss": 1.2, "elapsed_time": "1 day, 0:00:03", "percentage": 66},
        {"current_steps": 30, "total_steps": 30, "loss": 1.1, "elapsed_time": "0:00:10", "remaining_time": "0:00:00"},
    ]
    run = read(write("trainer_log.jsonl", "\n".join(map(json.dumps, lines))))
    assert (run.format, run.clock) == ("LLaMA-Factory trainer_log.jsonl", "relative")
    started, first, second, third, ended = (event for _, event in events(run))
    assert isinstance(started, RunStarted)
    assert started.max_steps == 30
    assert isinstance(first, Logged)
    assert first.values == {"train/loss_logged": 1.5, "train/learning_rate": 1e-5, "train/epoch": 0.1}
    assert (first.step, first.time) == (10, 63.0)
    assert isinstance(second, Evaluated)
    assert second.values == {"eval/loss_reported": 1.2}
    assert second.time == 86403.0
    assert third.time == 86413.0, "a resumed run's watch begins anew"
    assert isinstance(ended, RunEnded)


def test_a_last_line_cut_off_is_counted_and_the_rest_is_read(write: Write) -> None:
    text = '{"current_steps": 1, "loss": 1.0}\nrubbish\n{"current_steps": 2, "loss": 2.0}\n{"current_steps": 3, "lo'
    run = read(write("trainer_log.jsonl", text))
    assert len(of(run, Logged)) == 2
    assert run.skipped == {"last line cut off": 1, "lines that are no JSON": 1}


@pytest.mark.parametrize("cut", [200, 300, len(STATE) - 1])
def test_of_a_state_that_is_cut_off_the_whole_entries_are_read(write: Write, cut: int) -> None:
    run = read(write("trainer_state.json", STATE[:cut]))
    whole = STATE[:cut].count("}") - (STATE[:cut].count("}") == 5)
    assert run.points == whole > 0
    assert run.skipped["end of the file cut off"] == 1


def test_json_lines_of_entries(write: Write) -> None:
    run = read(write("log.jsonl", '{"step": 1, "loss": 2.0}\n{"step": 2, "loss": NaN}\n'))
    assert run.format == "JSON lines"
    assert math.isnan(of(run, Logged)[1].values["train/loss_logged"])


def test_a_table(write: Write) -> None:
    text = "t_seconds,_step,train/global_step,train/loss,val_loss\n-1.5,0,5,2.0,\n3,1,10,nan,1.5\n4,2,15,x,\n5,3\n"
    run = read(write("mine.csv", text))
    assert (run.name, run.clock, run.started) == ("mine", "relative", -1.5)
    logged = of(run, Logged)
    assert [event.step for event in logged] == [5, 10]
    assert math.isnan(logged[1].values["train/loss_logged"])
    assert [event.values for event in of(run, Evaluated)] == [{"eval/loss_reported": 1.5}]
    assert run.skipped["values of train/loss that are no number"] == 1
    assert run.skipped["last line cut off"] == 1


def test_tensorboards_own_csv_and_dates(write: Write) -> None:
    run = read(write("a.csv", "Wall time,Step,loss\n1700000000.5,10,1.0\n1700000002.5,20,2.0\n"))
    assert (run.clock, run.started) == ("file", 1700000000.5)
    run = read(write("b.tsv", "time\tstep\tloss\n2024-03-01 00:00:00\t1\t1.0\n2024-03-01 00:00:10.5\t2\t1.0\n"))
    assert [event.time - run.started for event in of(run, Logged)] == [0.0, 10.5]


@pytest.mark.parametrize(
    ("name", "content", "sentence"),
    [
        ("empty.json", "", "is empty"),
        ("blank.csv", " \n\n", "is empty"),
        ("cut.json", STATE[:130], "no whole JSON (Unterminated"),
        ("text.json", "hello", "no JSON, although it is called so"),
        ("other.json", '{"model_type": "llama"}', 'no list "log_history"'),
        ("none.json", '{"log_history": []}', "its log_history is empty"),
        ("number.json", "[1, 2, 3]", "no entry in it holds a loss"),
        ("words.jsonl", '{"text": "a"}\n{"text": "b"}', "hold no loss and no step"),
        ("rubbish.jsonl", "{\nx\n", "no whole JSON"),
        ("nested.json", "[" * 100_000, "JSON"),
        ("people.csv", "name,age\nann,3\n", "names no step"),
        ("numbers.csv", "1,2\n3,4\n", "names no step"),
        ("binary.json", b"\x00\x01\x02\xff", "none of the formats known here"),
        ("events.out.tfevents.1.host", b"garbage in here", "its first record is damaged"),
        ("run.wandb", b":W&B\xe1\xbe\x00" + b"\x01" * 50, "not one record in it is whole"),
        ("trace.csv", "t_seconds,series,value,unit\n0,disk.usage_percent,3,percent\n", "none of its series is known"),
        ("smi.csv", "2024/01/01 00:00:00.000, NVIDIA A100, 3 MiB\n", "Write it with a header"),
    ],
)
def test_what_cannot_be_read_gets_a_sentence(write: Write, name: str, content: str | bytes, sentence: str) -> None:
    with pytest.raises(UnreadableError) as caught:
        read(write(name, content))
    assert sentence in str(caught.value)
    assert name in str(caught.value), "it says which file"


def test_a_folder_or_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(UnreadableError, match="is a folder"):
        read(tmp_path)
    with pytest.raises(UnreadableError, match="No such file"):
        read(tmp_path / "nothing.json")


def test_what_is_whole_but_no_log_is_told_apart(write: Write) -> None:
    with pytest.raises(OtherFileError):
        read(write("config.json", '{"hidden_size": 8}'))
    with pytest.raises(UnreadableError) as caught:
        read(write("cut.json", STATE[:100]))
    assert not isinstance(caught.value, OtherFileError)
