"""How much somebody may ask for: token buckets in memory, each server its own.

In memory, since a count shared by all replicas would cost a write for every request; N replicas allow N times as much.
"""

from __future__ import annotations

import ipaddress
import math
import threading
from collections import Counter, OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final, Generic, TypeVar

from trainwatch.server.access.principal import OPEN, Principal, Scope
from trainwatch.server.settings import Settings

_MOST: Final = 10_000
MOST_STREAMS: Final = 1000
"""Live streams that all with the same token, or on this machine where there is none, may have at the same time."""
_T = TypeVar("_T")


class Newest(Generic[_T]):
    """A dictionary that forgets what was not asked for longest, so that nobody can fill the memory with names.

    Args:
        most: How much it keeps.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._items: OrderedDict[str, _T] = OrderedDict()

    def get(self, key: str) -> _T | None:
        """Returns what is kept under a key, or None."""
        found = self._items.get(key)
        if found is not None:
            self._items.move_to_end(key)
        return found

    def put(self, key: str, value: _T) -> None:
        """Keeps a value."""
        self._items[key] = value
        self._items.move_to_end(key)
        if len(self._items) > self._most:
            self._items.popitem(last=False)

    def drop(self, key: str) -> None:
        """Forgets a value, if there is one."""
        self._items.pop(key, None)

    def clear(self) -> None:
        """Forgets all."""
        self._items.clear()


class Buckets:
    """One bucket for each key: it fills at a steady rate up to a burst, and what is done empties it.

    Args:
        rate: Units that come back in a second; 0: no limit.
        burst: Units that a full bucket holds.
    """

    def __init__(self, rate: float, burst: float) -> None:
        self._rate, self._burst = rate, burst
        self._levels: Newest[tuple[float, float]] = Newest(_MOST)
        self._lock = threading.Lock()  # shipments are charged from their own threads

    def wait(self, key: str, now: float, needed: float = 0.0) -> float:
        """Returns the seconds until `needed` units are there; 0 when they are.

        Args:
            key: Whose bucket.
            now: Seconds of a clock that never goes back.
            needed: Units; 0 asks only that it owes nothing.
        """
        if not self._rate:
            return 0.0
        with self._lock:
            return max(0.0, (min(needed, self._burst) - self._level(key, now)) / self._rate)

    def charge(self, key: str, now: float, units: float) -> None:
        """Takes units, also more than there are: what a shipment costs is known only when it was expanded."""
        if self._rate:
            with self._lock:
                self._levels.put(key, (self._level(key, now) - units, now))

    def take(self, key: str, now: float) -> float:
        """Takes one unit if it is there.

        Returns:
            0, or the seconds until it will be there; nothing was taken then.
        """
        wait = self.wait(key, now, 1.0)
        if not wait:
            self.charge(key, now, 1.0)
        return wait

    def _level(self, key: str, now: float) -> float:
        level, at = self._levels.get(key) or (self._burst, now)
        return min(self._burst, level + max(0.0, now - at) * self._rate)


class Guesses:
    """Counts wrong tokens by the address that they come from.

    The same wrong token again is no new guess. So a cluster whose agents all keep the token of yesterday does not lock
    out those behind the same address who have the right one, and somebody who tries one after the other stops soon.

    Args:
        burst: Different wrong tokens that an address may show at once.
        every: Seconds until it may show another one.
    """

    def __init__(self, burst: int = 10, every: float = 6.0) -> None:
        self._buckets = Buckets(1.0 / every, burst)
        self._tried: Newest[OrderedDict[str, None]] = Newest(_MOST)
        self._burst = burst
        self._lock = threading.Lock()

    def wait(self, address: str, digest: str, now: float) -> float:
        """Returns the seconds until a guess from this address is looked at; 0 when it is at once.

        Args:
            address: The client's.
            digest: Of what it shows.
            now: Seconds of a clock that never goes back.
        """
        with self._lock:
            tried = self._tried.get(place_of(address))
        if tried is not None and digest in tried:
            return 0.0
        return self._buckets.wait(place_of(address), now, 1.0)

    def wrong(self, address: str, digest: str, now: float) -> None:
        """Notes that what was shown opens nothing."""
        place = place_of(address)
        with self._lock:
            tried = self._tried.get(place) or OrderedDict()
            if digest in tried:
                return
            tried[digest] = None
            if len(tried) > self._burst:
                tried.popitem(last=False)
            self._tried.put(place, tried)
        self._buckets.charge(place, now, 1.0)


def place_of(address: str) -> str:
    """Returns what stands for a client: its IPv4 address, or the /64 of its IPv6 address, which is one customer's."""
    try:
        found = ipaddress.ip_address(address)
    except ValueError:
        return address
    if isinstance(found, ipaddress.IPv6Address):
        if found.ipv4_mapped is not None:
            return str(found.ipv4_mapped)
        return str(ipaddress.ip_network((found, 64), strict=False))
    return address


def seconds(wait: float) -> str:
    """Returns a wait as ``Retry-After`` has it: whole seconds, at least one."""
    return str(max(1, math.ceil(wait)))


class Limits:
    """What one token, or one session of a browser, may ask of this server.

    Args:
        settings: The server's settings.
    """

    def __init__(self, settings: Settings) -> None:
        rate, size = settings.requests_per_second, settings.ingest_bytes_per_second
        self._requests = Buckets(rate, 2 * rate)
        self._streams: Counter[str] = Counter()
        # Never less than the largest shipment that is taken.
        self._bytes = Buckets(size, max(2.0 * size, settings.ingest_expanded_bytes))

    def wait(self, principal: Principal, scope: Scope | None, now: float) -> float:
        """Counts a request.

        Args:
            principal: Who asks.
            scope: What for.
            now: Seconds of a clock that never goes back.

        Returns:
            0, or the seconds until it may be asked again.
        """
        if principal is OPEN:
            return 0.0
        owed = self._bytes.wait(principal.key, now) if scope == "ingest" else 0.0
        return owed or self._requests.take(principal.key, now)

    def shipped(self, principal: Principal, size: int, now: float) -> None:
        """Counts a shipment, in bytes once expanded: what it costs to take it, or to see that it is too large."""
        if principal is not OPEN:
            self._bytes.charge(principal.key, now, size)

    @contextmanager
    def streaming(self, principal: Principal) -> Iterator[None]:
        """Counts a live stream as long as it lasts; called in the event loop."""
        self._streams[principal.key] += 1
        try:
            yield
        finally:
            self._streams[principal.key] -= 1
            if not self._streams[principal.key]:
                del self._streams[principal.key]

    def may_stream(self, principal: Principal) -> bool:
        """Tells whether there may be another live stream."""
        return self._streams[principal.key] < MOST_STREAMS

    def owed(self, principal: Principal, now: float) -> float:
        """Returns the seconds until another large shipment is expanded; 0 when it is at once."""
        return 0.0 if principal is OPEN else self._bytes.wait(principal.key, now)
