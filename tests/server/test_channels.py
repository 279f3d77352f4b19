"""Channels through the API: what can be set, what is refused, and that nothing secret comes out."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx2
import pytest

from tests.server.conftest import running
from tests.server.receiver import Answered, Receiver
from tests.server.shipping import RUN, batch, send, started, step
from tests.server.telling import KEY, finding
from trainwatch.server.main import Server
from trainwatch.server.settings import Refused, Settings

PLACES = ["/api/projects/default/channels", "/api/admin/channels"]
SLACK = {"name": "team", "kind": "slack", "url": "https://hooks.slack.com/services/T00/B00/very-secret"}


@pytest.fixture
def settings(settings: Settings) -> Settings:
    """The receiver's host may be reached."""
    changes = {"alert_private_hosts": "127.0.0.1", "public_url": "https://watch.example.org"}
    return settings.model_copy(update=changes)


@pytest.fixture
def server(settings: Settings) -> Iterator[Server]:
    with running(settings) as found:
        yield found


def webhook(receiver: Receiver, **changes: Any) -> dict[str, Any]:
    return {"name": "hook", "kind": "webhook", "url": receiver.url, "key": KEY, **changes}


@pytest.mark.parametrize("place", PLACES)
def test_a_channel_is_added_changed_and_removed(client: httpx2.Client, receiver: Receiver, place: str) -> None:
    assert client.get(place).json() == {"channels": []}
    quiet = {"zone": "Asia/Shanghai", "start": "22:00", "end": "07:30"}
    wish = webhook(receiver, least="critical", rules=["loss_*"], language="zh", quiet=quiet)
    answer = client.post(place, json=wish)
    assert answer.status_code == 201, answer.text
    made = answer.json()
    assert made["target"] == f"http://127.0.0.1:{receiver.port}/…"
    assert (made["has_key"], made["enabled"], made["disabled_reason"], made["waiting"]) == (True, True, "", 0)
    assert (made["quiet"], made["digest"]) == (quiet, {"most": 10, "seconds": 300.0})
    assert made["project"] == ("default" if "projects" in place else "")
    one = f"{place}/{made['id']}"
    wish = {key: value for key, value in wish.items() if key not in ("url", "key")} | {"name": "renamed", "quiet": None}
    changed = client.put(one, json=wish).json()
    assert (changed["name"], changed["quiet"], changed["target"]) == ("renamed", None, made["target"])
    assert client.get(place).json()["channels"] == [changed]
    assert client.post(f"{one}/test").json()["sent"], "address and key are as they were"
    other = next(other for other in PLACES if other != place)
    assert client.put(f"{other}/{made['id']}", json=wish).status_code == 404
    assert client.delete(f"{other}/{made['id']}").status_code == 404
    assert client.delete(one).status_code == 204
    for answer in (client.delete(one), client.put(one, json=wish), client.post(f"{one}/test")):
        assert (answer.status_code, answer.json()["detail"]) == (404, f"There is no channel {made['id']}.")
    assert client.get(f"{one}/deliveries").status_code == 404


def test_nothing_secret_ever_comes_out(client: httpx2.Client, receiver: Receiver) -> None:
    place = PLACES[0]
    secrets = ["very-secret", KEY, "tr0ub4dor-77"]
    said = [client.post(place, json=SLACK).text, client.post(place, json=webhook(receiver)).text]
    apprise = {"name": "mail", "kind": "apprise", "url": "mailto://someone:tr0ub4dor-77@example.org"}
    said += [client.post(place, json=apprise).text, client.get(place).text]
    broken = {"name": "x", "kind": "webhook", "url": "https://user:tr0ub4dor-77@example.org/very-secret", "key": KEY}
    refused = client.post(place, json=broken)
    assert refused.status_code == 422
    short = client.post(place, json={"name": "x" * 200, "kind": "webhook", "url": "very-secret", "key": "tr0ub4dor-77"})
    assert short.status_code == 422
    receiver.script = [Answered(500), Answered(404, body=b"gone")]
    for _ in range(2):
        said.append(client.post(f"{place}/2/test").text)
    said += [client.get(f"{place}/{n}/deliveries").text for n in (1, 2, 3)]
    for text in [*said, refused.text, short.text]:
        assert not [secret for secret in secrets if secret in text], text


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"url": None}, "needs an address"),
        ({"url": "ftp://example.org"}, "begins with https://"),
        ({"url": "nonsense"}, "begins with https://"),
        ({"key": None}, "needs a key"),
        ({"key": "short"}, "needs a key"),
        ({"kind": "pigeon"}, "kind"),
        ({"kind": "apprise"}, "webhook or slack"),
        ({"name": ""}, "name"),
        ({"name": "a\nb"}, "printable"),
        ({"rules": ["loss spike"]}, "rules"),
        ({"quiet": {"zone": "Nowhere/Land", "start": "22:00", "end": "07:00"}}, "no time zone"),
        ({"quiet": {"zone": "../etc/passwd", "start": "22:00", "end": "07:00"}}, "no time zone"),
        ({"quiet": {"zone": "UTC", "start": "25:00", "end": "07:00"}}, "no time of day"),
        ({"quiet": {"zone": "UTC", "start": "7", "end": "07:00"}}, "no time of day"),
        ({"quiet": {"zone": "UTC", "start": "07:00", "end": "7:00"}}, "end when they begin"),
        ({"digest": {"most": 0, "seconds": 60}}, "digest.most"),
    ],
)
def test_what_cannot_work_is_refused_with_a_sentence(
    client: httpx2.Client, receiver: Receiver, changes: dict[str, Any], problem: str
) -> None:
    answer = client.post(PLACES[0], json=webhook(receiver) | changes)
    assert answer.status_code == 422, answer.text
    assert problem in answer.json()["detail"]
    assert client.get(PLACES[0]).json() == {"channels": []}


