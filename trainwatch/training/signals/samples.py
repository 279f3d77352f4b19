"""Which samples are in a batch, where the sampler tells.

A data loader runs ahead: its workers prefetch, accelerate holds one batch back to know which is the last, the Trainer
takes all micro-batches of a step at once, and a resumed training skips some. So what the sampler says is kept in order,
pass by pass, and matched with what training has used up; whatever does not fit that picture gives no indices at all.
"""

from __future__ import annotations

import operator
import sys
from collections.abc import Iterator
from types import FrameType
from typing import Any, Final

from torch.utils.data import DataLoader, IterableDataset
from torch.utils.data.dataloader import _BaseDataLoaderIter

from trainwatch.training.safety import Safety, harmless

_MOST: Final = 4096
"""Batches that are kept at most; a loader that runs further ahead of the training is not followed."""
_ORIGINAL: Final = "_trainwatch_original"


class _Pass:
    """One pass over the data, as far as it was asked for.

    Attributes:
        begun: It was asked for its first batch.
        followed: A data loader asked, and what lies between it and the sampler is understood.
        skipping: How many batches are still to be thrown away (a resumed training).
        first: Number of the first batch in ``batches``.
        batches: What the sampler gave, in order.
    """

    def __init__(self) -> None:
        self.begun = self.followed = False
        self.skipping = 0
        self.first = 0
        self.batches: list[Any] = []

    def forget(self, number: int) -> None:
        """Forgets the batches before this one."""
        done = min(number - self.first, len(self.batches))
        if done > 0:
            del self.batches[:done]
            self.first += done


class SampleTrail:
    """Follows the indices from the sampler to the training.

    Call :meth:`epoch_began` and :meth:`step_began` when these begin and :meth:`micro_batch_ended` after each
    micro-batch; :meth:`taken` then tells what is in the step's micro-batches. Nothing that training sees is changed:
    the class of the sampler object is exchanged for a subclass that listens, and back again by :meth:`remove`.

    Args:
        dataloader: The training's loader, as accelerate has prepared it.
        safety: Where our failures are counted.
        accumulation: Micro-batches of a step, as far as they are known to be always as many (the last step of an epoch
            may have fewer). Once a step had another number of them, what is counted is not what the data loader gives
            (a trainer that goes backward twice for each batch, say), and nothing is told any more.

    Attributes:
        missing: Why nothing can be told; empty when something can.
    """

    def __init__(self, dataloader: Any, safety: Safety, *, accumulation: int | None = None) -> None:
        self.safety = safety
        self.missing = "not available: the data loader could not be read"
        self._sampler: Any = None
        self._passes: list[_Pass] = []
        self._current: _Pass | None = None
        self._ended = 0
        self._step_began_at = 0
        self._accumulation = accumulation
        self._in_step = False
        self._attach(dataloader)

    @harmless
    def _attach(self, dataloader: Any) -> None:
        self.missing = _obstacle(dataloader)
        if self.missing:
            return
        sampler = dataloader.batch_sampler if dataloader.batch_sampler is not None else dataloader.sampler
        self.missing = "not available: the sampler does not let itself be followed"
        original = getattr(type(sampler), _ORIGINAL, type(sampler))
        try:
            sampler.__class__ = _listening(original, self)
        except TypeError:
            return  # slots, or no class of Python's
        self._sampler = sampler
        self.missing = ""

    @harmless
    def remove(self) -> None:
        """Gives the sampler its class back."""
        sampler, self._sampler = self._sampler, None
        if sampler is not None and getattr(type(sampler), "_trainwatch_trail", None) is self:
            sampler.__class__ = getattr(type(sampler), _ORIGINAL)

    # -- by the training -----------------------------------------------------------------------------------------

    def epoch_began(self) -> None:
        """An epoch begins; its data loader has not been asked yet."""
        self._passes.clear()
        self._current = None
        self._ended = self._step_began_at = 0
        self._in_step = False

    def step_began(self) -> None:
        """A step begins; its batches are loaded."""
        if self._in_step and self._accumulation is not None and self._in_this_step != self._accumulation:
            self._lose_track()
        self._in_step = True
        if self._current is None:
            # Whoever else iterates over the training data in mid-epoch comes later, or is done.
            self._current = self._passes[-1] if self._passes else None
            self._passes.clear()
        self._step_began_at = self._ended
        if self._current is not None:
            self._current.forget(self._ended)

    def micro_batch_ended(self) -> None:
        """A micro-batch has been trained on."""
        self._ended += 1
        if self._accumulation is not None and self._in_this_step > self._accumulation:
            self._lose_track()

    @property
    def _in_this_step(self) -> int:
        return self._ended - self._step_began_at

    def _lose_track(self) -> None:
        self.missing = "not available: a step had another number of backward passes than batches were loaded for it"
        self._passes.clear()
        if self._current is not None:
            self._current.followed = False
            self._current.batches.clear()

    def taken(self, number: int) -> list[int]:
        """Returns the indices of the samples of a micro-batch of the present step; none when they are not known.

        Args:
            number: Its place in the step, from 0.
        """
        return self._taken(number) or []

    @harmless
    def _taken(self, number: int) -> list[int]:
        current = self._current
        if self.missing or current is None or not current.followed:
            return []
        place = self._step_began_at + number - current.first
        if not 0 <= place < len(current.batches):
            return []
        batch = current.batches[place]
        indices = batch if isinstance(batch, list | tuple) else [batch]
        return [index.__index__() for index in indices if hasattr(index, "__index__")]  # keys may be of any kind

    # -- by the sampler ------------------------------------------------------------------------------------------

    @harmless
    def follow(self, batches: Iterator[Any]) -> Iterator[Any]:
        """Returns an iterator that passes on what a sampler gives, and keeps it."""
        return self._pass_on(batches, _Pass())

    def _pass_on(self, batches: Iterator[Any], seen: _Pass) -> Iterator[Any]:
        for batch in batches:
            if not seen.begun:
                self._begin(seen, sys._getframe(1))
            if seen.followed:
                self._keep(seen, batch)
            yield batch

    @harmless
    def _begin(self, seen: _Pass, asking: FrameType) -> None:
        seen.begun = True
        skipping = _skipping(asking)
        if self.missing or skipping is None or self._current is not None:
            return  # of no use, or somebody else's pass
        seen.followed, seen.skipping = True, skipping
        self._passes.append(seen)

    @harmless
    def _keep(self, seen: _Pass, batch: Any) -> None:
        if seen.skipping:
            seen.skipping -= 1
        elif len(seen.batches) == _MOST:
            seen.followed = False
            seen.batches.clear()
        else:
            # The sampler may go on with its list.
            seen.batches.append(list(batch) if isinstance(batch, list) else batch)


