"""Memory of accelerators, as the framework's own allocator counts it: host-side counters, read without any waiting.

CUDA and ROCm share one interface (``torch.cuda``); XPU, NPU and others copy it, some with fewer counters. What an
allocator does not count is left out, never written as 0.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final

from trainwatch.events import DeviceValues, Values

# Metric to the allocator's counter.
_SIZES: Final = {
    "memory/allocated": ("allocated_bytes", "current"),
    "memory/reserved": ("reserved_bytes", "current"),
    "memory/peak": ("allocated_bytes", "peak"),
    "memory/peak_reserved": ("reserved_bytes", "peak"),
}
# Only PyTorch's own caching allocator splits blocks and retries; others report 0 for what they do not count.
_FRAGMENTED: Final = ("memory/inactive_split", "inactive_split_bytes", "current")
_COUNTS: Final = {"memory/alloc_retries": "num_alloc_retries", "memory/ooms": "num_ooms"}

_KINDS: Final = ("cuda", "xpu", "npu", "mlu", "musa", "hpu", "mtia")


class CachingAllocator:
    """A caching allocator with counters in the manner of ``torch.cuda.memory_stats``.

    Args:
        kind: The device type, which is also the name of torch's module for it (``"cuda"``).
        devices: Indices as PyTorch counts them.

    Raises:
        Exception: It cannot be read (a pluggable allocator, for one, has no counters).

    Attributes:
        source: Where its numbers come from, for people.
        missing: What it cannot tell, and why; empty when it tells everything.
    """

    def __init__(self, kind: str, devices: list[int]) -> None:
        import torch

        module: Any = getattr(torch, kind)
        self._devices = [(index, f"{kind}:{index}") for index in devices]
        self._stats, self._reset = _counters(torch, module)
        self._capacity = {index: _capacity(torch, module, index) for index in devices}
        backend = str(module.get_allocator_backend()) if hasattr(module, "get_allocator_backend") else "native"
        self._splits = backend == "native"
        self._peaks = self._reset is not None
        names = ", ".join(name for _, name in self._devices)
        self.source = f"allocator of {names}" + ("" if self._splits else f" ({backend})")
        self.missing = "" if self._peaks else f"not available on {kind}: its allocator's peak cannot be reset"
        if any("memory/allocated" not in values for values in self.read().values()):
            raise NotImplementedError(f"torch.{kind} counts memory in a way of its own")

    def begin(self) -> None:
        """See :class:`~trainwatch.training.signals.memory.MemorySignal`."""
        if self._reset is not None:
            for index, _ in self._devices:
                self._reset(index)

    def read(self) -> DeviceValues:
        """See :class:`~trainwatch.training.signals.memory.MemorySignal`."""
        readings: DeviceValues = {}
        for index, name in self._devices:
            stats = self._stats(index)
            values: Values = {}
            for metric, (counter, moment) in _SIZES.items():
                found = stats.get(counter)
                if found is not None and (self._peaks or moment != "peak"):
                    values[metric] = float(found["all"][moment])
            if self._splits:
                metric, counter, moment = _FRAGMENTED
                if counter in stats:
                    values[metric] = float(stats[counter]["all"][moment])
                for metric, counter in _COUNTS.items():
                    if counter in stats:
                        values[metric] = float(stats[counter])
            if self._capacity[index]:
                values["memory/capacity"] = self._capacity[index]
            readings[name] = values
            if self._reset is not None:
                self._reset(index)
        return readings

    def close(self) -> None:
        """See :class:`~trainwatch.training.signals.memory.MemorySignal`."""


class MpsMemory:
    """Apple's GPU, which has no peaks to be read and shares its memory with the processor."""

    def __init__(self) -> None:
        import torch

        self._mps: Any = torch.mps
        recommended = getattr(self._mps, "recommended_max_memory", None)  # since torch 2.5
        self._capacity = float(recommended()) if recommended else 0.0
        self.source = "Metal, of mps:0"
        self.missing = "not available on mps: Metal keeps no peak"
        self.read()

    def begin(self) -> None:
        """See :class:`~trainwatch.training.signals.memory.MemorySignal`."""

    def read(self) -> DeviceValues:
        """See :class:`~trainwatch.training.signals.memory.MemorySignal`."""
        values: Values = {
            "memory/allocated": float(self._mps.current_allocated_memory()),
            "memory/reserved": float(self._mps.driver_allocated_memory()),
        }
        if self._capacity:
            values["memory/capacity"] = self._capacity
        return {"mps:0": values}

    def close(self) -> None:
        """See :class:`~trainwatch.training.signals.memory.MemorySignal`."""


