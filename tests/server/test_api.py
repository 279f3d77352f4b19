"""The API as others see it: its version, and its OpenAPI document."""

from __future__ import annotations

from typing import Any

import httpx2
import pytest

from tests.server.shipping import RUN, batch, send, started, step
from trainwatch.server.app import create_app
from trainwatch.server.http import apidoc
from trainwatch.server.settings import Settings

DOCUMENT = create_app(Settings(database="sqlite:///never-opened.db")).openapi()
OPERATIONS = list(apidoc.operations(DOCUMENT))
IDS = [f"{method} {path}" for path, method, _ in OPERATIONS]


@pytest.mark.parametrize(("path", "method", "operation"), OPERATIONS, ids=IDS)
def test_every_operation_is_described(path: str, method: str, operation: dict[str, Any]) -> None:
    assert path.startswith("/api/")
    assert operation["summary"][0].isupper()
    assert not operation["summary"].endswith(".")
    assert 10 < len(operation["summary"]) < 160
    assert operation["description"]
    assert operation["tags"]
    assert set(operation["tags"]) <= {tag["name"] for tag in DOCUMENT["tags"]}
    refusals = [status for status in operation["responses"] if status.startswith(("4", "5"))]
    assert {"401", "422", "503"} <= set(refusals)
    for status in refusals:
        answer = operation["responses"][status]
        assert answer["description"]
        schema = answer["content"]["application/json"]["schema"]
        assert schema["$ref"].endswith(("/Problem", "/RuleProblems")), status
    for parameter in operation.get("parameters", ()):
        assert parameter["in"] != "path" or "example" in parameter or "integer" in str(parameter["schema"]), parameter


@pytest.mark.parametrize(("path", "method", "operation"), OPERATIONS, ids=IDS)
def test_every_whole_number_that_is_asked_with_fits_the_database(
    path: str, method: str, operation: dict[str, Any]
) -> None:
    for parameter in operation.get("parameters", ()):
        for schema in parameter["schema"].get("anyOf", [parameter["schema"]]):
            if schema.get("type") == "integer":
                assert 0 <= schema["minimum"] < schema["maximum"] < 2**63, parameter["name"]


def test_names_of_operations_are_unique() -> None:
    names = [operation["operationId"] for _, _, operation in OPERATIONS]
    assert len(set(names)) == len(names)


def test_every_tag_is_explained_and_used() -> None:
    used = {tag for _, _, operation in OPERATIONS for tag in operation["tags"]}
    assert {tag["name"] for tag in DOCUMENT["tags"]} == used
    assert all(tag["description"] for tag in DOCUMENT["tags"])


def test_the_document_is_served_and_its_addresses_work(client: httpx2.Client) -> None:
    send(client, batch([started(), step(1)]))
    for path in ("/api/openapi.json", "/api/v1/openapi.json"):
        document = client.get(path).json()
        assert document["info"]["version"] == "1"
        assert len(document["paths"]) == len(DOCUMENT["paths"])
        assert all(path.startswith("/api/v1/") for path in document["paths"])
    assert "/api/v1/runs/{run}" in document["paths"]
    assert document["components"]["securitySchemes"]["token"]["scheme"] == "bearer"


def test_version_1_is_what_has_no_version(client: httpx2.Client) -> None:
    send(client, batch([started(), step(1)]))  # to /api/ingest, as agents do that know no version
    for path in ("health", "runs", f"runs/{RUN}", f"runs/{RUN}/series"):
        plain, versioned = client.get(f"/api/{path}"), client.get(f"/api/v1/{path}")
        assert versioned.status_code == 200, path
        assert versioned.json() == plain.json()
    for path in ("/api/v2/runs", "/api/v1", "/api/v1/", "/api/v1x/runs", "/api/v1/v1/runs"):
        assert client.get(path).status_code == 404, path


def test_an_agent_may_ship_to_version_1_too(client: httpx2.Client) -> None:
    answer = client.post("/api/v1/ingest", content=b"x", headers={"content-type": "application/msgpack"})
    assert answer.status_code == 400
