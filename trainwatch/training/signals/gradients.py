"""Gradient norms before clipping.

There is no Trainer event between the end of the backward pass and clipping, after which one NaN has become all NaN. So
a hook on the model's output, which fires when the backward pass begins, queues a callback of the autograd engine for
its end. Under DDP that callback sees the rank's own gradient, and a second one, queued by the first, runs behind DDP's
own and sees the reduced gradient.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Final

import torch

from trainwatch.training.signals.reading import to_host

if TYPE_CHECKING:
    from typing import TypeAlias

    from trainwatch.training.signals.reading import Scalar

    Norms: TypeAlias = "tuple[Sequence[int] | None, list[float], list[tuple[list[int], torch.Tensor]]]"

_PIECE: Final = 1 << 16
"""Elements of a float32 vector that torch's norm on a CPU adds up to 1e-7; 4 million in one are off by 8e-5."""


_COUNTED_AT_ONCE: Final = 1 << 24


class GradientSignal:
    """Norms over a fixed set of parameters.

    Args:
        named_parameters: Name and parameter, in model order.
        ranks: How many ranks train together.
        flat_shards: FSDP's first version holds the parameters, each rank a part of each, in a shape of its own.

    Attributes:
        sharded: Each rank holds a part of the gradients only: norms are of that part, such that over all ranks the
            squares of :meth:`measure` add up to the square of the whole gradient's norm.
    """

    def __init__(
        self, named_parameters: Iterable[tuple[str, torch.nn.Parameter]], ranks: int = 1, *, flat_shards: bool = False
    ) -> None:
        named = list(named_parameters)
        # Frozen ones too: some scripts unfreeze in mid-epoch, and what has no gradient costs nothing.
        self.names = [name for name, _ in named]
        self.parameters = [parameter for _, parameter in named]
        self.sharded = flat_shards or any(hasattr(parameter, "to_local") for parameter in self.parameters)
        # What several ranks hold alike must count once when all add up.
        copies = [1 if flat_shards else _copies(parameter, ranks) for parameter in self.parameters]
        self._factors = [math.sqrt(1 / count) for count in copies]
        self._planned = -1
        self.reset()

    def reset(self) -> None:
        """Forgets the step's norms."""
        self.local: Scalar | None = None
        self.reduced: Scalar | None = None
        self._host_norms: list[float] = []
        self._device_norms: list[tuple[list[int], torch.Tensor]] = []
        self._places: Sequence[int] | None = None
        self._own: Norms | None = None

    @property
    def norm(self) -> Scalar | None:
        """The step's norm: the reduced one where there is one."""
        return self.local if self.reduced is None else self.reduced

    def measure(self) -> Scalar | None:
        """Returns the 2-norm over all gradients present, or None when there are none.

        Shards count with what this rank holds, see :attr:`sharded`.
        """
        self._host_norms, self._device_norms, self._places = [], [], None
        gradients = [gradient for parameter in self.parameters if (gradient := parameter.grad) is not None]
        if len(gradients) != self._planned:
            self._plan(gradients)
        if not gradients:
            return None
        if self._plain:
            norms = [norm.item() for norm in torch._foreach_norm(gradients)]
        else:
            gradients = [_local(gradient) for gradient in gradients]
            if not self._on_cpu:
                return self._measure_on_devices(gradients)
            norms = [_norm_on_cpu(gradient) for gradient in gradients]
            if self.sharded:
                norms = [norm * factor for norm, factor in zip(norms, self._present_factors(), strict=True)]
        total = math.hypot(*norms)
        if not math.isfinite(total):
            norms = self._once_more(gradients, norms)
            total = math.hypot(*norms)
        self._host_norms = norms
        self._places = self._present(len(gradients))
        return total

    def _plan(self, gradients: list[torch.Tensor]) -> None:
        """Looks what kind of gradients there are; they stay so while there are as many."""
        self._planned = len(gradients)
        self._on_cpu = all(gradient.is_cpu for gradient in gradients)
        # The usual small model, which must cost little: one call for all tensors.
        self._plain = (
            self._on_cpu
            and not self.sharded
            and all(not g.is_sparse and g.element_size() >= 4 and g.numel() <= _PIECE for g in gradients)
        )

    def _measure_on_devices(self, gradients: list[torch.Tensor]) -> torch.Tensor:
        by_device: dict[torch.device, list[int]] = {}
        for place, gradient in enumerate(gradients):
            by_device.setdefault(gradient.device, []).append(place)
        self._device_norms = [
            (places, torch.stack(torch._foreach_norm([gradients[place] for place in places], 2, dtype=torch.float32)))
            for places in by_device.values()
        ]
        self._places = self._present(len(gradients))
        if self.sharded:
            factors = self._present_factors()
            self._device_norms = [
                (places, norms * norms.new_tensor([factors[place] for place in places]))
                for places, norms in self._device_norms
            ]
        if len(self._device_norms) == 1:
            return _norm(self._device_norms[0][1])
        return _norm(torch.stack([_norm(norms).to(gradients[0].device) for _, norms in self._device_norms]))

    def _present(self, count: int) -> Sequence[int]:
        """Returns the places of the parameters that have a gradient at this moment; others may get theirs later."""
        if count == len(self.parameters):
            return range(count)
        return [place for place, parameter in enumerate(self.parameters) if parameter.grad is not None]

    def _present_factors(self) -> list[float]:
        return [f for f, parameter in zip(self._factors, self.parameters, strict=True) if parameter.grad is not None]

    def _once_more(self, gradients: list[torch.Tensor], norms: list[float]) -> list[float]:
        """Takes a closer look: finite values whose squares are too large for float32 have a norm in float64."""
        return [
            norm if math.isfinite(norm) else torch.linalg.vector_norm(gradient, dtype=torch.float64).item()
            for gradient, norm in zip(gradients, norms, strict=True)
        ]

    def measure_local(self) -> None:
        """Measures this rank's own gradients, before any all-reduce."""
        self.local = self.measure()
        self._own = self._places, self._host_norms, self._device_norms

    def measure_reduced(self) -> None:
        """Measures the gradients that the optimizer is going to use."""
        self.reduced = self.measure()

    def culprits(self) -> list[str]:
        """Names the parameters whose gradient was not finite, of this rank's own if it was so before any all-reduce."""
        bad = [place for place, norm in self.norms() if not math.isfinite(norm)]
        if not bad:
            last = self._places, self._host_norms, self._device_norms
            bad = [place for place, norm in self._resolve(last) if norm - norm != 0]
        return [self.names[place] for place in bad]

    def norms(self) -> list[tuple[int, float]]:
        """Returns the norm of each parameter's gradient, this rank's own before any all-reduce where that is known.

        To be called before the gradients are taken away; on an accelerator it waits for the device.

        Returns:
            The parameter's place in :attr:`names`, and its norm.
        """
        return self._resolve(self._own or (self._places, self._host_norms, self._device_norms))

    def _resolve(self, norms: Norms) -> list[tuple[int, float]]:
        present, host, devices = norms
        if present is None:
            return []
        if host:
            return list(zip(present, host, strict=True))
        return sorted(
            (present[place], norm)
            for places, on_device in devices
            for place, norm in zip(places, on_device.tolist(), strict=True)
        )

    def zeros(self) -> list[tuple[int, int, int]]:
        """Counts the exact zeros in each gradient; reads all of them, for now and then.

        Returns:
            The parameter's place in :attr:`names`, its zeros and its elements.
        """
        found = [
            (place, _local(parameter.grad))
            for place, parameter in enumerate(self.parameters)
            if parameter.grad is not None
        ]
        counts: dict[str, Scalar] = {}
        for place, gradient in found:
            # In pieces, because a GPU marks each element before it counts them.
            pieces = [piece.count_nonzero() for piece in torch.split(gradient.reshape(-1), _COUNTED_AT_ONCE)]
            counts[str(place)] = sum(pieces[1:], pieces[0]) if pieces else 0
        read = to_host(counts)
        return [(place, g.numel() - int(read[str(place)]), g.numel()) for place, g in found]

    def nonfinite_now(self) -> list[str]:
        """Names the parameters whose present gradient is not finite; slow, for when one is."""
        return [
            name
            for name, parameter in zip(self.names, self.parameters, strict=True)
            if parameter.grad is not None and not bool(_local(parameter.grad).isfinite().all())
        ]


def _norm_on_cpu(gradient: torch.Tensor) -> float:
    """Returns a norm in pieces, because torch adds up a long float32 vector on a CPU one after the other."""
    flat = gradient.reshape(-1)
    if flat.element_size() < 4:
        flat = flat.float()
    return math.hypot(*(norm.item() for norm in torch._foreach_norm(list(torch.split(flat, _PIECE)))))


def _norm(tensor: torch.Tensor) -> torch.Tensor:
    norm: torch.Tensor = torch.linalg.vector_norm(tensor)
    return norm


def _copies(parameter: torch.nn.Parameter, ranks: int) -> int:
    """Returns how many ranks hold the same part of a parameter as this one."""
    mesh = getattr(parameter, "device_mesh", None)
    if mesh is None:
        return ranks
    parts = 1
    for dimension, placement in enumerate(getattr(parameter, "placements", ())):
        if placement.is_shard():
            parts *= mesh.size(dimension)
    return max(ranks // parts, 1)


def _local(gradient: torch.Tensor) -> torch.Tensor:
    if gradient.is_sparse:
        return gradient.coalesce().values()
    if hasattr(gradient, "to_local"):
        local: torch.Tensor = gradient.to_local()
        return local
    return gradient
