from __future__ import annotations

import httpx2
import pytest


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [
        ("DELETE", "/api/ingest", "POST"),
        ("GET", "/api/ingest", "POST"),
        ("PATCH", "/api/projects/a/tokens", "GET, POST"),
        ("OPTIONS", "/api/runs/x/alerts/1/silence", "DELETE, PUT"),
        ("GET", "/api/runs/x/alerts/1/silence", "DELETE, PUT"),
        ("POST", "/", "GET, HEAD"),
    ],
)
def test_a_method_that_an_address_does_not_know(client: httpx2.Client, method: str, path: str, allowed: str) -> None:
    answer = client.request(method, path)
    assert answer.status_code == 405
    assert sorted(answer.headers["allow"].split(", ")) == allowed.split(", ")
    assert answer.json() == {"detail": "Method Not Allowed"}


@pytest.mark.parametrize("method", ["GET", "POST", "DELETE", "PUT"])
def test_an_address_that_is_not_there(client: httpx2.Client, method: str) -> None:
    answer = client.request(method, "/api/projects/tokens/x")
    assert answer.status_code == 404
    assert answer.json() == {"detail": "There is no /api/projects/tokens/x."}
