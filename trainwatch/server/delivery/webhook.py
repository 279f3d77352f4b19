"""The signed webhook: one JSON document, described by ``docs/schemas/webhook-1.json``."""

from __future__ import annotations

import hmac
import json
from hashlib import sha256
from typing import Any, Final

from trainwatch.server.delivery import http
from trainwatch.server.delivery.kinds import Context, Kind
from trainwatch.server.delivery.notice import Message, Notice
from trainwatch.server.delivery.retry import Answer
from trainwatch.server.http.spelling import spelled

DELIVERY: Final = "X-TrainWatch-Delivery"
SIGNATURE: Final = "X-TrainWatch-Signature"
_KEY_LENGTHS: Final = (16, 200)


class Webhook(Kind):
    """Posts JSON to an address of the user's own, signed with a key that both know."""

    name = "webhook"

    def check(self, secret: dict[str, Any]) -> None:
        """See :meth:`Kind.check`."""
        http.parse(str(secret.get("url", "")))
        key = str(secret.get("key", ""))
        if not _KEY_LENGTHS[0] <= len(key) <= _KEY_LENGTHS[1]:
            raise ValueError("A webhook needs a key of 16 to 200 characters, to sign with.")

    def mask(self, secret: dict[str, Any]) -> str:
        """See :meth:`Kind.mask`."""
        return http.masked(str(secret.get("url", "")))

    def send(self, secret: dict[str, Any], message: Message, context: Context) -> Answer:
        """See :meth:`Kind.send`."""
        body = json.dumps(document(message), ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode()
        headers = {
            "Content-Type": "application/json; charset=utf-8",
            DELIVERY: message.id,
            SIGNATURE: sign(str(secret["key"]), int(context.now), body),
        }
        return http.post(str(secret["url"]), body, headers, guard=context.guard, now=context.now)


def sign(key: str, timestamp: int, body: bytes) -> str:
    """Signs a body together with the moment, so that a message that was overheard is of no use later.

    Args:
        key: What sender and receiver share.
        timestamp: Unix seconds.
        body: The body as it travels.
    """
    signature = hmac.new(key.encode(), b"%d." % timestamp + body, sha256).hexdigest()
    return f"t={timestamp},v1={signature}"


def document(message: Message) -> dict[str, Any]:
    """Returns the body as plain values; NaN and ±Infinity are strings."""
    found: dict[str, Any] = spelled(
        {
            "version": 1,
            "delivery": message.id,
            "kind": message.kind,
            "created_at": message.created_at,
            "text": message.line,
            "alerts": [_alert(notice) for notice in message.notices],
        }
    )
    return found


def _alert(notice: Notice) -> dict[str, Any]:
    run = notice.run
    return {
        "delivery": notice.delivery,
        "id": notice.alert,
        "change": notice.change,
        "severity": notice.severity,
        "rule": notice.rule,
        "key": notice.key,
        "rank": notice.rank,
        "step": notice.step,
        "first_step": notice.first_step,
        "time": notice.time,
        "sentence": notice.sentence,
        "parameters": dict(notice.parameters),
        "run": {
            "id": run.id,
            "name": run.name,
            "project": run.project,
            "state": run.state,
            "step": run.step,
            "max_steps": run.max_steps,
            "world_size": run.world_size,
            "last_loss": run.loss,
            "loss": {"step": run.line[0], "value": run.line[1]},
            "url": run.url or None,
        },
    }
