"""Whether an autopsy is going on: hooks of ours on the model must not take its passes for the training's."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from threading import get_ident

_running: set[int] = set()


def is_running() -> bool:
    """Tells whether this thread is in an autopsy."""
    return bool(_running) and get_ident() in _running


@contextmanager
def announced() -> Iterator[None]:
    """Makes :func:`is_running` true for this thread."""
    thread = get_ident()
    _running.add(thread)
    try:
        yield
    finally:
        _running.discard(thread)
