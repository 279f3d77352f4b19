"""When the longest samples come: the order of a seeded sampler, found out without a number drawn from the user's state.

A sampler that has a generator of its own, or a seed, gives the same order to a copy of that generator. One that draws
from torch's global state is not asked: whatever is drawn between now and then changes its order. Nothing here is
certain (somebody may wrap the loader, or filter in the collator), so the lengths of the first steps are told too, for
whoever uses the order to hold it against the batches that really come.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final, NamedTuple

import torch
from torch.utils.data import BatchSampler, RandomSampler, SequentialSampler

FIRST: Final = 16
"""Steps whose lengths are told, to be checked."""
LONGEST: Final = 16
"""Batches that are told."""

_EPOCHS: Final = 8
_EACH_EPOCH: Final = 4
_MOST_GROUPED: Final = 20_000


class Plan(NamedTuple):
    """What the order depends on.

    Attributes:
        dataloader: Gives the training's batches, as accelerate has prepared it.
        first_step: Updates already done.
        max_steps: The update at which training is to end.
        accumulation: Micro-batches of a full step.
    """

    dataloader: Any
    first_step: int
    max_steps: int
    accumulation: int


class _Batches(NamedTuple):
    """How indices become this rank's batches."""

    sampler: Any
    size: int
    drop_last: bool
    ranks: int
    rank: int


