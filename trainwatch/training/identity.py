"""Who this process is: run, node, rank. All ranks of a run must agree on its id."""

from __future__ import annotations

import json
import os
import secrets
import socket
import sys
from collections.abc import Mapping
from datetime import timedelta
from typing import Any, Final

import msgspec

from trainwatch.settings import Settings

_FOR_OTHERS: Final = timedelta(seconds=20)
"""How long rank 0 waits for the others. They come from a collective that they all took part in: wrapping the model."""
_FOR_RANK_0: Final = timedelta(seconds=120)
_LAUNCHERS: Final = (
    ("RANK", "LOCAL_RANK", "WORLD_SIZE"),
    ("SLURM_PROCID", "SLURM_LOCALID", "SLURM_NTASKS"),
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_LOCAL_RANK", "MV2_COMM_WORLD_SIZE"),
    ("PMI_RANK", "MPI_LOCALRANKID", "PMI_SIZE"),
)
"""How launchers tell a process its rank, its number on the node, and how many there are."""
_meetings = 0
_hosts: list[str] = []
_used: dict[str, int] = {}


class Identity(msgspec.Struct, frozen=True):
    """This process's place in the run."""

    run: str
    node: str
    rank: int
    local_rank: int
    world_size: int


def distributed() -> Any | None:
    """Returns ``torch.distributed`` when a process group of several ranks exists, else None."""
    torch = sys.modules.get("torch")
    dist = getattr(torch, "distributed", None)
    if dist is None or not dist.is_available() or not dist.is_initialized() or dist.get_world_size() < 2:
        return None
    return dist


def meet(own: str | None) -> list[str | None]:
    """Returns what every rank brings, in the order of the ranks; None for one that did not come.

    Not a collective: the callback may have been given to rank 0 alone, as people do with loggers, and a collective that
    the others don't know of would wait for ever. The process group's key-value store can be waited for with patience.
    Every rank that comes gets the same answer, since rank 0 makes it.

    Args:
        own: What this rank brings.
    """
    global _meetings, _hosts
    dist = distributed()
    host = os.environ.get("TRAINWATCH_NODE") or socket.gethostname()
    if dist is None:
        _hosts = [host]
        return [own]
    _meetings += 1
    store = dist.distributed_c10d._get_default_store()
    number, ranks = dist.get_rank(), range(dist.get_world_size())
    alone: list[str | None] = [own if rank == number else None for rank in ranks]
    if store is None:  # MPI's process group has none
        _hosts = []
        return alone
    place = f"trainwatch/{_meetings}"
    # The chance tells an answer to this meeting from one to another: a rank that missed one counts differently.
    brought = [own, host, secrets.token_hex(8)]
    if number:
        store.set(f"{place}/{number}", json.dumps(brought))
        try:
            store.wait([place], _FOR_RANK_0)
        except RuntimeError:
            return [None] * len(ranks)
        answer: list[Any] = json.loads(store.get(place))
        if answer[number] != brought:
            return [None] * len(ranks)
    else:
        answer = [brought]
        patience = _FOR_OTHERS
        for rank in ranks[1:]:
            try:
                store.wait([f"{place}/{rank}"], patience)
                answer.append(json.loads(store.get(f"{place}/{rank}")))
            except RuntimeError:
                answer.append(None)
                patience = timedelta(milliseconds=100)  # whoever is coming has come by now
        store.set(place, json.dumps(answer))
    _hosts = [each[1] if each else "" for each in answer]
    return [each[0] if each else None for each in answer]


def proposal(settings: Settings, continued: str = "") -> str:
    """Returns the run's id as this rank would have it: the one that is set, the one that is continued, or a new one.

    An id that is set names the first training of this process (and its continuations); another training begun in the
    same process (a notebook, a search over hyperparameters) gets ``-2`` and so on added, for it is another run.

    Args:
        settings: The settings of this process.
        continued: Id of the run whose checkpoint this training begins with, see :mod:`trainwatch.training.resume`.
    """
    if not settings.run_id:
        return continued or secrets.token_hex(8)
    if continued and (continued == settings.run_id or continued.startswith(f"{settings.run_id}-")):
        return continued
    count = _used[settings.run_id] = _used.get(settings.run_id, 0) + 1
    return settings.run_id if count == 1 else f"{settings.run_id[:90]}-{count}"


def identify(settings: Settings, run: str, environment: Mapping[str, str] = os.environ) -> Identity:
    """Finds out who this process is.

    Args:
        settings: The settings of this process.
        run: The run's id, agreed on in :func:`meet`.
        environment: The variables in which launchers leave word.
    """
    dist = distributed()
    rank, world_size = (dist.get_rank(), dist.get_world_size()) if dist else _told(settings, environment)
    return Identity(
        run=run,
        node=settings.node,
        rank=rank,
        local_rank=_local_rank(rank, world_size, environment),
        world_size=world_size,
    )


def _told(settings: Settings, environment: Mapping[str, str]) -> tuple[int, int]:
    """Rank and size of a process without a process group.

    It trains alone, also when its surroundings speak of others (a notebook in an allocation of several tasks, variables
    left over). Only where somebody gave the processes one run's id on purpose, they are ranks of it.
    """
    if settings.run_id:
        for rank, _, size in _LAUNCHERS:
            number, count = _number(environment, rank), _number(environment, size)
            if number is not None and count is not None and number < count:
                return number, count
    return 0, 1


def _local_rank(rank: int, world_size: int, environment: Mapping[str, str]) -> int:
    """The process's number on its node: as its launcher says, or by counting the ranks that were met from here."""
    local = _number(environment, "LOCAL_RANK")
    if local is not None and local <= rank:
        return local
    for of_rank, of_local, _ in _LAUNCHERS:
        # Only a launcher that means the same ranks: under torchrun in srun, every process is Slurm's task 0.
        local = _number(environment, of_local)
        if local is not None and _number(environment, of_rank) == rank and world_size > 1:
            return local
    if len(_hosts) == world_size:
        return _hosts[:rank].count(_hosts[rank])
    return 0


def _number(environment: Mapping[str, str], name: str) -> int | None:
    text = environment.get(name, "")
    return int(text) if text.isascii() and text.isdigit() else None
