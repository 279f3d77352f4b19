"""How ranks agree: a rank that stops, skips or saves alone leaves the others waiting in a collective for ever.

Once per optimizer update the ranks exchange a few numbers: what is wrong with the step, what the control file asks for,
and the squares of their shards of the gradients. Gradients that DDP has reduced would agree by themselves, but a raw
loss and the shards of FSDP are seen by one rank only. Where nothing depends on the step (policy "record"), they meet
every few steps.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from trainwatch.training.identity import distributed

RECORD_INTERVAL: Final = 16
"""Steps between two agreements when only commands have to be agreed on."""
_COLUMNS: Final = 5
_MISSING: Final = -1.0
"""For the squares of a rank that could not measure its shard: the whole is not known then."""


class Flags(msgspec.Struct, frozen=True):
    """What the ranks tell each other.

    Attributes:
        loss_bad: A raw loss of the step was not finite.
        gradient_bad: A gradient of the step was not finite.
        culprit: Rank + 1 of a rank whose own values were not finite before any all-reduce, 0 for none.
        commands: Numbers of commands that are to be obeyed: of one that this rank read in its control file, or, once
            agreed, of those of all ranks.
        squares: Sum of the squares of the gradients over all ranks' shards; None when they are not sharded, or nobody
            was asked in this step.
    """

    loss_bad: bool = False
    gradient_bad: bool = False
    culprit: int = 0
    commands: tuple[int, ...] = ()
    squares: float | None = None


class Agreement:
    """Reduces flags over all ranks.

    Args:
        model: Its parameters tell the device that the process group can reduce on.
        interval: Updates from one agreement to the next.

    Attributes:
        alone: There are no other ranks.
    """

    def __init__(self, model: Any, interval: int = 1) -> None:
        self._dist = distributed()
        self.alone = self._dist is None
        self._interval = interval
        self._updates = 0
        if self._dist is not None:
            import torch

            backend = str(self._dist.get_backend())
            on_cpu = "gloo" in backend or "mpi" in backend
            on_cuda = "nccl" in backend and torch.cuda.is_available()
            own = torch.device("cuda", torch.cuda.current_device()) if on_cuda else next(model.parameters()).device
            device = torch.device("cpu") if on_cpu else own
            # float64 holds every number of a command; MPS, which has none, has no process groups either.
            self._numbers = torch.zeros(self._dist.get_world_size(), _COLUMNS, dtype=torch.float64, device=device)
            self._rank = self._dist.get_rank()

    def leave(self) -> None:
        """Meets nobody from now on, and hears no command, since no rank may stop alone. Every rank has to do so."""
        self._dist = None

    def agree(self, own: Flags) -> Flags:
        """Returns the flags of all ranks together.

        Every rank has to call this once per update, whatever happened on it before.

        Args:
            own: What this rank has seen.
        """
        if self._dist is None:
            return own if self.alone else msgspec.structs.replace(own, commands=(), squares=None)
        self._updates += 1
        if self._updates % self._interval:
            return msgspec.structs.replace(own, commands=(), squares=None)
        import torch

        # A row for each rank, so that one exchange serves maxima and sums, and a NaN of one stays its own.
        row = [
            own.loss_bad,
            own.gradient_bad,
            own.culprit,
            max(own.commands, default=0),
            _MISSING if own.squares is None else own.squares,
        ]
        self._numbers.zero_()
        self._numbers[self._rank] = torch.tensor(row, dtype=torch.float64)
        self._dist.all_reduce(self._numbers)
        loss_bad, gradient_bad, culprits, commands, shards = zip(*self._numbers.tolist(), strict=True)
        return Flags(
            bool(max(loss_bad)),
            bool(max(gradient_bad)),
            int(max(culprits)),
            tuple(sorted({int(number) for number in commands if number})),
            None if own.squares is None or _MISSING in shards else sum(shards),
        )