def order_of(plan: Plan, lengths: Any, over: Callable[[], bool]) -> dict[str, Any] | None:
    """Tells when the longest batches of this rank come.

    Args:
        plan: The training.
        lengths: Of the samples, by their place in the data set.
        over: Tells that the time is up; the epochs after that are left out.

    Returns:
        ``sampler`` (its class), ``until`` (the step up to which the order is known), ``first`` (padded lengths of the
        first steps, the longest micro-batch of each), ``longest`` (``[step, length, samples]`` of the longest batches,
        by step); None where the order is not known.
    """
    batches = _batches(plan.dataloader)
    if batches is None or len(lengths) != len(batches.sampler):
        return None
    import numpy as np

    first: list[int] = []
    longest: list[tuple[int, int, int]] = []
    until = plan.first_step
    for epoch, indices in _epochs(batches, plan, lengths):
        peaks, sizes = _of_rank(lengths[indices], batches)
        if not len(peaks):
            return None
        steps_per_epoch = -(-len(peaks) // plan.accumulation)
        begin = epoch * steps_per_epoch
        steps = begin + 1 + np.arange(len(peaks)) // plan.accumulation
        coming = (steps > plan.first_step) & ((steps <= plan.max_steps) | (plan.max_steps <= 0))
        steps, peaks, sizes = steps[coming], peaks[coming], sizes[coming]
        if len(steps):
            if not first:
                shown = steps < steps[0] + FIRST
                highest = np.zeros(FIRST, dtype=np.int64)
                np.maximum.at(highest, steps[shown] - steps[0], peaks[shown])
                first = [int(length) for length in highest if length]
            best = np.argsort(-(peaks * sizes), kind="stable")[:_EACH_EPOCH]
            longest += [(int(steps[place]), int(peaks[place]), int(sizes[place])) for place in best]
            until = int(steps[-1])
        if over() or (plan.max_steps > 0 and until >= plan.max_steps):
            break
    if not longest:
        return None
    longest = sorted(longest, key=lambda one: (-one[1] * one[2], one[0]))[:LONGEST]
    return {
        "sampler": type(batches.sampler).__name__,
        "until": until,
        "first": first,
        "longest": [list(one) for one in sorted(longest)],
    }


def _batches(dataloader: Any) -> _Batches | None:
    loader = getattr(dataloader, "base_dataloader", dataloader)
    batch_sampler: Any = getattr(loader, "batch_sampler", None)
    ranks, rank = 1, 0
    if type(dataloader).__name__ == "DataLoaderDispatcher":
        return None
    if type(batch_sampler).__name__ == "BatchSamplerShard":
        if batch_sampler.split_batches:
            return None
        ranks, rank = int(batch_sampler.num_processes), int(batch_sampler.process_index)
        batch_sampler = batch_sampler.batch_sampler
    # One of somebody's own makes batches in its own way.
    if not isinstance(batch_sampler, BatchSampler) or type(batch_sampler).__name__ != "BatchSampler":
        return None
    return _Batches(batch_sampler.sampler, int(batch_sampler.batch_size), bool(batch_sampler.drop_last), ranks, rank)


def _epochs(batches: _Batches, plan: Plan, lengths: Any) -> Iterator[tuple[int, Any]]:
    """Yields the numbers and the orders of the coming epochs, as far as they are known."""
    import numpy as np

    sampler = batches.sampler
    count = len(lengths)
    name = type(sampler).__name__
    begin = plan.first_step // max(-(-_count_of(batches, count) // plan.accumulation), 1)
    # What a generator has given before a training is resumed differs between versions; its later epochs do, too.
    generator = _copy(getattr(sampler, "generator", None)) if batches.ranks == 1 and not plan.first_step else None
    if name == "SequentialSampler" and isinstance(sampler, SequentialSampler):
        for epoch in range(begin, begin + _EPOCHS):
            yield epoch, np.arange(count)
    elif isinstance(sampler, RandomSampler):
        if sampler.replacement or sampler.num_samples != count:
            return
        if name == "SeedableRandomSampler":
            for epoch in range(begin, begin + _EPOCHS):
                yield epoch, _permutation(count, torch.Generator().manual_seed(_seed(sampler) + epoch))
        elif name == "RandomSampler" and generator is not None:
            yield 0, _permutation(count, generator)
    elif (
        name == "LengthGroupedSampler"
        and generator is not None
        and count <= _MOST_GROUPED
        and list(sampler.lengths) == lengths.tolist()
    ):
        yield 0, np.array(_grouped(sampler.lengths, sampler.batch_size, generator))


def _count_of(batches: _Batches, count: int) -> int:
    """Returns how many batches a rank has in an epoch."""
    whole = count // batches.size if batches.drop_last else -(-count // batches.size)
    return whole // batches.ranks if batches.drop_last else -(-whole // batches.ranks)


def _of_rank(lengths: Any, batches: _Batches) -> tuple[Any, Any]:
    """Returns the longest sample and the number of samples of each of a rank's batches."""
    import numpy as np

    size, total = batches.size, len(lengths)
    if total % size:
        if batches.drop_last:
            lengths = lengths[: total - total % size]
        else:
            # Of several ranks the last batch is filled up with the epoch's first samples.
            filler = lengths[: size - total % size] if batches.ranks > 1 else np.zeros(0, dtype=np.int64)
            pad = size - total % size - len(filler)
            lengths = np.concatenate([lengths, filler, np.zeros(pad, dtype=np.int64)])
    table = lengths.reshape(-1, size)
    if batches.ranks > 1:
        # What is left over when the batches do not go round is given from the beginning; it is no peak of its own.
        table = table[: len(table) - len(table) % batches.ranks][batches.rank :: batches.ranks]
    return table.max(axis=1, initial=0), (table > 0).sum(axis=1)


def _grouped(lengths: list[int], size: int, generator: Any) -> list[int]:
    from transformers import trainer_pt_utils

    group: Callable[..., list[int]] = trainer_pt_utils.get_length_grouped_indices
    return group(lengths, size, generator=generator)


def _permutation(count: int, generator: Any) -> Any:
    return torch.randperm(count, generator=generator).numpy()


def _seed(sampler: Any) -> int:
    return int(sampler.initial_seed)


def _copy(generator: Any) -> Any:
    """Returns a generator of our own in the same state; None where there is none, or not on the CPU."""
    if not isinstance(generator, torch.Generator) or generator.device.type != "cpu":
        return None
    copy = torch.Generator()
    copy.set_state(generator.get_state())
    return copy
