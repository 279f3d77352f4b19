"""Commands in a real training: from the control file to a halt or a checkpoint."""

from __future__ import annotations

import math
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import TrainerCallback

from tests.training.tiny import make_trainer, of, read_events
from trainwatch import journal
from trainwatch.events import CheckpointSaved, RunEnded
from trainwatch.shipment import LOCAL, Command, decode_commands, encode_commands, local_id
from trainwatch.training.agreement import Agreement, Flags
from trainwatch.training.control import Control
from trainwatch.training.identity import Identity


def test_a_halt_of_an_earlier_life_is_not_obeyed(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRAINWATCH_RUN_ID", "again")
    monkeypatch.setenv("TRAINWATCH_NODE", "node")
    folder = home / "journal" / "again" / "node"
    folder.mkdir(parents=True)
    journal.write_atomically(
        folder / "control", encode_commands([Command(id=1, run="again", action="halt", reason="old")])
    )
    trainer = make_trainer(tmp_path / "out", steps=4)
    trainer.train()
    assert trainer.state.global_step == 4


class Order(TrainerCallback):
    """Writes a command to the control file, as the agent does."""

    def __init__(self, home: Path, action: Any) -> None:
        self.home, self.action = home, action

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.global_step == 2:
            folder = next((self.home / "journal").glob("*/*/"))
            commands = [Command(id=1, run="x", action=self.action, reason="enough")]
            journal.write_atomically(folder / "control", encode_commands(commands))
        time.sleep(0.05)


def test_a_halt_by_command_stops_with_a_checkpoint(home: Path, tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path / "out", steps=60, callbacks=[Order(home, "halt")])
    trainer.train()
    step = trainer.state.global_step
    assert 2 < step < 20
    end = read_events(home)[-1]
    assert isinstance(end, RunEnded)
    assert (end.outcome, end.reason, end.parameters["reason"]) == ("halted", "command", "enough")
    assert (tmp_path / "out" / f"checkpoint-{step}").is_dir()


def test_a_checkpoint_by_command_is_one_checkpoint(home: Path, tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path / "out", steps=15, callbacks=[Order(home, "checkpoint")])
    trainer.train()
    assert trainer.state.global_step == 15
    assert [event.reason for event in of(CheckpointSaved, read_events(home))] == ["command"]


def test_a_halt_goes_before_a_later_checkpoint(tmp_path: Path) -> None:
    control = Control(tmp_path)
    commands = [Command(id=1, run="x", action="halt"), Command(id=2, run="x", action="checkpoint")]
    journal.write_atomically(tmp_path / "control", encode_commands(commands))
    assert Control.is_halt(control.next(1.0))


def write(folder: Path, *commands: Command) -> None:
    journal.write_atomically(folder / "control", encode_commands(list(commands)))


def command(number: int, action: Any = "checkpoint", **changes: Any) -> Command:
    return Command(id=number, run="x", action=action, **changes)


def test_what_a_rule_on_this_machine_orders_is_obeyed_whatever_the_server_ordered_before_or_after(
    tmp_path: Path,
) -> None:
    control = Control(tmp_path)
    local = local_id("a finding")
    assert local >= LOCAL
    obeyed = []
    for moment, commands in enumerate([[command(7)], [command(7), command(local)], [command(8), command(local)]], 1):
        write(tmp_path, *commands)
        while number := control.next(float(moment)):
            assert control.obey(number)
            assert not control.obey(number)
            obeyed.append(number >> 1)
    assert obeyed == [7, local, 8]


def test_a_command_that_another_rank_had_first_is_not_obeyed_again(tmp_path: Path) -> None:
    control = Control(tmp_path)
    assert control.obey(command(7).id * 2)
    write(tmp_path, command(7))
    assert control.next(1.0) == 0


def test_a_number_survives_the_exchange_between_ranks() -> None:
    numbers = [local_id(part) * 2 + 1 for part in range(1000)]
    assert [int(float(number)) for number in numbers] == numbers
    assert len(set(numbers)) == 1000


def test_a_rules_command_for_an_earlier_life_is_ignored_whenever_it_is_written(tmp_path: Path) -> None:
    control = Control(tmp_path, since=100.0)
    write(tmp_path, command(LOCAL + 1, "halt", time=99.0))
    assert control.next(1.0) == 0
    write(tmp_path, command(LOCAL + 1, "halt", time=99.0), command(LOCAL + 2, "halt", time=101.0))
    assert control.next(2.0) >> 1 == LOCAL + 2


def test_evidence_that_is_not_finite_stays_what_it_is(tmp_path: Path) -> None:
    (read,) = decode_commands(encode_commands([command(1, parameters={"a": math.nan, "b": math.inf})]))
    assert math.isnan(read.parameters["a"])
    assert read.parameters["b"] == math.inf
    assert decode_commands(b'[{"id": 1}]') == []  # what an older version wrote


class Find(TrainerCallback):
    """Writes the command of a rule's finding, as the agent does."""

    def __init__(self, home: Path) -> None:
        self.home = home

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.global_step == 2:
            folder = next((self.home / "journal").glob("*/*/"))
            found = {"value": "NaN", "nonfinite": 7, "batches": 10, "since": 2}
            write(
                folder,
                command(
                    LOCAL + 5, "halt", rule="nonfinite_eval_loss", parameters=found, rank=0, step=2, time=time.time()
                ),
            )
        time.sleep(0.05)


def test_a_halt_by_a_rule_names_it_with_its_evidence_and_the_checkpoint(
    home: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    trainer = make_trainer(tmp_path / "out", steps=60, callbacks=[Find(home)])
    trainer.train()
    step = trainer.state.global_step
    assert 2 < step < 8
    found = read_events(home)
    end = found[-1]
    assert isinstance(end, RunEnded)
    assert (end.outcome, end.reason, end.step) == ("halted", "nonfinite_eval_loss", step)
    assert end.parameters["nonfinite"] == 7
    folder = str(tmp_path / "out" / f"checkpoint-{step}")
    assert end.parameters["checkpoint"] == folder
    assert [(event.step, event.reason) for event in of(CheckpointSaved, found)] == [(step, "halt")]
    assert f"Halted at step {step}: the eval loss is NaN in 7 of 10 batches since step 2 on rank 0." in caplog.text
    assert f"Resume from {folder}." in caplog.text


def test_a_halt_whose_words_cannot_be_read_is_obeyed_as_on_the_other_ranks(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(control: Control, number: int) -> Command | None:
        raise OSError("stale file handle")

    monkeypatch.setattr(Control, "find", fail)
    trainer = make_trainer(tmp_path / "out", steps=60, callbacks=[Order(home, "halt")])
    trainer.train()
    assert 2 < trainer.state.global_step < 20
    assert read_events(home)[-1].outcome == "halted"  # type: ignore[union-attr]


def test_a_rank_alone_agrees_with_itself() -> None:
    assert Agreement(torch.nn.Linear(1, 1)).agree(Flags(commands=(3,))).commands == (3,)


def test_what_only_wants_to_be_said_is_a_line_in_the_log_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    def word(number: int, moment: float) -> Command:
        evidence = {"value": 80.0, "best": 1.0, "rise": 79.0, "since": 122, "values": 20}
        return Command(
            id=LOCAL | number,
            run="x",
            action="say",
            rule="divergence",
            parameters=evidence,
            rank=0,
            step=140,
            time=moment,
        )

    first = Identity(run="x", node="node", rank=0, local_rank=0, world_size=1)
    control, silent = Control(tmp_path, 100.0, first), Control(tmp_path, 100.0, None)
    journal.write_atomically(tmp_path / "control", encode_commands([word(1, 200.0), word(2, 50.0)]))
    for moment in (1.0, 2.0):
        assert control.next(moment) == silent.next(moment) == 0
        journal.write_atomically(tmp_path / "control", encode_commands([word(1, 200.0), word(2, 50.0)]))
    assert [record.message for record in caplog.records] == [
        "TrainWatch: The loss is 80 at step 140 and has been rising away from its best level, 1, since step 122 (80"
        " times that). If it stays there, go back to a checkpoint from before, with a lower learning rate."
    ]
