"""What schemathesis has to know besides the OpenAPI document; see scripts/fuzz_api.py."""

from __future__ import annotations

from typing import Any, Final

import msgspec
import schemathesis
from hypothesis import strategies

RUNS: Final = ("run1", "run2")
PROJECT: Final = "fuzzed"
_plain: Final = strategies.recursive(
    strategies.none() | strategies.booleans() | strategies.integers(-(2**63), 2**64 - 1) | strategies.floats()
    | strategies.text(max_size=20) | strategies.binary(max_size=20),
    lambda inner: (
        strategies.lists(inner, max_size=4) | strategies.dictionaries(strategies.text(max_size=8), inner, max_size=4)
    ),
    max_leaves=12,
)  # fmt: skip
_batch: Final = strategies.fixed_dictionaries(
    {},
    optional={
        "run": strategies.sampled_from(RUNS) | strategies.text(max_size=12) | _plain,
        "project": strategies.just(PROJECT) | strategies.text(max_size=12) | _plain,
        "node": strategies.text(min_size=1, max_size=12) | _plain,
        "source": strategies.just("rank0") | strategies.text(max_size=12) | _plain,
        "rank": strategies.none() | strategies.integers(-1, 2**31) | _plain,
        "first": strategies.integers(-1, 2**62) | _plain,
        "lost": strategies.integers(-1, 2**62) | _plain,
        "events": strategies.lists(_plain, max_size=4) | _plain,
    },
)
_shipment: Final = strategies.fixed_dictionaries(
    {
        "batches": strategies.lists(_batch, max_size=3),
        "node": strategies.text(max_size=8),
        "sent_at": strategies.floats(),
    },
    optional={"runs": strategies.lists(strategies.sampled_from(RUNS) | strategies.text(max_size=8)), "schema": _plain},
)
schemathesis.openapi.media_type(
    "application/msgpack",
    strategies.binary(max_size=200) | _plain.map(msgspec.msgpack.encode) | _shipment.map(msgspec.msgpack.encode),
)


@schemathesis.hook
def filter_query(context: Any, query: dict[str, Any] | None) -> bool:
    """Leaves out addresses that are too long for any HTTP server: they do not reach the application."""
    return len(str(query)) < 8000


@schemathesis.hook
def map_path_parameters(context: Any, path_parameters: dict[str, Any] | None) -> dict[str, Any] | None:
    """Lets half of the generated names be of something that is there."""
    if not path_parameters:
        return path_parameters
    known = {"run": RUNS[0], "other": RUNS[1], "project": PROJECT, "chart": "loss", "alert": 1, "rule": "loss_spike"}
    chosen = dict(path_parameters)
    for name, value in known.items():
        if name in chosen and len(str(chosen[name])) % 2:
            chosen[name] = value
    return chosen
