"""Looking at a tensor without copying it: how large its values are, and how many are not finite."""

from __future__ import annotations

import math
import weakref
from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple

import torch

from trainwatch.events import TensorSummary

_PIECE: Final = 1 << 22
"""Elements that are looked at together where a copy is needed: 16 MiB of float32."""
_DEPTH: Final = 4
_UNREADABLE: Final = ("meta",)


class Extremes(NamedTuple):
    """What is in a tensor.

    Attributes:
        low: Its smallest finite value; None when there is none.
        high: Its largest finite value.
        nan: How many values are NaN.
        inf: How many are +Inf.
        minus_inf: How many are -Inf.
    """

    low: float | None = None
    high: float | None = None
    nan: int = 0
    inf: int = 0
    minus_inf: int = 0

    @property
    def finite(self) -> bool:
        """All values are finite."""
        return not (self.nan or self.inf or self.minus_inf)

    @property
    def harmless(self) -> bool:
        """All values are finite or -Inf, which is how masks are made."""
        return not (self.nan or self.inf)

    @property
    def largest(self) -> float:
        """The largest finite magnitude."""
        return max(abs(self.low or 0.0), abs(self.high or 0.0))


_NOTHING: Final = Extremes()


def look(tensor: torch.Tensor) -> Extremes:
    """Looks at a tensor; of a sharded one at what this rank holds, of a meta tensor at nothing."""
    tensor = _plain(tensor)
    if not tensor.numel() or tensor.device.type in _UNREADABLE:
        return _NOTHING
    if tensor.is_floating_point() and tensor.element_size() < 2:
        return _closely(tensor)  # no float8 kernel can compare
    # Neither makes a copy, and a NaN anywhere makes both NaN.
    low, high = _ends(tensor)
    if math.isfinite(low) and math.isfinite(high):
        return Extremes(low, high)
    return _closely(tensor)


def is_float(value: Any) -> bool:
    """Tells whether this is a tensor that can hold a NaN."""
    return isinstance(value, torch.Tensor) and (value.is_floating_point() or value.is_complex())


def tensors_in(value: Any, name: str = "", depth: int = _DEPTH) -> Iterator[tuple[str, torch.Tensor]]:
    """Yields the tensors of a module's arguments or output, with their names: ``"0"``, ``"logits"``, ``"1.hidden"``."""
    if isinstance(value, torch.Tensor):
        yield name, value
    elif depth and isinstance(value, Mapping):
        for key, part in value.items():
            yield from tensors_in(part, f"{name}.{key}" if name else str(key), depth - 1)
    elif depth and isinstance(value, list | tuple):
        for place, part in enumerate(value):
            yield from tensors_in(part, f"{name}.{place}" if name else str(place), depth - 1)


def summarise(name: str, tensor: torch.Tensor, found: Extremes | None = None) -> TensorSummary:
    """Puts a tensor in few words."""
    found = look(tensor) if found is None else found
    return TensorSummary(
        name=name,
        shape=list(tensor.shape),
        dtype=str(tensor.dtype).removeprefix("torch."),
        device=str(tensor.device),
        low=found.low,
        high=found.high,
        nan=found.nan,
        inf=found.inf + found.minus_inf,
    )


class Memory:
    """Looks at a tensor once: the output of one module is the input of the next, and of those around it."""

    def __init__(self) -> None:
        self._seen: dict[int, tuple[weakref.ref[torch.Tensor], int, Extremes]] = {}

    def look(self, tensor: torch.Tensor) -> Extremes:
        """See :func:`look`."""
        if tensor.is_inference():
            return look(tensor)  # counts no versions
        known = self._seen.get(id(tensor))
        if known is not None and known[0]() is tensor and known[1] == tensor._version:
            return known[2]
        found = look(tensor)
        self._seen[id(tensor)] = (weakref.ref(tensor), tensor._version, found)
        return found


def _plain(tensor: torch.Tensor) -> torch.Tensor:
    tensor = tensor.detach()
    if hasattr(tensor, "to_local"):
        tensor = tensor.to_local()
    if tensor.is_sparse:
        tensor = tensor.coalesce().values()
    return torch.view_as_real(tensor) if tensor.is_complex() else tensor


def _ends(tensor: torch.Tensor) -> tuple[float, float]:
    ends = torch.aminmax(tensor)
    low, high = torch.stack((ends.min, ends.max)).tolist()  # one wait for the device
    return float(low), float(high)


def _closely(tensor: torch.Tensor) -> Extremes:
    low, high = math.inf, -math.inf
    counts = [0, 0, 0]
    for piece in _pieces(tensor):
        if piece.element_size() < 2:
            piece = piece.float()
        kinds = (piece.isnan(), piece == math.inf, piece == -math.inf)
        for place, count in enumerate(torch.stack([kind.sum() for kind in kinds]).tolist()):
            counts[place] += count
        finite = piece[piece.isfinite()]
        if finite.numel():
            ends = _ends(finite)
            low, high = min(low, ends[0]), max(high, ends[1])
    return Extremes(low if low <= high else None, high if low <= high else None, *counts)


def _pieces(tensor: torch.Tensor) -> Iterator[torch.Tensor]:
    if tensor.numel() <= _PIECE:
        yield tensor
        return
    widest = max(range(tensor.ndim), key=lambda axis: tensor.shape[axis])
    for half in torch.split(tensor, (tensor.shape[widest] + 1) // 2, widest):
        yield from _pieces(half)