def _obstacle(dataloader: Any) -> str:
    kind = type(dataloader).__name__
    loader = getattr(dataloader, "base_dataloader", dataloader)
    if not isinstance(loader, DataLoader):
        return f"not available: {kind} is not torch's data loader"
    if hasattr(loader, "state_dict"):
        # It saves the state of its sampler's iterator, which ours does not have: resumed, other samples would come.
        return f"not available: {type(loader).__name__} keeps the state of its sampler (use_stateful_dataloader)"
    if isinstance(loader.dataset, IterableDataset):
        return "not available: an iterable data set has no sampler"
    if kind == "DataLoaderDispatcher":
        return "not available: rank 0 loads the batches of all ranks (dispatch_batches)"
    if not getattr(loader, "in_order", True):
        return "not available: the data loader does not keep the order (in_order=False)"
    return ""


def _listening(original: type, trail: SampleTrail) -> type:
    def iterate(self: Any) -> Iterator[Any]:
        batches: Iterator[Any] = iter(original.__iter__(self))  # type: ignore[attr-defined]
        return trail.follow(batches) or batches

    def reduce(self: Any, protocol: Any) -> Any:
        # Pickled or copied it is what it was, and whoever reads it back needs no TrainWatch.
        copy: Any = object.__new__(original)
        copy.__dict__.update(self.__dict__)
        return operator.getitem, ([copy], 0)

    return type(
        original.__name__,
        (original,),
        {
            "__module__": original.__module__,
            "__qualname__": original.__qualname__,
            "__doc__": original.__doc__,
            "__iter__": iterate,
            "__reduce_ex__": reduce,
            _ORIGINAL: original,
            "_trainwatch_trail": trail,
        },
    )


def _skipping(asking: FrameType) -> int | None:
    """Returns how many batches whoever asks the sampler throws away; None when it is nobody we know."""
    skipped = 0
    owner = asking.f_locals.get("self")
    if type(owner).__name__ == "SkipBatchSampler" and asking.f_code.co_name == "__iter__":
        skipped = int(owner.skip_batches)  # type: ignore[union-attr]
        above = asking.f_back
        if above is None:
            return None
        owner, asking = above.f_locals.get("self"), above
    by_loader = asking.f_code.co_name == "_next_index" and isinstance(owner, _BaseDataLoaderIter)
    return skipped if by_loader else None
