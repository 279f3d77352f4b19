"""A project's settings of rules: what can be set, what is refused, and how running runs hear of it."""

from __future__ import annotations

import httpx2
import msgspec

from tests.server.shipping import RUN, batch, send, started, step
from trainwatch.rules import RULES
from trainwatch.rules.base import Options
from trainwatch.rules.catalogue import describe

WHERE = "/api/projects/default/rules"


def test_the_catalogue_explains_every_option_of_every_rule(client: httpx2.Client) -> None:
    answer = client.get(WHERE).json()
    assert (answer["project"], answer["settings"], answer["changed_at"]) == ("default", {}, None)
    assert [rule["id"] for rule in answer["rules"]] == [rule.id for rule in RULES]
    for rule, info in zip(RULES, answer["rules"], strict=True):
        assert info["summary"].endswith(".")
        assert info["docs"] == f"docs/rules/{rule.id}.md"
        assert info["actions"] == list(rule.actions)
        options = {option["name"]: option for option in info["options"]}
        assert {name: option["default"] for name, option in options.items()} == msgspec.to_builtins(rule.options_type())
        assert all(option["meaning"] for option in options.values()), rule.id
        assert options["action"]["choices"] == list(rule.actions)
        assert {name for name, option in options.items() if option["common"]} == {
            field.encode_name for field in msgspec.structs.fields(Options)
        }


def test_limits_of_numbers_are_told() -> None:
    options = {option.name: option for rule in describe(RULES) for option in rule.options if rule.id == "padding_waste"}
    assert (options["share"].kind, options["share"].least, options["share"].most) == ("number", 0, 1)
    assert (options["steps"].kind, options["steps"].least) == ("whole number", 1)
    assert (options["for"].kind, options["for"].least, options["for"].common) == ("number", 0, True)
    assert options["at_most"].choices == ["info", "warning", "critical"]


def test_settings_are_kept_for_the_project_and_reach_its_runs(client: httpx2.Client) -> None:
    assert send(client, batch([started(), step(1)])).rules == {}
    wanted = {"padding_waste": {"share": 0.5, "repeat": 60}, "process_gone": {}}
    answer = client.put(WHERE, json={"settings": wanted})
    assert answer.status_code == 200, answer.text
    kept = {"padding_waste": {"share": 0.5, "repeat": 60}}
    assert answer.json()["settings"] == kept
    assert client.get(WHERE).json()["settings"] == kept
    assert client.get(WHERE).json()["changed_at"] > 0
    other = batch([started()], run="another", project="other")
    assert send(client, other, runs=[RUN]).rules == {RUN: kept}
    # Back to the defaults: the runs have to hear of that too.
    client.put(WHERE, json={"settings": {}})
    assert send(client, runs=[RUN]).rules == {RUN: {}}


def test_what_does_not_fit_is_refused_option_by_option(client: httpx2.Client) -> None:
    client.put(WHERE, json={"settings": {"padding_waste": {"share": 0.5}}})
    wrong = {
        "padding_waste": {"share": 1.5, "steps": 10, "bad": "much"},
        "process_gone": {"action": "halt", "colour": "red"},
        "nonsense": {"a": 1},
    }
    answer = client.put(WHERE, json={"settings": wrong})
    assert answer.status_code == 422
    problems = {(one["rule"], one["option"]): one["detail"] for one in answer.json()["problems"]}
    assert set(problems) == {
        ("padding_waste", "share"),
        ("padding_waste", "bad"),
        ("process_gone", "action"),
        ("process_gone", "colour"),
        ("nonsense", ""),
    }
    assert "<= 1" in problems["padding_waste", "share"]
    assert 'it takes "notify"' in problems["process_gone", "action"]
    assert answer.json()["detail"]
    assert client.get(WHERE).json()["settings"] == {"padding_waste": {"share": 0.5}}, "nothing of it was stored"


def test_a_project_that_cannot_be_is_not_there(client: httpx2.Client) -> None:
    assert client.get("/api/projects/a%20b/rules").status_code == 404
    assert client.put("/api/projects/.x/rules", json={"settings": {}}).status_code == 404
    assert client.put(WHERE, json={"settings": 3}).status_code == 422
