"""From an alert's change to a message: what is told, to whom, when, and what is on record of it."""

from __future__ import annotations

import hmac
import json
import math
from datetime import datetime
from hashlib import sha256
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import jsonschema
import pytest

import trainwatch
from tests.server.receiver import Answered, Receiver
from tests.server.shipping import RUN, T0, batch, shipment, started, step
from tests.server.telling import KEY, NOON, Telling, finding
from trainwatch.server.delivery.quiet import quiet_until
from trainwatch.server.store import alerts, channels, delivery_record

SCHEMA = json.loads((Path(trainwatch.__file__).parent.parent / "docs/schemas/webhook-1.json").read_text("utf-8"))
HOUR = 3600.0


def check(body: dict[str, Any]) -> None:
    jsonschema.validate(body, SCHEMA, format_checker=jsonschema.FormatChecker())


def test_what_fires_rises_and_is_over_is_told(telling: Telling, receiver: Receiver) -> None:
    telling.channel(receiver.url)
    telling.tell(finding(1, "pending"))
    assert telling.send() == 0, "what is pending is no news"
    telling.tell(finding(2))
    telling.tell(finding(3))
    assert telling.send() == 1, "found again is no news"
    telling.tell(finding(4, severity="critical"))
    telling.send()
    telling.tell(finding(5, severity="info"))
    telling.tell(finding(6, "resolved", severity="info", parameters={}))
    telling.send()
    telling.tell(finding(7))
    telling.send()
    told = [taken.json["alerts"][0] for taken in receiver.taken]
    assert [(one["change"], one["severity"]) for one in told] == [
        ("fired", "warning"),
        ("raised", "critical"),
        ("resolved", "info"),
        ("fired", "warning"),
    ]
    assert {one["id"] for one in told} == {told[0]["id"]}
    assert len({taken.delivery for taken in receiver.taken}) == 4
    assert told[2]["sentence"] == told[0]["sentence"], "what is over is named as it was"


def test_a_webhook_is_signed_and_as_its_schema_says(telling: Telling, receiver: Receiver) -> None:
    telling.ingest.accept(shipment(batch([step(20, math.nan), step(21, math.inf)], first=20)))
    telling.channel(receiver.url)
    telling.tell(finding(21, parameters={"value": math.nan, "more": [math.inf, {"low": -math.inf}]}))
    telling.send()
    [taken] = receiver.taken
    check(taken.json)
    [told] = taken.json["alerts"]
    assert taken.json["delivery"] == told["delivery"] == taken.delivery == telling.rows()[0].uuid
    assert told["parameters"] == {"value": "NaN", "more": ["Infinity", {"low": "-Infinity"}]}
    assert told["run"]["last_loss"] == "Infinity"
    assert told["run"]["loss"]["value"][-2:] == ["NaN", "Infinity"]
    assert told["run"]["url"] == f"https://watch.example.org/runs/{RUN}"
    timestamp, signature = (part.split("=")[1] for part in taken.headers["x-trainwatch-signature"].split(","))
    assert int(timestamp) == int(telling.now)
    wanted = hmac.new(KEY.encode(), f"{timestamp}.".encode() + taken.body, sha256).hexdigest()
    assert signature == wanted


def test_slack_gets_blocks_with_the_curve_and_links(telling: Telling, receiver: Receiver) -> None:
    telling.channel(receiver.url, kind="slack", secret={"url": receiver.url})
    telling.ingest.accept(shipment(batch([started(name="<!channel> & co")], first=20)))
    telling.tell(finding(3, severity="critical"))
    telling.send()
    body = receiver.taken[0].json
    assert body["text"].startswith("Critical: &lt;!channel&gt; &amp; co: The eval loss is NaN")
    blocks = body["attachments"][0]["blocks"]
    kinds = [block["type"] for block in blocks]
    assert kinds == ["header", "section", "section", "section", "actions", "context"]
    assert "<!channel>" not in json.dumps(blocks[1:]), "a run's name rings nobody"
    assert "█▄▃▂▂▁" in blocks[3]["text"]["text"]
    assert [button["url"] for button in blocks[4]["elements"]] == [
        f"https://watch.example.org/runs/{RUN}",
        "https://watch.example.org/settings/alerts",
    ]


def test_a_channel_speaks_its_language(telling: Telling, receiver: Receiver) -> None:
    telling.channel(receiver.url, language="zh")
    telling.tell(finding(3))
    telling.send()
    assert "个评估批次" in receiver.taken[0].json["text"]
    assert receiver.taken[0].json["text"].startswith("警告：tiny：")


def test_apprise_delivers_what_has_no_channel_of_its_own(telling: Telling, receiver: Receiver) -> None:
    telling.channel("", kind="apprise", secret={"url": f"ntfy://127.0.0.1:{receiver.port}/topic"})
    telling.tell(finding(3))
    telling.send()
    assert telling.states() == ["sent"]
    body = receiver.taken[0].json
    assert body["title"] == "Warning: tiny"
    assert "The eval loss is NaN in 7 of 10 batches" in body["message"]
    receiver.script = [Answered(403)]
    telling.tell(finding(4, key="other"))
    telling.send()
    assert telling.states() == ["sent", "failed"]
    assert "error=403" in telling.rows()[1].reason


