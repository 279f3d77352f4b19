"""Noticing that a training ended by an exception.

The Trainer has no event for it: after one, ``on_train_end`` never comes. What is left is the interpreter's own last
word, ``sys.excepthook``, and ``atexit`` for scripts that caught the exception themselves. A notebook lives on after an
exception: there the end of the cell tells. :func:`trainwatch.watch`, which has the Trainer, sees each at once.
"""

from __future__ import annotations

import atexit
import os
import sys
import traceback
import weakref
from collections.abc import Iterable
from types import TracebackType
from typing import Any, Protocol

from trainwatch.training.safety import Safety, text_of


class Failing(Protocol):
    """A training that may fail."""

    safety: Safety

    def failed(self, error: str, trace: str) -> None:
        """The training ended by an exception."""


_running: weakref.WeakSet[Any] = weakref.WeakSet()
_installed_in = 0
_previous_hook = sys.excepthook
_safety = Safety()


def watch(training: Failing) -> None:
    """Tells `training` when an exception ends the interpreter's work while it runs."""
    global _installed_in, _previous_hook
    _running.add(training)
    if _installed_in != os.getpid():
        _installed_in = os.getpid()
        if sys.excepthook is not _on_exception:  # a forked child has inherited it
            _previous_hook = sys.excepthook
            sys.excepthook = _on_exception
        atexit.register(_on_exit)
    _watch_notebook()


def running() -> list[Any]:
    """Returns the trainings that have not ended yet."""
    return list(_running)


def unwatch(training: Failing) -> None:
    """The training has ended by itself."""
    _running.discard(training)


def _on_exception(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    # A forked child (a data loader's worker) inherits this hook but not the right to speak for the training.
    with _safety.guard("exception hook"):
        if os.getpid() == _installed_in:
            _tell(f"{kind.__name__}: {error}", "".join(traceback.format_exception(kind, error, trace)))
    _previous_hook(kind, error, trace)


def _watch_notebook() -> None:
    """Asks to be called after each cell, once per shell."""
    get_shell = getattr(sys.modules.get("IPython"), "get_ipython", None)
    shell = get_shell() if get_shell is not None else None
    if shell is not None and _on_cell not in shell.events.callbacks["post_run_cell"]:
        shell.events.register("post_run_cell", _on_cell)


def _on_cell(result: Any) -> None:
    error = getattr(result, "error_in_exec", None)
    with _safety.guard("cell hook"):
        # Another cell may fail while a training goes on in a thread.
        if error is not None and os.getpid() == _installed_in and _passes_trainer(error.__traceback__):
            tell(list(_running), error)


def _passes_trainer(trace: TracebackType | None) -> bool:
    modules = (str(frame.f_globals.get("__name__")) for frame, _ in traceback.walk_tb(trace))
    return any(module.startswith("transformers.trainer") for module in modules)


def tell(trainings: Iterable[Failing], error: BaseException) -> None:
    """Tells trainings that they ended by an exception.

    Args:
        trainings: Which.
        error: What was raised.
    """
    _tell(f"{type(error).__name__}: {text_of(error)}", "".join(traceback.format_exception(error)), trainings)


def _on_exit() -> None:
    with _safety.guard("exit hook"):
        if os.getpid() == _installed_in:
            last = getattr(sys, "last_value", None)
            reason = f"{type(last).__name__}: {last}" if last is not None else "the training stopped without saying why"
            _tell(reason, "".join(traceback.format_exception(last)) if last is not None else "")


def _tell(error: str, trace: str, trainings: Iterable[Failing] | None = None) -> None:
    for training in list(_running) if trainings is None else trainings:
        unwatch(training)
        with training.safety.guard("failure report"):
            training.failed(error, trace)
