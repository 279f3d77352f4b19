"""The contract: whatever fails on our side, the training does not notice. Walks every function of the training side."""

from __future__ import annotations

import importlib
import inspect
import logging
import math
import pkgutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from transformers import TrainerCallback

import trainwatch.training
from tests.training.tiny import TinyData, make_trainer, of, read_events
from trainwatch import TrainWatchCallback, events, journal, settings
from trainwatch.events import TroubleCounted
from trainwatch.probes import host
from trainwatch.training import safety
from trainwatch.training.hooks import ModelHook

pytestmark = pytest.mark.slow

# Torch calls these two, and all that they call is guarded. They are replaced by nothing that could fail.
BOUNDARY = {ModelHook._begin_from_loss, ModelHook._end_backward}
OUTSIDE: list[tuple[Any, str]] = [
    (events, "encode"),
    (journal, "create_source"),
    (journal, "write_atomically"),
    (journal.Writer, "__init__"),
    (journal.Writer, "append"),
    (settings, "load"),
    (host, "capacity"),
]
CALLED_BY_NOBODY_HERE = ("__deepcopy__", "__reduce__")


def parts() -> Iterator[tuple[Any, str]]:
    """Every function and method of the training side, and what it calls in the packages beside it."""
    yield from OUTSIDE
    for module_info in pkgutil.walk_packages(trainwatch.training.__path__, "trainwatch.training."):
        module = importlib.import_module(module_info.name)
        if module is safety:
            continue
        for name, member in vars(module).items():
            if getattr(member, "__module__", None) != module.__name__:
                continue
            if inspect.isfunction(member):
                yield module, name
            elif inspect.isclass(member) and not getattr(member, "_is_protocol", False):
                for attribute, value in vars(member).items():
                    if inspect.isfunction(value) and value not in BOUNDARY and attribute not in CALLED_BY_NOBODY_HERE:
                        yield member, attribute


# The callback's constructor runs before the training, in the user's own line: what it can't do, it says.
ALL = [part for part in parts() if part != (TrainWatchCallback, "__init__")]
IDS = [f"{getattr(owner, '__qualname__', owner.__name__)}.{name}" for owner, name in ALL]


def failing(original: Callable[..., Any], error: BaseException) -> tuple[Callable[..., Any], list[int]]:
    calls: list[int] = []

    def broken(*args: Any, **kwargs: Any) -> Any:
        calls.append(1)
        raise error

    broken.__name__ = original.__name__
    broken.__qualname__ = original.__qualname__
    # A function that carries its own guard keeps it: the fault is put inside.
    return (safety.harmless(broken) if hasattr(original, "__wrapped__") else broken), calls


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize(("owner", "name"), ALL, ids=IDS)
def test_a_fault_anywhere_never_reaches_the_trainer(
    home: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    owner: Any,
    name: str,
) -> None:
    broken, calls = failing(vars(owner)[name], RuntimeError("planted"))
    trainer = make_trainer(
        tmp_path / "out",
        steps=6,
        data=TinyData(12, scales={4: math.nan}),
        evaluation=TinyData(2),
        eval_strategy="steps",
        eval_steps=3,
        save_steps=3,
        save_strategy="steps",
    )
    monkeypatch.setattr(owner, name, broken)
    with caplog.at_level(logging.WARNING, logger="trainwatch"):
        trainer.train()
    assert trainer.state.global_step == 6
    reports = [record for record in caplog.records if "goes on without" in record.message]
    assert len({record.message for record in reports}) == len(reports), "each place reports once"
    # Not everything is reached in this training; what is reached is either reported or, for a fallback, replaced.
    if calls and owner not in (settings, journal) and not reports:
        assert read_events(home), f"{name} failed in silence"


def test_faults_are_counted_in_the_journal(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from trainwatch.training.signals.batch import BatchSignal

    monkeypatch.setattr(BatchSignal, "fold", failing(BatchSignal.fold, RuntimeError("planted"))[0])
    make_trainer(tmp_path / "out", steps=4).train()
    last = of(TroubleCounted, read_events(home))[-1]
    assert last.errors == {"ModelHook.__call__": 4}
    assert "planted" in last.message


@pytest.mark.parametrize("interrupt", [KeyboardInterrupt, SystemExit])
@pytest.mark.parametrize(
    ("owner", "name"), [(journal.Writer, "append"), (safety.Safety, "swallow")], ids=["append", "swallow"]
)
def test_the_users_interrupts_pass(
    home: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    interrupt: type[BaseException],
    owner: Any,
    name: str,
) -> None:
    trainer = make_trainer(tmp_path / "out", steps=4)
    monkeypatch.setattr(owner, name, failing(vars(owner)[name], interrupt())[0])
    if owner is safety.Safety:
        monkeypatch.setattr(journal.Writer, "append", failing(journal.Writer.append, RuntimeError("planted"))[0])
    with pytest.raises(interrupt):
        trainer.train()


def test_every_event_of_the_trainer_is_guarded() -> None:
    known = {name for name in vars(TrainerCallback) if name.startswith("on_")}
    ours = {name: method for name, method in vars(TrainWatchCallback).items() if name.startswith("on_")}
    assert set(ours) <= known, "a method that the Trainer never calls"
    assert all(hasattr(method, "__wrapped__") for method in ours.values())