def test_an_alert_arrives_and_is_on_record(client: httpx2.Client, receiver: Receiver) -> None:
    channel = client.post(PLACES[0], json=webhook(receiver)).json()["id"]
    send(client, batch([started(), step(1)]))
    send(client, batch([finding(1)], rank=None))
    [taken] = receiver.wait_for(1)
    assert taken.json["alerts"][0]["run"]["url"] == f"https://watch.example.org/runs/{RUN}"
    [alert] = client.get(f"/api/runs/{RUN}").json()["alerts"]
    place = f"/api/runs/{RUN}/alerts/{alert['id']}/deliveries"
    for _ in range(200):
        [found] = client.get(place).json()["deliveries"]
        if found["state"] == "sent":
            break
    assert (found["id"], found["channel"], found["channel_name"]) == (taken.delivery, channel, "hook")
    assert [attempt["status"] for attempt in found["attempts"]] == [200]
    assert client.get(f"{PLACES[0]}/{channel}/deliveries").json()["deliveries"] == [found]
    assert client.get(place.replace(RUN, "nobody")).status_code == 404
    assert client.get(f"/api/runs/{RUN}/alerts/999/deliveries").json() == {"deliveries": []}


def test_the_test_button_says_what_happened(client: httpx2.Client, receiver: Receiver) -> None:
    place = f"{PLACES[0]}/{client.post(PLACES[0], json=webhook(receiver)).json()['id']}"
    answer = client.post(f"{place}/test").json()
    assert (answer["sent"], answer["status"], answer["error"]) == (True, 200, "")
    assert receiver.taken[0].json["kind"] == "test"
    receiver.script = [Answered(404, body=b"no_service")]
    answer = client.post(f"{place}/test").json()
    assert (answer["sent"], answer["status"]) == (False, 404)
    assert answer["error"] == "The receiver answered 404: no_service"
    [channel] = client.get(PLACES[0]).json()["channels"]
    assert channel["enabled"], "a person who tries is told, and decides"
    states = [one["state"] for one in client.get(f"{place}/deliveries").json()["deliveries"]]
    assert states == ["failed", "sent"]


def test_a_channel_that_was_disabled_is_repaired(client: httpx2.Client, receiver: Receiver) -> None:
    channel = client.post(PLACES[0], json=webhook(receiver)).json()["id"]
    receiver.script = [Answered(410)]
    send(client, batch([started(), step(1)]))
    send(client, batch([finding(1)], rank=None))
    receiver.wait_for(1)
    for _ in range(300):
        [found] = client.get(PLACES[0]).json()["channels"]
        if not found["enabled"]:
            break
    assert found["disabled_reason"] == "The receiver answered 410: ok"
    wish = {"name": "hook", "kind": "webhook", "enabled": True}
    repaired = client.put(f"{PLACES[0]}/{channel}", json=wish).json()
    assert (repaired["enabled"], repaired["disabled_reason"]) == (True, "")
    send(client, batch([finding(2, key="next")], rank=None, first=1))
    assert receiver.wait_for(2)[1].json["alerts"][0]["key"] == "next"


def test_a_channel_of_another_kind_needs_another_address(client: httpx2.Client, receiver: Receiver) -> None:
    place = f"{PLACES[0]}/{client.post(PLACES[0], json=webhook(receiver)).json()['id']}"
    assert client.put(place, json={"name": "hook", "kind": "apprise"}).status_code == 422
    mail = {"name": "mail", "kind": "apprise", "url": "mailto://a:b@example.org"}
    changed = client.put(place, json=mail).json()
    assert (changed["kind"], changed["target"], changed["has_key"]) == ("apprise", "mailto://…", False)


def test_silences_are_made_and_ended(client: httpx2.Client) -> None:
    place = "/api/projects/default/silences"
    made = client.post(place, json={"rule": "loss_*", "run": "test *", "reason": "known", "hours": 2}).json()
    assert client.get(place).json() == {"silences": [made]}
    assert client.get(place.replace("default", "other")).json() == {"silences": []}
    ever = client.post(place, json={}).json()
    assert ever["until"] == "Infinity"
    assert [one["id"] for one in client.get(place).json()["silences"]] == [ever["id"], made["id"]]
    assert client.delete(f"{place}/{made['id']}").status_code == 204
    assert client.delete(f"{place}/{made['id']}").status_code == 404
    assert client.post(place, json={"rule": "a b"}).status_code == 422
    assert client.post(place, json={"hours": 0}).status_code == 422
    assert client.get("/api/projects/a b/silences").status_code == 404


def test_settings_that_cannot_work_stop_the_server(settings: Settings) -> None:
    for changes, problem in (
        ({"alert_private_hosts": "http://inside"}, "TRAINWATCH_ALERT_PRIVATE_HOSTS"),
        ({"public_url": "watch.example.org"}, "TRAINWATCH_PUBLIC_URL"),
    ):
        with pytest.raises(Refused, match=problem):
            settings.model_copy(update=changes).check()


def test_what_it_says_is_json_that_everybody_reads(client: httpx2.Client) -> None:
    client.post("/api/projects/default/silences", json={})
    text = client.get("/api/projects/default/silences").text
    assert json.loads(text, parse_constant=lambda name: pytest.fail(name))
