"""What ends an autopsy early, and what it may cost."""

from __future__ import annotations

import time
from typing import Any, Final

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from trainwatch.training.safety import Safety, text_of

_COLLECTIVES: Final = frozenset({"c10d", "_c10d_functional", "c10d_functional", "_c10d_functional_autograd"})


class OutOfTime(Exception):
    """The budget is used up."""


class NeedsOthers(Exception):
    """The model, or its loss, would have talked to the other ranks, which are not there."""


class Budget:
    """Time that an autopsy may take.

    Args:
        seconds: How long, from now.
    """

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._began = time.perf_counter()

    @property
    def used(self) -> float:
        """Seconds since the begin."""
        return time.perf_counter() - self._began

    def check(self) -> None:
        """Looks at the clock.

        Raises:
            OutOfTime: There is none left.
        """
        if self.used > self.seconds:
            raise OutOfTime(f"it was stopped after {self.seconds:g} s")


class Notes(Safety):
    """Keeps what went wrong in an autopsy as notes on it: most often it is the user's model that raises, not we.

    Attributes:
        texts: What could not be looked at, and why.
        last: The newest exception, without its traceback.
    """

    def __init__(self) -> None:
        super().__init__()
        self.texts: list[str] = []
        self.last: Exception | None = None

    def swallow(self, place: str, error: Exception) -> None:
        """Makes a note of an exception."""
        if isinstance(error, OutOfTime | NeedsOthers):
            self.add(f"{place}: {error}")
        elif is_out_of_memory(error):
            self.add(f"{place}: out of memory ({_brief(error)})")
        else:
            self.add(f"{place}: {type(error).__name__}: {_brief(error)}")
        # Its frames hold these notes and all activations: kept with it, they would wait for the garbage collector. What
        # it came from is let go and not changed, since that may be the exception the training itself is ending with.
        for link in ("__context__", "__cause__"):
            BaseException.__setattr__(error, link, None)  # its own class may forbid it
        self.last = error.with_traceback(None)

    def add(self, text: str) -> None:
        """Adds a note."""
        if text not in self.texts:
            self.texts.append(text)


def _brief(error: Exception) -> str:
    lines = text_of(error).strip().splitlines()
    return lines[0][:300] if lines else ""


def is_out_of_memory(error: Exception) -> bool:
    """Tells whether memory ran out, on a device or on the host."""
    kinds = tuple(kind for kind in (MemoryError, getattr(torch, "OutOfMemoryError", None)) if kind is not None)
    return isinstance(error, kinds) or any(
        text in text_of(error) for text in ("out of memory", "can't allocate memory", "not enough memory")
    )


class Alone(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Refuses every collective operation: the other ranks are not in an autopsy, and would be waited for for ever."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Called by torch for each operation."""
        if func.namespace in _COLLECTIVES:
            raise NeedsOthers(f"it talks to the other ranks ({func.__name__.partition('.')[0]})")
        return func(*args, **(kwargs or {}))


def several_ranks() -> bool:
    """Tells whether this process trains together with others."""
    distributed = torch.distributed
    return distributed.is_available() and distributed.is_initialized() and distributed.get_world_size() > 1


def obstacle(model: torch.nn.Module) -> str:
    """Says why this rank cannot run the model by itself; empty when it can."""
    for parameter in model.parameters():
        if hasattr(parameter, "ds_id"):
            return "not available under DeepSpeed ZeRO-3: each rank holds a part of each parameter"
        if hasattr(parameter, "to_local"):
            kind = "FSDP2" if _is_fsdp2(model) else "tensor parallelism"
            return f"not available under {kind}: each rank holds a part of each parameter"
    alone = not several_ranks()
    for module in model.modules():
        if type(module).__name__ == "FullyShardedDataParallel":
            return "not available under FSDP: each rank holds a part of each parameter"
        if not alone and isinstance(module, torch.nn.SyncBatchNorm):
            return "not available with SyncBatchNorm: each pass needs the other ranks"
    return ""


def _is_fsdp2(model: torch.nn.Module) -> bool:
    return any(hasattr(module, "unshard") and hasattr(module, "reshard") for module in model.modules())
