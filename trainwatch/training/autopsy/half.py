"""Whether it was the small range of a half-precision type: the module is run once more in float32."""

from __future__ import annotations

import math
from contextlib import ExitStack
from typing import Any, Final

import msgspec
import torch

from trainwatch.training.autopsy.forward import Call
from trainwatch.training.autopsy.limits import Notes
from trainwatch.training.autopsy.tensors import is_float, look, tensors_in
from trainwatch.training.autopsy.traces import Rng

HALF: Final = (torch.float16, torch.bfloat16)
_LARGE: Final = 100_000_000
"""Parameters that are not worth a copy in float32."""
_NEAR: Final = 8
"""A value above an eighth of the limit, next to an Inf: the next larger ones have overflowed."""


class Overflow(msgspec.Struct, frozen=True):
    """A half-precision type was too small.

    Attributes:
        dtype: The type.
        limit: Its largest value.
        value: The largest magnitude of the output in float32, or, where that is not known, in the type itself.
    """

    dtype: str
    limit: float
    value: float


class HalfTest:
    """Looks into modules whose output is not finite, during the forward pass.

    Args:
        rng: Drawn from by modules, and put back.
        notes: What did not work.

    Attributes:
        found: What was found, by call.
    """

    def __init__(self, rng: Rng, notes: Notes) -> None:
        self.found: dict[Call, Overflow] = {}
        self._rng = rng
        self._notes = notes

    def look(self, call: Call, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """See :class:`~trainwatch.training.autopsy.forward.ForwardWatch`."""
        used = [dtype for _, _, dtype, _ in call.bad]
        used += [tensor.dtype for _, tensor in tensors_in((args, kwargs))]
        dtype = next((dtype for dtype in used if dtype in HALF), None)
        if dtype is None:
            return
        state = self._rng.now()
        value: float | None = None
        with self._notes.guard(f"{call.name or call.kind} in float32"):
            value = self._in_float32(call.module, args, kwargs)
        self._rng.restore(state)
        limit = torch.finfo(dtype).max
        if value is None and self._nearly(call, limit):
            value = max(found.largest for _, _, _, found in call.bad)
        if value is not None and math.isfinite(value):
            self.found[call] = Overflow(str(dtype).removeprefix("torch."), limit, value)

    def _in_float32(self, module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> float | None:
        """Returns the largest magnitude of the output in float32, Inf when it is not finite there either."""
        state = self._rng.now()
        named = {**dict(module.named_parameters()), **dict(module.named_buffers())}
        if sum(tensor.numel() for tensor in named.values()) > _LARGE:
            return None
        with torch.no_grad():
            again = module(*args, **kwargs)
            if all(look(tensor).finite for _, tensor in tensors_in(again) if is_float(tensor)):
                return math.inf  # the first time was a matter of chance
            self._rng.restore(state)
            wide = {name: tensor.detach().float() for name, tensor in named.items() if tensor.dtype in HALF}
            with ExitStack() as stack:
                for device in {tensor.device.type for _, tensor in tensors_in((args, kwargs))}:
                    stack.enter_context(torch.autocast(device, enabled=False))
                output = torch.func.functional_call(module, wide, _widen(args), _widen(kwargs))
        found = [look(tensor) for _, tensor in tensors_in(output) if is_float(tensor)]
        return max(extremes.largest for extremes in found) if all(extremes.finite for extremes in found) else math.inf

    def _nearly(self, call: Call, limit: float) -> bool:
        found = [extremes for _, _, dtype, extremes in call.bad if dtype in HALF]
        return any(not each.nan and each.largest * _NEAR > limit for each in found)


def _widen(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.detach().float() if value.dtype in HALF else value
    if type(value) in (list, tuple):
        return type(value)(_widen(part) for part in value)
    return {name: _widen(part) for name, part in value.items()} if type(value) is dict else value
