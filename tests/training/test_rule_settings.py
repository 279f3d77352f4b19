"""Settings of rules: in the script, in trainwatch.toml, wrong ones, and what they mean for the guard."""

from __future__ import annotations

import copy
import pickle
from pathlib import Path
from typing import Any

import pytest

import trainwatch
from tests.training.forked import forked
from tests.training.test_ranks import stopped
from tests.training.tiny import TinyData, make_trainer, of, read_events
from trainwatch import TrainWatchCallback
from trainwatch.events import Policy, RunEnded, RunStarted
from trainwatch.settings import load
from trainwatch.training.rule_settings import collect, policy_for

NAN = float("nan")


def write(folder: Path, text: str, name: str = "trainwatch.toml") -> Path:
    (folder / name).write_text(text)
    return folder / name


def test_code_goes_before_the_file_option_by_option(tmp_path: Path) -> None:
    write(
        tmp_path,
        '[rules.nonfinite_eval_loss]\naction = "checkpoint"\nrepeat = 60\n[rules.process_gone]\nenabled = false',
    )
    rules, problems = collect({"nonfinite_eval_loss": {"action": "halt", "for": 5}}, load({}), tmp_path)
    assert problems == []
    assert rules == {
        "nonfinite_eval_loss": {"action": "halt", "repeat": 60, "for": 5},
        "process_gone": {"enabled": False},
    }


def test_a_file_can_be_named(tmp_path: Path) -> None:
    write(tmp_path, "[rules.process_gone]\nrepeat = 1")
    write(tmp_path, "[rules.process_gone]\nrepeat = 2", "other.toml")
    assert collect({}, load({"TRAINWATCH_CONFIG": "other.toml"}), tmp_path)[0] == {"process_gone": {"repeat": 2}}
    named = load({"TRAINWATCH_CONFIG": str(tmp_path / "other.toml")})
    assert collect({}, named, tmp_path / "elsewhere")[0] == {"process_gone": {"repeat": 2}}
    assert collect({}, load({}), tmp_path / "elsewhere") == ({}, [])


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[rules.process_gone]\nrepaet = 3", "rules.process_gone.repaet is no option (did you mean repeat?)."),
        ("[rules.proces_gone]\nrepeat = 3", "rules.proces_gone is no rule (did you mean process_gone?);"),
        ("[rules.process_gone]\nrepeat = -1", "rules.process_gone: Expected `float` >= 0"),
        ('[rules.process_gone]\nrepeat = "often"', "rules.process_gone: Expected `float`, got `str`"),
        ('[rules.process_gone]\naction = "skip"', 'action = "skip" is not possible for this rule: it takes "notify"'),
        ("[rules]\nprocess_gone = 3", "rules.process_gone: a table of options is wanted"),
        ("rules = 3", "a table of rules is wanted"),
        ("[rule.process_gone]\nrepeat = 1", "rule means nothing (did you mean rules?)"),
        ("[rules.process_gone\n", "is no valid TOML"),
    ],
)
def test_what_is_wrong_is_said_and_the_rest_holds(tmp_path: Path, text: str, said: str) -> None:
    good = '[rules.nonfinite_eval_loss]\naction = "halt"\n'
    path = write(tmp_path, text if text.startswith("rules =") else f"{good}{text}" if "[rules]" not in text else text)
    rules, problems = collect({"training_failed": {"repeat": 7}}, load({}), tmp_path)
    (problem,) = problems
    assert said in problem
    assert problem.startswith(str(path))
    assert rules.pop("training_failed") == {"repeat": 7}
    kept = {"nonfinite_eval_loss": {"action": "halt"}}
    assert rules == (kept if path.read_text().startswith(good) and "TOML" not in said else {})


def test_a_file_that_is_not_there_is_said(tmp_path: Path) -> None:
    rules, (problem,) = collect(None, load({"TRAINWATCH_CONFIG": "nowhere.toml"}), tmp_path)
    assert rules == {}
    assert "nowhere.toml cannot be read (No such file or directory)" in problem


@pytest.mark.parametrize(
    ("given", "loss", "gradient", "policy"),
    [
        (None, None, None, "protect"),
        (None, None, "halt", "halt"),
        (None, "skip", None, "protect"),
        (None, None, "notify", "record"),
        (None, "notify", "skip", "protect"),
        (None, "halt", "notify", "halt"),
        ("record", "halt", "halt", "record"),
        ("halt", None, None, "halt"),
    ],
)
def test_the_guards_policy_comes_from_the_rules_unless_code_says_it(
    given: Policy | None, loss: str | None, gradient: str | None, policy: Policy
) -> None:
    rules = {}
    if loss:
        rules["nonfinite_loss"] = {"action": loss, "repeat": 1}
    if gradient:
        rules["nonfinite_gradient"] = {"action": gradient}
    found, effective = policy_for(given, rules)
    assert found == policy
    if given or loss or gradient:
        action = {"protect": "skip", "halt": "halt", "record": "notify"}[policy]
        assert {rule: options["action"] for rule, options in effective.items()} == {
            "nonfinite_loss": action,
            "nonfinite_gradient": action,
        }
        assert not loss or effective["nonfinite_loss"]["repeat"] == 1
    else:
        assert effective == {}


