"""The moment in which an accelerator's allocator finds no memory, seen from inside, just before it raises.

By the time the exception has travelled to whoever reports it, the tensors on its way are gone and the allocator's
state with them. PyTorch lets one observer in at that moment. It can never be taken out again, so one is attached per
process and passes on what it sees to the trainings that run.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Any, Final

import msgspec

from trainwatch.training.safety import Safety

_LONGEST: Final = 8_000
# Whoever catches the exception and tries a smaller batch may do so for ever.
_MOST: Final = 50
_SUMMARIES: Final = 5

_ENTRANCE: Final = "_{}_attach_out_of_memory_observer"


class Exhausted(msgspec.Struct, frozen=True):
    """A request that could not be served.

    Attributes:
        device: The device's name.
        requested: Bytes that were asked for.
        allocated: Bytes held by tensors of this process.
        free: Bytes that the device had left, by the driver.
        summary: The allocator's own summary, as text.
    """

    device: str
    requested: int
    allocated: int
    free: int
    summary: str


Listener = Callable[[Exhausted], None]


class Observer:
    """Sees every request that an allocator cannot serve, in one process.

    Args:
        kind: The device type.
        module: Torch's module for it.
    """

    def __init__(self, kind: str, module: Any) -> None:
        self._kind = kind
        self._module = module
        self._pid = os.getpid()
        self._listeners: dict[Listener, Safety] = {}
        self._seen = 0

    def add(self, listener: Listener, safety: Safety) -> None:
        """Tells `listener` from now on; what it raises is counted by `safety`."""
        self._listeners[listener] = safety

    def remove(self, listener: Listener) -> None:
        """Does not tell `listener` any more."""
        self._listeners.pop(listener, None)

    def __call__(self, device: int, requested: int, limit: int, free: int) -> None:
        """Is called by the allocator, in whichever thread asked for memory.

        Args:
            device: Index.
            requested: Bytes that were asked for.
            limit: What the process may use of the device. (PyTorch's own name for it, "allocated", is wrong.)
            free: Bytes that the device has left.
        """
        # A forked child has the observer, and no right to speak for the training.
        if self._pid != os.getpid() or not self._listeners:
            return
        self._seen += 1
        if self._seen > _MOST:
            return
        exhausted: Exhausted | None = None
        for listener, safety in list(self._listeners.items()):
            with safety.guard("out-of-memory observer"):
                exhausted = exhausted or self._look(device, requested, free)
                listener(exhausted)

    def _look(self, device: int, requested: int, free: int) -> Exhausted:
        allocated = int(self._module.memory_allocated(device))
        summary = str(self._module.memory_summary(device)) if self._seen <= _SUMMARIES else ""
        return Exhausted(f"{self._kind}:{device}", int(requested), allocated, int(free), summary[:_LONGEST])


_observers: dict[str, Observer] = {}


def attach(kinds: list[str], listener: Listener, safety: Safety) -> dict[str, str]:
    """Tells `listener` when memory runs out on an accelerator.

    Args:
        kinds: Device types in use; those that let no observer in are passed over. They must be initialised already:
            attaching would initialise them.
        listener: Called at that moment, in whichever thread asked for the memory. It must not allocate on the device.
        safety: Counts what `listener` raises.

    Returns:
        Device type to why memory that runs out on it is not seen.
    """
    import torch

    missing = {}
    for kind in kinds:
        if kind not in _observers:
            entrance = _entrance(torch, kind)
            if entrance is None:
                missing[kind] = f"out-of-memory summary not available on {kind}: it takes no observer"
                continue
            observer = Observer(kind, getattr(torch, kind))
            try:
                entrance(observer)
            except RuntimeError as error:  # an allocator that takes none, such as cudaMallocAsync
                missing[kind] = f"out-of-memory summary not available on {kind}: {error}"[:200]
                continue
            _observers[kind] = observer
        _observers[kind].add(listener, safety)
    return missing


def detach(listener: Listener) -> None:
    """The training is over."""
    for observer in _observers.values():
        observer.remove(listener)


def _entrance(torch: Any, kind: str) -> Callable[[Any], None] | None:
    # An accelerator that comes as a package of its own brings a library of its own: torch_npu._C.
    library = sys.modules.get(f"torch_{kind}._C", torch._C)
    return getattr(library, _ENTRANCE.format(kind), None)
