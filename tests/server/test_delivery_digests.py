"""Many messages at once: one that tells of all, and what waits meanwhile."""

from __future__ import annotations

import json

from sqlalchemy import delete

from tests.server.receiver import Answered, Receiver
from tests.server.shipping import RUN
from tests.server.telling import Telling, finding
from tests.server.test_delivery import check
from trainwatch.server.models import runs
from trainwatch.server.store import delivery_record


def test_a_flood_becomes_one_message(telling: Telling, receiver: Receiver) -> None:
    telling.channel(receiver.url, digest_most=3, digest_seconds=60.0)
    telling.tell(*(finding(n, key=f"device {n}") for n in range(1, 41)))
    assert telling.send() == 3
    assert telling.send(30) == 0
    assert telling.send(31) == 1
    digest = receiver.taken[3].json
    check(digest)
    assert (digest["kind"], len(digest["alerts"])) == ("digest", 37)
    assert digest["text"] == "TrainWatch: 37 alerts"
    rows = telling.rows()
    told = {one["delivery"] for taken in receiver.taken for one in taken.json["alerts"]}
    assert told == {row.uuid for row in rows if row.change == "fired"}
    assert {row.state for row in rows} == {"sent"}
    with telling.database.read() as connection:
        [last, *_] = delivery_record.listed(connection, alert=rows[39].alert)
    assert last.digest == digest["delivery"]
    assert [one.status for one in last.attempts] == [200], "what carried it is on record with it"


def test_a_digest_that_fails_comes_again_as_it_was(telling: Telling, receiver: Receiver) -> None:
    telling.channel(receiver.url, digest_most=1, digest_seconds=60.0)
    telling.tell(*(finding(n, key=f"device {n}") for n in range(1, 4)))
    telling.send()
    receiver.script = [Answered(500)]
    telling.send(61)
    telling.tell(finding(9, "resolved", key="device 2"))
    assert telling.send() == 0, "that it is over would come before the digest that tells that it fires"
    telling.send(61)
    first, again = receiver.taken[1], receiver.taken[2]
    assert first.delivery == again.delivery
    assert first.json["alerts"] == again.json["alerts"]
    telling.send(61)
    assert receiver.taken[-1].json["alerts"][0]["change"] == "resolved"
    assert set(telling.states()) == {"sent"}


def test_while_a_digest_waits_no_other_is_made_and_what_is_new_still_goes_out(
    telling: Telling, receiver: Receiver
) -> None:
    telling.channel(receiver.url, digest_most=2, digest_seconds=60.0)
    telling.tell(*(finding(n, key=f"device {n}") for n in range(1, 461)))
    assert telling.send() == 2
    receiver.script = [Answered(503)]
    telling.send(61)
    waiting = [row for row in telling.rows() if row.change == "digest"]
    assert [row.state for row in waiting] == ["waiting"]
    telling.tell(finding(500, key="new"))
    assert telling.send() == 1
    assert receiver.taken[-1].json["alerts"][0]["key"] == "new"
    telling.send(waiting[0].due_at - telling.now)
    digests = [row for row in telling.rows() if row.change == "digest"]
    assert [row.state for row in digests] == ["sent"], "it came first, and the window is full"
    while telling.send(61):
        pass
    assert set(telling.states()) == {"sent"}
    told = [
        one["delivery"] for taken in receiver.taken if taken.json["kind"] == "digest" for one in taken.json["alerts"]
    ]
    assert len(set(told)) == 458


def test_thousands_that_wait_for_a_receiver_that_is_away_arrive_when_it_is_back(
    telling: Telling, receiver: Receiver
) -> None:
    telling.channel(receiver.url, digest_most=10, digest_seconds=300.0)
    telling.tell(*(finding(n, key=f"device {n}") for n in range(1, 1301)))
    assert telling.send() == 10
    receiver.script = [Answered(503)] * 100
    for _ in range(40):
        telling.send(30)
    assert [row.state for row in telling.rows() if row.change == "digest"] == ["waiting"]
    receiver.script = []
    for _ in range(60):
        telling.send(30)
    states = [(row.change, row.state) for row in telling.rows()]
    assert set(states) == {("fired", "sent"), ("digest", "sent")}
    assert states.count(("digest", "sent")) == 7


def test_of_runs_that_were_deleted_nothing_is_told(telling: Telling, receiver: Receiver) -> None:
    telling.channel(receiver.url, digest_most=1, digest_seconds=60.0)
    telling.tell(*(finding(n, key=f"device {n}") for n in range(1, 4)))
    telling.send()
    receiver.script = [Answered(500)]
    telling.send(61)
    with telling.database.write() as connection:
        connection.execute(delete(runs).where(runs.c.id == RUN))
    telling.send(61)
    assert len(receiver.taken) == 2
    [digest] = telling.rows()
    assert (digest.state, digest.reason) == ("failed", "The runs that it tells of were deleted.")


def test_slack_shows_a_digest_in_short(telling: Telling, receiver: Receiver) -> None:
    telling.channel(receiver.url, kind="slack", secret={"url": receiver.url}, digest_most=1, digest_seconds=60.0)
    telling.tell(*(finding(n, key=f"device {n}") for n in range(1, 40)))
    telling.send()
    telling.send(61)
    [attachment] = receiver.taken[1].json["attachments"]
    assert len(attachment["blocks"]) <= 50, "Slack takes no more"
    assert "… and 18 more" in json.dumps(attachment["blocks"], ensure_ascii=False)
