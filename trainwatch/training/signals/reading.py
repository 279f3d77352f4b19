"""Getting numbers off a device with one wait instead of many.

On a CPU a number is a Python float at once. On an accelerator signals keep device-side scalars, and everything that a
step needs on the host is copied together, when the guard must know anyway.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

import torch

if TYPE_CHECKING:
    Scalar: TypeAlias = "float | torch.Tensor"


_PYTHON_NUMBERS = frozenset((float, int))


def to_host(values: dict[str, Scalar]) -> dict[str, float]:
    """Brings scalars to the host, with one copy per device.

    Args:
        values: Python numbers and 0-dimensional tensors of any device.

    Returns:
        The same names with floats.
    """
    if _PYTHON_NUMBERS.issuperset(map(type, values.values())):
        return values  # type: ignore[return-value]
    host: dict[str, float] = {}
    waiting: dict[torch.device, list[tuple[str, torch.Tensor]]] = {}
    for name, value in values.items():
        if isinstance(value, int | float):
            host[name] = value
        else:
            waiting.setdefault(value.device, []).append((name, value))
    for device, entries in waiting.items():
        # Counts of tokens and zeros are exact in float64 alone, which Apple's GPUs lack.
        wide = torch.float32 if device.type == "mps" else torch.float64
        numbers = torch.stack([value.detach().to(wide) for _, value in entries]).tolist()
        host.update(zip((name for name, _ in entries), numbers, strict=True))
    return host