def test_only_those_who_want_to_are_told(telling: Telling, receiver: Receiver) -> None:
    wanted = {
        "all projects": telling.channel(receiver.url, project=""),
        "pattern": telling.channel(receiver.url, rules="loss_* nonfinite_*"),
        "info": telling.channel(receiver.url, least="info"),
        "no resolved": telling.channel(receiver.url, send_resolved=False),
    }
    for changes in ({"project": "other"}, {"least": "critical"}, {"rules": "loss_*"}, {"enabled": False}):
        telling.channel(receiver.url, **changes)
    telling.tell(finding(1))
    assert sorted(row.channel for row in telling.rows()) == sorted(wanted.values())
    late = telling.channel(receiver.url)
    telling.tell(finding(2, "resolved"))
    resolved = {row.channel for row in telling.rows() if row.change == "resolved"}
    assert resolved == set(wanted.values()) - {wanted["no resolved"]}
    assert late not in resolved, "nobody needs to hear that something is over of which they never heard"


def test_a_channel_for_the_worst_hears_of_what_becomes_worst(telling: Telling, receiver: Receiver) -> None:
    telling.channel(receiver.url, least="critical")
    telling.tell(finding(1))
    telling.tell(finding(2, severity="critical"))
    telling.tell(finding(3, "resolved", severity="info"))
    telling.send()
    assert [taken.json["alerts"][0]["change"] for taken in receiver.taken] == ["raised", "resolved"]


def test_a_run_that_was_imported_is_no_news(telling: Telling, receiver: Receiver) -> None:
    telling.channel(receiver.url)
    old = batch([started(), step(1)], run="old", node="imported")
    telling.ingest.accept(shipment(old, batch([finding(1)], rank=None, run="old", node="imported")))
    assert telling.rows() == []


def test_the_word_for_every_runs_memory_is_no_news(telling: Telling, receiver: Receiver) -> None:
    telling.channel(receiver.url, least="info")
    telling.tell(finding(1, rule="memory_verdict", severity="info"))
    assert telling.rows() == []


def test_taking_a_run_up_again_tells_that_what_was_wrong_before_is_over(telling: Telling, receiver: Receiver) -> None:
    telling.channel(receiver.url)
    telling.tell(finding(5))
    telling.ingest.accept(shipment(batch([started(time=T0 + 100), step(101)], source="rank0.1")))
    telling.send()
    assert [taken.json["alerts"][0]["change"] for taken in receiver.taken] == ["fired", "resolved"]


def test_what_is_rolled_back_is_not_told_and_wakes_nobody(telling: Telling, receiver: Receiver) -> None:
    woken: list[str] = []
    telling.database.wake = woken.append
    telling.channel(receiver.url)

    def die() -> None:
        with telling.database.write() as connection:
            alerts.raise_alerts(connection, RUN, [finding(1)], now=telling.now)
            raise RuntimeError("the server dies here")

    with pytest.raises(RuntimeError):
        die()
    assert (telling.rows(), woken) == ([], [])
    with telling.database.write() as connection:
        alerts.raise_alerts(connection, RUN, [finding(1)], now=telling.now)
        assert woken == []
    assert (len(telling.rows()), woken) == (1, ["delivery"])
    telling.tell(finding(2))
    assert woken == ["delivery"], "nothing changed"


def test_changes_of_one_alert_arrive_in_their_order(telling: Telling, receiver: Receiver) -> None:
    telling.channel(receiver.url)
    receiver.script = [Answered(503)]
    telling.tell(finding(1), finding(1, key="other"))
    telling.send()
    telling.tell(finding(2, "resolved"))
    assert telling.send() == 0, "that it is over would come before that it fires"
    assert [taken.json["alerts"][0]["key"] for taken in receiver.taken] == ["", "other"], "the others need not wait"
    telling.send(6)
    assert [taken.json["alerts"][0]["change"] for taken in receiver.taken[2:]] == ["fired", "resolved"]


def test_in_quiet_hours_only_what_is_critical_passes(telling: Telling, receiver: Receiver) -> None:
    # 12:00 in UTC is 20:00 in Shanghai.
    telling.channel(receiver.url, quiet={"zone": "Asia/Shanghai", "start": "19:30", "end": "07:00"})
    telling.tell(finding(1), finding(1, key="bad", severity="critical"))
    assert telling.send() == 1
    assert receiver.taken[0].json["alerts"][0]["severity"] == "critical"
    assert telling.rows()[0].due_at == NOON + 11 * HOUR
    assert telling.rows()[0].reason == "quiet hours"
    assert telling.send(11 * HOUR - 1) == 0
    assert telling.send(1) == 1
    assert telling.states() == ["sent", "sent"]


