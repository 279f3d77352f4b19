"""TrainWatch watches the health of a training run and stops it before it is ruined.

    from trainwatch import TrainWatchCallback

    trainer = Trainer(..., callbacks=[TrainWatchCallback()])

Everything public is imported when it is first used, so that ``import trainwatch`` costs nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from trainwatch.client import Client
    from trainwatch.training.attach import watch
    from trainwatch.training.callback import TrainWatchCallback

__version__ = "0.1.0"

__all__ = ["Client", "TrainWatchCallback", "__version__", "watch"]

_HOMES = {
    "Client": "trainwatch.client",
    "TrainWatchCallback": "trainwatch.training.callback",
    "watch": "trainwatch.training.attach",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'trainwatch' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
