"""How much memory a rank may use on a device: what is there, less what others hold and what the rank cannot use.

On a CPU the machine or a control group draws the line, around all that lives in it: what its use exceeds the rank's own
resident memory by belongs to others (and where the rank's libraries are charged to somebody else, it is negative). On
an accelerator it is the card, less what is used on it besides the rank's allocator: other processes, and the rank's own
CUDA context. What the allocator holds in reserve it can give back, so that does not count.
"""

from __future__ import annotations

from collections import deque
from typing import Any, Final

from trainwatch.events import RunStarted, Sampled, StepEnded

# Limits move slowly, and several rules follow them: of four samples a second one is enough.
_SAMPLE_SECONDS: Final = 0.9
# Two readings of one moment are some milliseconds apart, and a step may take and free gigabytes in between.
_SAMPLES: Final = 9

_Place = tuple["int | None", str]


class Limits:
    """Follows what limits each rank's memory on each device; takes an event in constant time."""

    def __init__(self) -> None:
        self._capacity: dict[_Place, float] = {}
        self._reserved: dict[_Place, float] = {}
        self._besides: dict[_Place, deque[float]] = {}
        self._resident: dict[int | None, float] = {}
        self._limits: dict[_Place, float] = {}
        self._sampled_at: dict[int | None, float] = {}

    def observe(self, event: Any, rank: int | None) -> None:
        """Takes the next event.

        Args:
            event: Steps and samples tell something; others are passed over.
            rank: The rank whose journal holds it, or that a sample is about.
        """
        kind = type(event)
        if kind is StepEnded:
            for device, values in event.devices.items():
                if "memory/capacity" in values:
                    self._set_capacity((rank, device), values["memory/capacity"])
                reserved = values.get("memory/reserved")
                if reserved is not None:
                    self._reserved[rank, device] = reserved
        elif kind is Sampled:
            last = self._sampled_at.get(rank)
            if last is None or not 0.0 <= event.time - last < _SAMPLE_SECONDS:
                self._sampled_at[rank] = event.time
                self._sampled(event, rank)
        elif kind is RunStarted:
            self._forget(rank)

    def limit(self, rank: int | None, device: str) -> float | None:
        """Returns the bytes that a rank's own use on a device may reach; None when nothing is known."""
        place = (rank, device)
        limit = self._limits.get(place)
        if limit is not None:
            return limit
        capacity = self._capacity.get(place)
        if capacity is None:
            return None
        besides = self._besides.get(place)
        limit = capacity - (sorted(besides)[len(besides) // 2] if besides else 0.0)
        self._limits[place] = limit
        return limit

    def capacity(self, rank: int | None, device: str) -> float | None:
        """Returns a device's memory, whoever uses it; None when it is not known."""
        return self._capacity.get((rank, device))

    def _sampled(self, event: Sampled, rank: int | None) -> None:
        for device, values in event.devices.items():
            used, capacity = values.get("memory/device_used"), values.get("memory/capacity")
            if capacity is not None:
                self._set_capacity((rank, device), capacity)
            if device == "host":
                self._host(used, capacity)
                continue
            if device == "cpu":
                resident = values.get("memory/resident")
                if resident is not None:
                    self._resident[rank] = resident
            elif used is not None:
                # Without an allocator that tells what it holds, use on the device is the rank's use.
                reserved = self._reserved.get((rank, device))
                if reserved is not None:
                    self._note((rank, device), max(used - reserved, 0.0))

    def _host(self, used: float | None, capacity: float | None) -> None:
        for rank, resident in self._resident.items():
            place = (rank, "cpu")
            # The node's line: the rank's own capacity is the same one, and is told more seldom.
            if capacity is not None:
                self._set_capacity(place, capacity)
            if used is not None:
                self._note(place, used - resident)

    def _set_capacity(self, place: _Place, capacity: float) -> None:
        if capacity > 0 and capacity - capacity == 0.0 and self._capacity.get(place) != capacity:
            self._capacity[place] = capacity
            self._limits.pop(place, None)

    def _note(self, place: _Place, besides: float) -> None:
        if besides - besides != 0.0:
            return
        if place not in self._besides:
            self._besides[place] = deque(maxlen=_SAMPLES)
        self._besides[place].append(besides)
        self._limits.pop(place, None)

    def _forget(self, rank: int | None) -> None:
        for of in (self._capacity, self._reserved, self._besides, self._limits):
            for place in [place for place in of if place[0] == rank]:
                del of[place]
        self._resident.pop(rank, None)
        self._sampled_at.pop(rank, None)


class MappedFiles:
    """By how much the pages of mapped files have grown in one process.

    A data set on disk that is mapped and read fills the resident memory and ends nothing: the kernel takes its pages
    back. What was there at first (libraries) stays in, as it does in what is known of the limit.
    """

    __slots__ = ("_first",)

    def __init__(self) -> None:
        self._first: float | None = None

    def grown(self, mapped: float | None) -> float:
        """Returns the growth since the first reading, in bytes; 0 where nothing is known.

        Args:
            mapped: The newest ``memory/mapped``; None or NaN where it was not read.
        """
        if mapped is None or not mapped >= 0.0:
            return 0.0
        if self._first is None:
            self._first = mapped
        return max(mapped - self._first, 0.0)