def in_use(parameters: Iterable[Any]) -> dict[str, list[int]]:
    """Says which accelerators a rank uses: those that its parameters lie on, and those that are at work already.

    Offloaded and sharded models keep their parameters on the CPU, or nowhere yet, when a training begins.

    Args:
        parameters: The model's.

    Returns:
        Device type to indices.
    """
    import torch

    found: dict[str, set[int]] = {}
    for device in {parameter.device for parameter in parameters}:
        if device.type not in ("cpu", "meta"):
            found.setdefault(device.type, set()).add(device.index or 0)
    for kind in _KINDS:
        module: Any = getattr(torch, kind, None)
        # Asked only when it is initialised: asking for the current device would initialise it.
        if module is not None and getattr(module, "is_initialized", bool)():
            found.setdefault(kind, set()).add(module.current_device())
    return {kind: sorted(indices) for kind, indices in found.items()}


def uuids(kind: str, devices: list[int]) -> dict[str, str]:
    """Returns the driver's identifiers of devices, by which they are found whatever hides or reorders them.

    Args:
        kind: The device type.
        devices: Indices as PyTorch counts them.

    Returns:
        Device name (``"cuda:0"``) to UUID without a prefix; devices that have none are left out.
    """
    import torch

    found = {}
    module: Any = getattr(torch, kind, None)
    if hasattr(module, "get_device_properties"):
        for index in devices:
            uuid = getattr(module.get_device_properties(index), "uuid", None)  # since torch 2.4
            if uuid:
                found[f"{kind}:{index}"] = str(uuid)
    return found


def _counters(torch: Any, module: Any) -> tuple[Callable[[int], dict[str, Any]], Callable[[int], Any] | None]:
    """Returns how to read an allocator's counters, and how to reset its peaks, if that is possible."""
    # One nested dictionary; the flat one that memory_stats() makes of it costs ten times as much.
    nested = getattr(module, "memory_stats_as_nested_dict", None)
    reset = getattr(module, "reset_peak_memory_stats", None)
    if nested is not None:
        return nested, reset
    flat = getattr(module, "memory_stats", None)
    accelerator: Any = getattr(torch, "accelerator", None)  # since torch 2.6, its memory functions since 2.9
    if flat is None and hasattr(accelerator, "memory_stats"):
        flat, reset = accelerator.memory_stats, accelerator.reset_peak_memory_stats
    if flat is None:
        raise NotImplementedError(f"{module.__name__} has no memory statistics")
    return lambda index: _nest(flat(index)), reset


def _nest(flat: dict[str, Any]) -> dict[str, Any]:
    stats: dict[str, Any] = {}
    for name, value in flat.items():
        counter, _, rest = name.partition(".")
        pool, _, moment = rest.partition(".")
        if pool == "all" and moment:
            stats.setdefault(counter, {}).setdefault("all", {})[moment] = value
        elif not rest:
            stats[counter] = value
    return stats


def _capacity(torch: Any, module: Any, index: int) -> float:
    """Returns a device's memory in bytes; 0 when it is not told."""
    if hasattr(module, "get_device_properties"):
        total = getattr(module.get_device_properties(index), "total_memory", 0)
        if total:
            return float(total)
    told = getattr(module, "mem_get_info", None) or getattr(
        getattr(torch, "accelerator", None), "get_memory_info", None
    )
    return float(told(index)[1]) if told else 0.0