def test_however_much_waits_for_the_end_of_quiet_hours_what_is_critical_passes(
    telling: Telling, receiver: Receiver
) -> None:
    telling.channel(receiver.url, quiet={"zone": "Asia/Shanghai", "start": "19:30", "end": "07:00"})
    telling.tell(*(finding(n, key=f"device {n}") for n in range(1, 1101)))
    assert telling.send() == 0
    telling.tell(finding(1, key="bad", severity="critical"))
    assert telling.send() == 1
    assert receiver.taken[0].json["alerts"][0]["key"] == "bad"
    assert telling.states().count("waiting") == 1100


def test_what_becomes_critical_in_quiet_hours_passes_after_what_led_to_it(telling: Telling, receiver: Receiver) -> None:
    telling.channel(receiver.url, quiet={"zone": "Asia/Shanghai", "start": "19:30", "end": "07:00"})
    telling.tell(finding(1), finding(1, key="other"))
    assert telling.send() == 0
    telling.tell(finding(2, severity="critical"))
    assert telling.send(60) == 2
    told = [taken.json["alerts"][0] for taken in receiver.taken]
    assert [(one["key"], one["change"]) for one in told] == [("", "fired"), ("", "raised")]
    telling.tell(finding(3, "resolved"))
    assert telling.send() == 1, "what was critical is over"
    assert telling.rows()[1].reason == "quiet hours"


@pytest.mark.parametrize(
    ("zone", "start", "end", "moment", "until"),
    [
        ("UTC", "22:00", "07:00", "2026-03-01T21:59", None),
        ("UTC", "22:00", "07:00", "2026-03-01T22:00", "2026-03-02T07:00"),
        ("UTC", "22:00", "07:00", "2026-03-02T06:59", "2026-03-02T07:00"),
        ("UTC", "22:00", "07:00", "2026-03-02T07:00", None),
        ("UTC", "12:00", "13:30", "2026-03-02T13:00", "2026-03-02T13:30"),
        # The night in which the clock goes forward, and the one in which it goes back.
        ("Europe/Berlin", "22:00", "07:00", "2026-03-29T03:30", "2026-03-29T07:00"),
        ("Europe/Berlin", "22:00", "07:00", "2026-10-25T02:30", "2026-10-25T07:00"),
        ("Asia/Kolkata", "00:00", "06:00", "2026-03-02T05:59", "2026-03-02T06:00"),
    ],
)
def test_quiet_hours_are_those_of_the_place(zone: str, start: str, end: str, moment: str, until: str | None) -> None:
    def seconds(text: str) -> float:
        return datetime.fromisoformat(text).replace(tzinfo=ZoneInfo(zone)).timestamp()

    found = quiet_until({"zone": zone, "start": start, "end": end}, seconds(moment))
    assert found == (None if until is None else seconds(until))


def test_what_is_silenced_is_on_record_and_not_sent(telling: Telling, receiver: Receiver) -> None:
    telling.channel(receiver.url)
    telling.tell(finding(1))
    telling.send()
    with telling.database.write() as connection:
        alerts.silence(connection, RUN, telling.rows()[0].alert, telling.now + HOUR)
    telling.tell(finding(2, severity="critical"))
    assert telling.send() == 0
    assert (telling.rows()[1].state, telling.rows()[1].reason) == ("suppressed", "the alert is silenced")
    telling.now += 2 * HOUR
    telling.tell(finding(3, "resolved"))
    assert telling.send() == 1, "it was told that it fires, and nobody is silenced any more"


@pytest.mark.parametrize(
    ("rule", "run", "hears"),
    [
        ("", "", False),
        ("nonfinite_*", "", False),
        ("loss_*", "", True),
        ("", "tin?", False),
        ("", RUN[:4] + "*", False),
        ("nonfinite_*", "other", True),
    ],
)
def test_a_project_silences_rules_and_runs(
    telling: Telling, receiver: Receiver, rule: str, run: str, hears: bool
) -> None:
    telling.channel(receiver.url)
    values = {"project": "default", "rule": rule, "run": run, "reason": "known", "created_at": telling.now}
    with telling.database.write() as connection:
        channels.add_silence(connection, {**values, "until": telling.now + HOUR})
    telling.tell(finding(1))
    assert telling.send() == int(hears)
    if not hears:
        assert telling.rows()[0].reason == "the project silenced it: known"
        telling.tell(finding(2, "resolved"))
        assert len(telling.rows()) == 1, "of what nobody heard nobody needs to hear the end"
        telling.now += 2 * HOUR
        telling.tell(finding(3))
        assert telling.send() == 1


def test_what_was_delivered_long_ago_is_forgotten(telling: Telling, receiver: Receiver) -> None:
    telling.channel(receiver.url, digest_most=1, digest_seconds=60.0)
    telling.tell(*(finding(n, key=f"device {n}") for n in range(1, 4)))
    telling.send()
    telling.send(61)
    telling.tell(finding(8))
    with telling.database.write() as connection:
        delivery_record.prune(connection, telling.now + 1)
    assert telling.states() == ["waiting"]
