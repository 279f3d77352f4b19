"""What becomes of a message that is not taken: when it is tried again, and when it is given up."""

from __future__ import annotations

import json
import socket
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timezone
from email.utils import format_datetime
from pathlib import Path

import pytest

import trainwatch
from tests.patience import PATIENCE
from tests.server.receiver import Answered, Receiver, receiving
from tests.server.telling import NOON, Telling, finding
from trainwatch.server.delivery.addresses import Guard
from trainwatch.server.delivery.http import post
from trainwatch.server.delivery.retry import delay, judge, wish
from trainwatch.server.store import channels, delivery_record

SCHEMA = json.loads((Path(trainwatch.__file__).parent.parent / "docs/schemas/webhook-1.json").read_text("utf-8"))
HOUR = 3600.0


def test_what_fails_is_tried_again_under_the_same_id(telling: Telling, receiver: Receiver) -> None:
    telling.channel(receiver.url)
    receiver.script = [Answered(503, body=b"busy\n now"), Answered(500, body=b"")]
    telling.tell(finding(1))
    telling.send()
    [row] = telling.rows()
    assert (row.state, row.reason) == ("waiting", "The receiver answered 503: busy now")
    assert 4 <= row.due_at - telling.now <= 6
    assert telling.send(3) == 0, "not yet"
    assert telling.send(3) == 1
    assert 8 <= telling.rows()[0].due_at - telling.now <= 12, "longer each time"
    assert telling.send(12) == 1
    assert len({taken.delivery for taken in receiver.taken}) == 1
    with telling.database.read() as connection:
        [found] = delivery_record.listed(connection)
    assert [(one.status, one.error) for one in found.attempts] == [
        (503, "The receiver answered 503: busy now"),
        (500, "The receiver answered 500."),
        (200, ""),
    ]
    assert found.delivery.state == "sent"


def test_a_receiver_that_is_away_is_tried_again(telling: Telling, receiver: Receiver) -> None:
    with receiving() as gone:
        url = gone.url
    telling.channel(url)
    telling.tell(finding(1))
    telling.send()
    [row] = telling.rows()
    assert row.state == "waiting"
    assert row.reason.startswith("The receiver cannot be reached")
    assert url not in row.reason


def test_a_receiver_says_when_to_come_again(telling: Telling, receiver: Receiver) -> None:
    telling.channel(receiver.url)
    date = format_datetime(datetime.fromtimestamp(NOON + 300, timezone.utc), usegmt=True)
    receiver.script = [Answered(429, {"Retry-After": "120"}), Answered(503, {"Retry-After": date})]
    telling.tell(finding(1))
    telling.send()
    assert 120 <= telling.rows()[0].due_at - telling.now <= 121
    assert telling.send(119) == 0
    assert telling.send(2) == 1
    assert 300 <= telling.rows()[0].due_at - NOON <= 301
    telling.send(180)
    assert telling.states() == ["sent"]


@pytest.mark.parametrize("status", [301, 401, 403, 404, 410])
def test_what_cannot_work_disables_the_channel_and_says_why(telling: Telling, receiver: Receiver, status: int) -> None:
    channel = telling.channel(receiver.url)
    receiver.script = [Answered(status, {"Location": "/elsewhere"}, b"no such hook")]
    telling.tell(finding(1), finding(2, key="second"))
    assert telling.send() == 1
    row = telling.row_of(channel)
    assert not row.enabled
    assert row.disabled_reason.startswith(f"The receiver answered {status}")
    assert telling.states() == ["failed", "waiting"]
    assert telling.rows()[1].reason == "the channel is disabled"
    telling.tell(finding(3, key="third"))
    assert telling.rows()[2].state == "suppressed"
    assert "disabled" in telling.rows()[2].reason
    with telling.database.write() as connection:
        channels.change(connection, channel, {"enabled": True, "disabled_reason": ""}, telling.now)
    telling.send()
    assert telling.states() == ["failed", "sent", "suppressed"]