def test_a_training_records_its_settings_and_goes_on_with_wrong_ones(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.chdir(tmp_path)
    write(tmp_path, '[rules.nonfinite_gradient]\naction = "halt"\n[rules.process_gone]\nrepeat = "x"')
    data = TinyData(16, scales={8: NAN})
    callback = TrainWatchCallback(rules={"nonfinite_eval_loss": {"repeat": 9}})
    trainer = make_trainer(tmp_path / "out", data=data, policy=None, callbacks=[callback])
    trainer.train()
    assert trainer.state.global_step == 5
    (started,) = of(RunStarted, read_events(home))
    assert started.policy == "halt"
    assert started.rules == {
        "nonfinite_eval_loss": {"repeat": 9},
        "nonfinite_gradient": {"action": "halt"},
        "nonfinite_loss": {"action": "halt"},
    }
    assert "rules.process_gone: Expected `float`, got `str`" in caplog.text


def test_watch_adds_settings_to_those_of_a_callback_that_is_there(tmp_path: Path) -> None:
    callback = TrainWatchCallback(rules={"process_gone": {"repeat": 1, "for": 2}})
    trainer = make_trainer(tmp_path / "out", policy=None, callbacks=[callback])
    assert trainwatch.watch(trainer, "halt", {"process_gone": {"repeat": 3}}) is callback
    assert callback.rules == {"process_gone": {"repeat": 3, "for": 2}}
    assert callback.policy == "halt"
    with pytest.raises(ValueError, match="already"):
        trainwatch.watch(trainer, "record")
    for other in (copy.deepcopy(callback), pickle.loads(pickle.dumps(callback))):
        assert (other.policy, other.rules) == (callback.policy, callback.rules)


SCRIPT = """
import math, os, sys, time
from pathlib import Path
os.environ["TRAINWATCH_AGENT"] = "1"
os.environ["TRAINWATCH_SERVER"] = "http://127.0.0.1:9"
os.environ["TRAINWATCH_NODE"] = "node"
from tests.training.tiny import *
from transformers import TrainerCallback
class Slow(TrainerCallback):
    def on_step_end(self, args, state, control, **kwargs):
        time.sleep(0.05)
        # After the evaluation the agent has as much time as it needs on a busy machine; then it goes on as before.
        end = time.monotonic() + 60
        while state.global_step == 22 and time.monotonic() < end:
            controls = Path(os.environ["TRAINWATCH_HOME"]).glob("journal/*/*/control")
            if any(b"halt" in file.read_bytes() for file in controls):
                break
            time.sleep(0.05)
rank = int(os.environ["RANK"])
# Only rank 0's folder has the file: what it says must hold for both.
folder = Path(sys.argv[1]).parent / f"rank{rank}"
folder.mkdir()
os.chdir(folder)
if rank == 0:
    loss = '[rules.nonfinite_loss]\\naction = "notify"\\n'
    Path("trainwatch.toml").write_text(loss + '[rules.nonfinite_eval_loss]\\naction = "halt"')
trainer = make_trainer(
    Path(sys.argv[1]), steps=400, data=TinyData(1600), evaluation=TinyData(4, scales={0: math.nan}), policy=None,
    callbacks=[TrainWatchCallback(), Slow()], eval_strategy="steps", eval_steps=20,
)
trainer.train()
Path(f"{sys.argv[1]}.stopped{rank}").write_text(str(trainer.state.global_step))
os._exit(0)
"""


@pytest.mark.slow
def test_two_ranks_are_halted_by_a_rules_action_at_one_step_without_a_server(home: Path, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    result = forked(script, str(tmp_path / "out"), ranks=2, home=home)
    assert result.returncode == 0, result.stderr
    steps = stopped(tmp_path)
    assert steps[0] == steps[1]
    assert 20 < steps[0] < 100
    ends: list[Any] = []
    for rank in range(2):
        found = read_events(home, rank)
        assert of(RunStarted, found)[0].policy == "record", "one rank's settings hold for all"
        (end,) = of(RunEnded, found)
        ends.append(end)
    assert [(end.outcome, end.step) for end in ends] == [("halted", steps[0])] * 2
    folder = tmp_path / "out" / f"checkpoint-{steps[0]}"
    for end in ends:
        assert end.reason == "nonfinite_eval_loss"
        assert end.parameters["nonfinite"] >= 1
        assert end.parameters["checkpoint"] == str(folder)
    assert (folder / "model.safetensors").is_file()
    assert f"Halted at step {steps[0]}: the eval loss is NaN in" in result.stderr
    assert f"Resume from {folder}" in result.stderr
