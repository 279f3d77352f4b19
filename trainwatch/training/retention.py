"""Keeps the micro-batches of the present step, by reference, in case it has to be looked into."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from trainwatch.training.autopsy import MicroBatch
from trainwatch.training.signals.samples import SampleTrail

_MOST_ON_DEVICES: Final = 64 * 1024 * 1024
"""Bytes on accelerators that are kept from being freed within a step; in the host's memory the Trainer keeps them."""


class Retention:
    """Keeps what went into the model in this step.

    Args:
        trail: Knows which samples are in a micro-batch, where there is one.
        accumulation: Micro-batches of a full step.
    """

    def __init__(self, trail: SampleTrail | None, accumulation: int) -> None:
        self._trail = trail
        # Whoever no longer clears this, an abandoned training above all, must not keep ever more.
        self._most = 4 * max(accumulation, 1)
        self._kept: dict[int, tuple[Mapping[str, Any], tuple[Any, ...], Mapping[str, Any] | None, int]] = {}
        self._losses: dict[int, Any] = {}
        self._on_devices = 0

    def clear(self) -> None:
        """Lets go of everything."""
        self._kept.clear()
        self._losses.clear()
        self._on_devices = 0

    def keep(
        self,
        number: int,
        inputs: Mapping[str, Any],
        args: tuple[Any, ...] = (),
        loss_arguments: Mapping[str, Any] | None = None,
    ) -> None:
        """Keeps a micro-batch; the last one under its number counts.

        Args:
            number: Its place in the step, from 0.
            inputs: Keyword arguments of the model's forward, or what ``compute_loss`` got.
            args: Positional arguments of the model's forward.
            loss_arguments: Further keyword arguments of ``compute_loss``.
        """
        if number >= self._most:
            return
        before = self._kept.pop(number, None)
        if before is not None:
            self._on_devices -= before[3]
        size = _bytes_on_devices(inputs) + (_bytes_on_devices(args) if args else 0)
        if self._on_devices + size <= _MOST_ON_DEVICES:
            self._on_devices += size
            self._kept[number] = (inputs, args, loss_arguments, size)

    def keep_loss(self, number: int, loss: Any) -> None:
        """Keeps the loss of a micro-batch.

        Args:
            number: Its place in the step.
            loss: A number or a tensor.
        """
        if number < self._most:
            self._losses[number] = loss

    def micro_batches(self) -> list[MicroBatch]:
        """Returns what was kept, in order."""
        return [
            MicroBatch(
                number=number,
                inputs=inputs,
                args=args,
                loss_arguments=loss_arguments or {},
                loss=self._losses.get(number),
                samples=self._trail.taken(number) if self._trail is not None else [],
            )
            for number, (inputs, args, loss_arguments, _) in sorted(self._kept.items(), key=lambda item: item[0])
        ]


def _bytes_on_devices(value: Any) -> int:
    """Adds up the tensors on accelerators in a container, however they are nested."""
    total = 0
    for one in value.values() if isinstance(value, (dict, Mapping)) else value:
        on_host = getattr(one, "is_cpu", None)
        if on_host is False:
            total += one.nbytes
        elif on_host is None and isinstance(one, (list, tuple, Mapping)):
            total += _bytes_on_devices(one)
    return total
