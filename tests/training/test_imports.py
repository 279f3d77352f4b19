"""What a training brings into its process: a few words of the rules, and none that judges, forecasts or draws."""

from __future__ import annotations

import importlib
import subprocess
import sys
from pathlib import Path
from typing import Final

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
{before}
with tempfile.TemporaryDirectory() as folder:
    # A NaN, because what is said of one must be there without the rules too.
    data = TinyData(12, kinks=[5])
    make_trainer(Path(folder), steps=6, data=data).train()
print(*sorted(name for name in sys.modules if name.partition(".")[0] == "trainwatch"))
"""


def loaded_by_a_training(before: str = "") -> set[str]:
    code = _TRAIN.format(before=before)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300, check=True)
    return set(done.stdout.splitlines()[-1].split())


def test_a_training_imports_no_rule_that_it_does_not_need(home: Path) -> None:
    loaded = loaded_by_a_training()
    assert "trainwatch.training.watcher" in loaded
    parts = {name.split(".")[1] for name in loaded if "." in name}
    assert not parts & {"agent", "charts", "cli", "demo", "forecast", "importing", "server"}
    rules = {name.split(".")[2] for name in loaded if name.startswith("trainwatch.rules.")}
    assert rules & RULE_FILES <= NEEDED


def test_a_training_with_settings_of_rules_checks_them_against_all_rules(home: Path) -> None:
    """The rules are there for whoever sets one: a module that is never found would pass the test above too."""
    before = "import trainwatch; from trainwatch.training.rule_settings import collect\n"
    before += "from trainwatch.settings import load\n"
    before += "assert collect({'loss_spike': {'action': 'halt'}}, load(), Path('/'))[0]"
    assert {"trainwatch.rules.registry", "trainwatch.rules.loss_spike"} <= loaded_by_a_training(before)


def test_the_public_names_of_the_rules_are_found_when_asked_for() -> None:
    for name in trainwatch.rules.__all__:
        home = importlib.import_module(trainwatch.rules._HOMES[name])
        assert getattr(trainwatch.rules, name) is getattr(home, name)
    assert set(trainwatch.rules.__all__) == set(trainwatch.rules._HOMES) == set(dir(trainwatch.rules))
