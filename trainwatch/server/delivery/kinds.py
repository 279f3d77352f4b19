"""What every kind of channel can do. A new kind is a file of its own, an entry in ``registry.py``, and a test."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar

from trainwatch.server.delivery.addresses import Guard
from trainwatch.server.delivery.notice import Message
from trainwatch.server.delivery.retry import Answer


@dataclass(frozen=True, slots=True)
class Context:
    """With what a message is sent.

    Attributes:
        guard: Whom it may reach.
        now: The server's clock.
    """

    guard: Guard
    now: float


class Kind(ABC):
    """One kind of channel.

    Attributes:
        name: As it is stored, and as the API calls it.
    """

    name: ClassVar[str]

    @abstractmethod
    def check(self, secret: dict[str, Any]) -> None:
        """Checks what a channel is set up with.

        Args:
            secret: Its address and key.

        Raises:
            ValueError: It cannot work; the message says why, in a sentence without the secret.
        """

    @abstractmethod
    def mask(self, secret: dict[str, Any]) -> str:
        """Returns as much of the address as may be shown."""

    @abstractmethod
    def send(self, secret: dict[str, Any], message: Message, context: Context) -> Answer:
        """Sends a message and says what became of it. Takes at most :data:`~.http.TOTAL_SECONDS` seconds or so."""
