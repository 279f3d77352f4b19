"""Whether every number of an event fits where it is kept; one that does not would make the database refuse the rest."""

from __future__ import annotations

from typing import Final

from trainwatch import events

NAME_LIMIT: Final = 200
"""Characters of a name that is part of a key: what an index of Postgres takes, with room to spare."""

_LAYERS_LIMIT: Final = 4096
_SMALL: Final = 2**31 - 1
_LARGE: Final = 2**62


def plausible(event: events.AnyEvent) -> bool:
    """Tells whether an event can be kept as it is."""
    if not -1e12 <= event.time <= 1e12:  # nor NaN
        return False
    if isinstance(event, events.StepEnded):  # by far the most
        return 0 <= event.step < _LARGE
    step = getattr(event, "step", None)
    if step is not None and not 0 <= step < _LARGE:
        return False
    rank = getattr(event, "rank", None)
    if rank is not None and not 0 <= rank <= _SMALL:
        return False
    if isinstance(event, events.RunStarted):
        return (
            0 <= event.first_step < _LARGE
            and abs(event.max_steps) < _LARGE
            and 0 <= event.pid < _LARGE
            and 0 < event.world_size <= _SMALL
        )
    if isinstance(event, events.NonFiniteSeen):
        return all(
            0 <= count <= _SMALL for count in (event.micro_batches, event.parameter_count, event.in_a_row, event.recent)
        )
    if isinstance(event, events.LayersMeasured):
        return _fits(event)
    if isinstance(event, events.OutOfMemorySeen):
        return all(0 <= size < _LARGE for size in (event.requested, event.allocated, event.free))
    if isinstance(event, events.ProcessGone):
        return 0 <= event.pid < _LARGE and 0 <= event.oom_kills <= _SMALL
    if isinstance(event, events.FindingRaised):
        return len(event.rule) <= NAME_LIMIT and len(event.key) <= NAME_LIMIT
    return True


def _fits(event: events.LayersMeasured) -> bool:
    count = len(event.layers)
    return (
        0 < count <= _LAYERS_LIMIT
        and len(event.norms) == count
        and len(event.zeros) in (0, count)
        and len(event.updates) in (0, count)
        and all(len(name) <= NAME_LIMIT for name in event.layers)
    )