def test_a_message_that_is_refused_leaves_the_channel_as_it_is(telling: Telling, receiver: Receiver) -> None:
    channel = telling.channel(receiver.url)
    receiver.script = [Answered(400, body=b"invalid_payload")]
    telling.tell(finding(1), finding(2, key="second"))
    telling.send()
    assert telling.states() == ["failed", "sent"]
    assert telling.row_of(channel).enabled


@contextmanager
def answering(answer: bytes, end: str) -> Iterator[str]:
    """Answers one request with these bytes, and then stalls, closes the connection or resets it."""
    done = threading.Event()

    def answer_once(listener: socket.socket) -> None:
        connection, _ = listener.accept()
        with connection:
            connection.recv(65536)
            connection.sendall(answer)
            if end == "reset":
                time.sleep(0.1)  # what was sent is to be read before
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            elif end == "stalled":
                done.wait(PATIENCE)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=answer_once, args=(listener,))
        thread.start()
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}/hook"
        finally:
            done.set()
            thread.join(PATIENCE)


@pytest.mark.parametrize("end", ["stalled", "cut", "reset"])
@pytest.mark.parametrize(
    ("status", "verdict", "error"),
    [
        (200, "sent", ""),
        (404, "disable", "The receiver answered 404: no"),
        (503, "retry", "The receiver answered 503: no"),
    ],
)
def test_what_a_receiver_answered_counts_also_when_it_does_not_say_it_to_the_end(
    end: str, status: int, verdict: str, error: str
) -> None:
    for length in (b"Content-Length: 9\r\n\r\nno", b"Transfer-Encoding: chunked\r\n\r\n2\r\nno\r\n"):
        with answering(b"HTTP/1.1 %d What\r\n" % status + length, end) as url:
            found = post(url, b"{}", {}, guard=Guard(["127.0.0.1"]), now=NOON, seconds=0.5)
        assert (found.verdict, found.status) == (verdict, status)
        # What was on the way when the connection was reset may be lost.
        assert found.error == error or (end == "reset" and found.error == error.replace(": no", ".")), found.error


def test_a_receiver_that_says_no_status_is_tried_again() -> None:
    with answering(b"HTTP/1.1 2", "cut") as url:
        assert post(url, b"{}", {}, guard=Guard(["127.0.0.1"]), now=NOON, seconds=0.5).verdict == "retry"


def test_after_a_day_it_is_given_up_with_the_reason(telling: Telling, receiver: Receiver) -> None:
    telling.channel(receiver.url)
    telling.tell(finding(1))
    receiver.script = [Answered(503, body=b"busy")] * 200
    while telling.now < NOON + 23.8 * HOUR:
        telling.send(600)
    assert telling.states() == ["waiting"]
    telling.now = NOON + 24.1 * HOUR
    telling.send()  # one more attempt, if it is due just now
    telling.sender.start()
    telling.sender.close()
    [row] = telling.rows()
    assert (row.state, row.lease_until) == ("failed", 0.0)
    assert row.reason == "It could not be delivered within 24 hours: The receiver answered 503: busy"


def test_the_table_of_answers() -> None:
    assert [
        judge(status) for status in (200, 204, 302, 400, 401, 404, 408, 410, 413, 422, 425, 429, 500, 503, 599)
    ] == [
        "sent",
        "sent",
        "disable",
        "refused",
        "disable",
        "disable",
        "retry",
        "disable",
        "refused",
        "refused",
        "retry",
        "retry",
        "retry",
        "retry",
        "retry",
    ]
    assert [round(delay(attempts, chance=0.5)) for attempts in (1, 2, 3, 20)] == [5, 10, 20, 1800]
    assert (delay(3, chance=0.0), delay(3, chance=1.0)) == pytest.approx((16.0, 24.0))
    assert [wish(text, NOON) for text in ("7", "0.5", "", None, "soon", "-1")] == [7.0, 0.5, None, None, None, None]
    assert wish("Mon, 01 Jan 99999999999999999999 00:00:00 GMT", NOON) is None
    assert delay(1, 10**9, chance=0.0) == 3600.0, "a receiver cannot put a message off for ever"
