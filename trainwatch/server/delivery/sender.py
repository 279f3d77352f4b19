"""Sends what the outbox holds: leases a delivery, sends it, writes down what became of it.

The cycle of one delivery is three steps, each of which may be the last one of this process:

1. *lease*: a transaction says that it is ours for a while, and counts the attempt;
2. *send*: the message goes out;
3. *record*: a transaction says what became of it.

Who dies before 2 has sent nothing, who dies between 2 and 3 has sent without saying so. In either case the lease runs
out, and another sends it under the same id.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from trainwatch.server.db import Database
from trainwatch.server.delivery.addresses import Guard
from trainwatch.server.delivery.kinds import Context, Kind
from trainwatch.server.delivery.notice import Message, notices
from trainwatch.server.delivery.quiet import quiet_until
from trainwatch.server.delivery.registry import KINDS
from trainwatch.server.delivery.retry import GIVE_UP_SECONDS, Answer, delay
from trainwatch.server.store import channels as channel_store
from trainwatch.server.store import deliveries, delivery_record
from trainwatch.server.store.deliveries import Leased

if TYPE_CHECKING:
    from trainwatch.server.services import Services
    from trainwatch.server.settings import Settings

logger = logging.getLogger(__name__)

LEASE_SECONDS: Final = 30.0
"""Longer than any kind of channel may take to send, so that nobody sends what is still being sent."""
EVERY_SECONDS: Final = 1.0
KEEP_SECONDS: Final = 30 * 24 * 3600.0
"""How long the record of what was delivered is kept."""
PRUNE_EVERY_SECONDS: Final = 3600.0
_AT_ONCE: Final = 8
_GIVE_UP_EVERY_SECONDS: Final = 30.0


@dataclass(frozen=True, slots=True)
class Tried:
    """What became of one attempt.

    Attributes:
        delivery: The delivery id.
        answer: What the receiver said.
        seconds: How long it took.
    """

    delivery: str
    answer: Answer
    seconds: float


class Sender:
    """Sends deliveries, a few channels at once, each channel's one after the other.

    Args:
        database: Where the outbox is.
        clock: The server's clock.
        guard: Whom messages may reach.
        public_url: Where people reach the server; empty: messages have no links.
        kinds: The kinds of channels.
        lease_seconds: For how long a delivery is leased.
    """

    def __init__(
        self,
        database: Database,
        clock: Callable[[], float],
        *,
        guard: Guard,
        public_url: str = "",
        kinds: Mapping[str, Kind] = KINDS,
        lease_seconds: float = LEASE_SECONDS,
    ) -> None:
        self._database = database
        self._clock = clock
        self._guard = guard
        self._public_url = public_url.rstrip("/")
        self._kinds = kinds
        self._lease_seconds = lease_seconds
        self._pool: ThreadPoolExecutor | None = None
        self._busy: set[int] = set()
        self._closing = False
        self._gave_up_at = -_GIVE_UP_EVERY_SECONDS
        # Guards what channels are being sent to: the job and the threads that send change it.
        self._lock = threading.Lock()

    def start(self) -> None:
        """Looks what is due and sends it in the background: a receiver that is slow keeps no other waiting."""
        now = self._clock()
        with self._database.read() as connection:
            due = deliveries.due_channels(connection, now)
        with self._lock:
            if self._closing:
                return
            if self._pool is None:
                self._pool = ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="delivery")
            for channel in due:
                if channel not in self._busy:
                    self._busy.add(channel)
                    self._pool.submit(self._work, channel)
        self._give_up(now)

    def close(self) -> None:
        """Takes nothing up any more, and waits for what is being sent."""
        with self._lock:
            self._closing = True
            pool, self._pool = self._pool, None
        if pool is not None:
            pool.shutdown(wait=True, cancel_futures=True)

    def drain(self, channel: int) -> int:
        """Sends what a channel has due, one after the other; returns how many attempts it made."""
        count = 0
        while not self._closing:
            leased = self.lease(channel)
            if leased is None:
                return count
            self.attempt(leased)
            count += 1
        return count

    def lease(self, channel: int) -> Leased | None:
        """Takes the next delivery of a channel; None when there is none now."""
        with self._database.write() as connection:
            return deliveries.claim(
                connection,
                channel,
                now=self._clock(),
                lease_seconds=self._lease_seconds,
                quiet_until=quiet_until,
            )

    def attempt(self, leased: Leased) -> Tried:
        """Sends a delivery that was leased, and writes down what became of it."""
        at, begun = self._clock(), time.monotonic()
        answer = self.send(leased, at)
        seconds = time.monotonic() - begun
        self.record(leased, answer, at=at, seconds=seconds)
        return Tried(leased.uuid, answer, seconds)

    def send(self, leased: Leased, now: float) -> Answer:
        """Sends a delivery, and never raises."""
        try:
            kind = self._kinds.get(leased.channel.kind)
            if kind is None:
                return Answer("disable", error=f"This server knows no channel of the kind {leased.channel.kind!r}.")
            message = self._message(leased)
            if not message.notices and message.kind != "test":
                return Answer("refused", error="The runs that it tells of were deleted.")
            return kind.send(leased.channel.secret, message, Context(self._guard, now))
        except Exception as error:
            # A mistake of ours with one message: the others are to go out, and this one is tried again.
            logger.exception("could not send delivery %s", leased.uuid)
            return Answer("retry", error=f"TrainWatch could not send it ({type(error).__name__}); its log says more.")

    def record(self, leased: Leased, answer: Answer, *, at: float, seconds: float) -> None:
        """Writes down what became of an attempt."""
        now = self._clock()
        is_test = leased.change == "test"
        with self._database.write() as connection:
            delivery_record.add_attempt(
                connection, leased.id, at=at, seconds=seconds, status=answer.status, error=answer.error
            )
            if answer.verdict == "sent":
                deliveries.mark_sent(connection, leased, now)
            elif answer.verdict == "retry" and not is_test:
                due = now + delay(leased.attempts, answer.retry_after)
                deliveries.mark_waiting(connection, leased, answer.error, due)
            else:
                deliveries.mark_failed(connection, leased, answer.error, now)
                if answer.verdict == "disable" and not is_test:
                    channel_store.disable(connection, leased.channel.id, answer.error, now)
        if answer.verdict == "disable":
            logger.warning("channel %r cannot be delivered to: %s", leased.channel.name, answer.error)

    def test(self, project: str, channel: int) -> Tried | None:
        """Sends a test message now, also when the channel is disabled; None when there is no such channel."""
        with self._database.write() as connection:
            row = channel_store.get(connection, project, channel)
            if row is None:
                return None
            leased = deliveries.add_test(connection, row, self._clock(), self._lease_seconds)
        return self.attempt(leased)

    def _message(self, leased: Leased) -> Message:
        language = leased.channel.language
        ids = [row.run for row in leased.alerts if row.run is not None]
        with self._database.read() as connection:
            runs = delivery_record.run_facts(connection, ids)
        return Message(
            id=leased.uuid,
            kind=leased.change if leased.change in ("digest", "test") else "alert",
            created_at=leased.created_at,
            language=language,
            channel=leased.channel.name,
            settings_url=f"{self._public_url}/settings/alerts" if self._public_url else "",
            notices=notices(leased.alerts, runs, language=language, public_url=self._public_url),
        )

    def _work(self, channel: int) -> None:
        try:
            self.drain(channel)
        except Exception:
            # The database may be away. The lease runs out, and it is tried again.
            logger.exception("could not deliver to channel %d", channel)
        finally:
            with self._lock:
                self._busy.discard(channel)

    def _give_up(self, now: float) -> None:
        if now - self._gave_up_at < _GIVE_UP_EVERY_SECONDS:
            return
        self._gave_up_at = now
        with self._database.read() as connection:
            old = deliveries.is_anything_old(connection, now, GIVE_UP_SECONDS)
        if old:
            with self._database.write() as connection:
                deliveries.give_up(connection, now, GIVE_UP_SECONDS)


def make_sender(settings: Settings, database: Database, clock: Callable[[], float]) -> Sender:
    """Makes the sender that the settings ask for."""
    return Sender(database, clock, guard=Guard(settings.alert_private), public_url=settings.public_url)


def run(services: Services) -> None:
    """Sends what is due; the periodic job."""
    with suppress(RuntimeError):  # the pool is closed while the server stops
        services.delivery.start()


def prune(services: Services) -> None:
    """Forgets what was delivered long ago; the periodic job."""
    with services.database.write() as connection:
        delivery_record.prune(connection, services.clock() - KEEP_SECONDS)
