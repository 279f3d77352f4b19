"""What a training brings into its process: a few words of the rules, and none that judges, forecasts or draws."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

import trainwatch.rules

RULE_FILES: Final = {
    path.stem for path in Path(trainwatch.rules.__file__).parent.glob("*.py") if path.stem != "__init__"
}
NEEDED: Final = {"autopsy", "base", "halting", "nonfinite", "settings"}
"""What the guard and the sentences in the log are made of; each of these takes no more than a millisecond."""

_TRAIN: Final = """
import sys, tempfile
from pathlib import Path
from tests.training.tiny import TinyData, make_trainer

def train():
    with tempfile.TemporaryDirectory() as folder:
        # A NaN, because what is said of one must be there without the rules too.
        data = TinyData(12, kinks=[5])
        make_trainer(Path(folder), steps=6, data=data).train()
    print("loaded:", *sorted(name for name in sys.modules if name.partition(".")[0] == "trainwatch"))

train()
import trainwatch; from trainwatch.training.rule_settings import collect
from trainwatch.settings import load
assert collect({'loss_spike': {'action': 'halt'}}, load(), Path('/'))[0]
train()
"""


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> list[set[str]]:
    """The modules of a process after a training, and after another one with settings of rules."""
    environment = {**os.environ, "TRAINWATCH_AGENT": "0", "TRAINWATCH_HOME": str(tmp_path_factory.mktemp("home"))}
    done = subprocess.run(
        [sys.executable, "-c", _TRAIN], capture_output=True, text=True, timeout=300, check=True, env=environment
    )
    return [set(line.split()[1:]) for line in done.stdout.splitlines() if line.startswith("loaded:")]


def test_a_training_imports_no_rule_that_it_does_not_need(loaded: list[set[str]]) -> None:
    assert "trainwatch.training.watcher" in loaded[0]
    parts = {name.split(".")[1] for name in loaded[0] if "." in name}
    assert not parts & {"agent", "charts", "cli", "demo", "forecast", "importing", "server"}
    rules = {name.split(".")[2] for name in loaded[0] if name.startswith("trainwatch.rules.")}
    assert rules & RULE_FILES <= NEEDED


def test_a_training_with_settings_of_rules_checks_them_against_all_rules(loaded: list[set[str]]) -> None:
    """The rules are there for whoever sets one: a module that is never found would pass the test above too."""
    assert {"trainwatch.rules.registry", "trainwatch.rules.loss_spike"} <= loaded[1]
    assert "trainwatch.rules.loss_spike" not in loaded[0]


def test_the_public_names_of_the_rules_are_found_when_asked_for() -> None:
    for name in trainwatch.rules.__all__:
        home = importlib.import_module(trainwatch.rules._HOMES[name])
        assert getattr(trainwatch.rules, name) is getattr(home, name)
    assert set(trainwatch.rules.__all__) == set(trainwatch.rules._HOMES) == set(dir(trainwatch.rules))
