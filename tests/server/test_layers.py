from __future__ import annotations

import math
from typing import Any

import httpx2
import numpy as np
import pytest
from sqlalchemy import func, select

from tests.patience import timing
from tests.server.shipping import RUN, T0, batch, send, shipment, started
from trainwatch import events
from trainwatch.server.db import Database
from trainwatch.server.ingest.shipments import Ingest
from trainwatch.server.models import layer_chunks, layer_sets
from trainwatch.server.store import layers
from trainwatch.server.store.layer_codec import Grid, grid, pack_grid, pack_places, unpack_grid, unpack_places
from trainwatch.server.store.layers import Stretch

NAMES = ["embed", "h.0", "h.1", "head"]


def measured(step: int, norms: list[float | None], **changes: Any) -> events.LayersMeasured:
    return events.LayersMeasured(**{"time": T0 + step, "step": step, "layers": NAMES, "norms": norms} | changes)


def stored(database: Database, quantity: layers.Quantity = "norms", **options: Any) -> list[Stretch]:
    with database.read() as connection:
        return layers.read(connection, RUN, quantity, **options)


def ingest_into(database: Database) -> Ingest:
    return Ingest(database, lambda _run, _version: None, lambda: T0)


@pytest.mark.parametrize("shape", [(1, 1), (3, 7), (128, 100), (5, 8), (2, 9)])
@pytest.mark.parametrize("largest", [10.0, 1e300])
def test_every_value_survives_packing(shape: tuple[int, int], largest: float) -> None:
    random = np.random.default_rng(3)
    value = random.random(shape) * largest
    value.flat[::3] = random.choice([np.nan, np.inf, -np.inf, 0.0], value.flat[::3].shape)
    known = random.random(shape) > 0.2
    value[~known] = np.nan
    back = unpack_grid(1, pack_grid(Grid(value, known)), shape[0])
    np.testing.assert_array_equal(back.known, known)
    np.testing.assert_allclose(back.value, value, rtol=1e-7)
    step, moment = np.array([1, 2**40]), np.array([T0, T0 + 0.1])
    again = unpack_places(1, pack_places(step, moment))
    np.testing.assert_array_equal(again[0], step)
    np.testing.assert_array_equal(again[1], moment)


def test_no_gradient_is_not_nan() -> None:
    cells = grid([[None, math.nan, 0.0], []], 3)
    assert cells.known.tolist() == [[False, True, True], [False, False, False]]
    back = unpack_grid(1, pack_grid(cells), 2)
    np.testing.assert_array_equal(back.known, cells.known)


def test_a_codec_of_the_future_is_named() -> None:
    with pytest.raises(ValueError, match="codec 9"):
        unpack_grid(9, b"", 1)
    with pytest.raises(ValueError, match="codec 9"):
        unpack_places(9, b"")


@pytest.mark.parametrize("size", [1, 7, 500])
def test_measurements_come_back_in_order_however_they_were_shipped(database: Database, size: int) -> None:
    ingest = ingest_into(database)
    bad = [math.nan, math.inf, -math.inf, None]
    content = [measured(n, [float(n), bad[n % 4], 0.5, 1e-3]) for n in range(1, 101)]
    for rank in range(2):
        for at in range(0, len(content), size):
            ingest.accept(shipment(batch(content[at : at + size], first=at, rank=rank)))
    found = stored(database)
    assert [one.rank for one in found] == [0, 1]
    for one in found:
        assert one.layers == NAMES
        assert one.step.tolist() == list(range(1, 101))
        np.testing.assert_array_equal(one.time, T0 + one.step)
        np.testing.assert_array_equal(one.value[:, 0], np.arange(1.0, 101.0))
        np.testing.assert_array_equal(one.known[:, 1], one.step % 4 != 3)
        np.testing.assert_array_equal(one.value[:3, 1], [math.inf, -math.inf, math.nan])
    assert [one.rank for one in stored(database, rank=1)] == [1]


def test_small_chunks_are_joined_and_names_are_kept_once(database: Database) -> None:
    ingest = ingest_into(database)
    for n in range(90):
        ingest.accept(shipment(batch([measured(n, [1.0, 2.0, 3.0, 4.0])], first=n)))
    with database.read() as connection:
        rows = connection.scalar(select(func.count()).select_from(layer_chunks)) or 0
        assert rows < layers.JOIN_AT + 2
        assert connection.scalar(select(func.sum(layer_chunks.c.measurements))) == 90
        assert connection.scalar(select(func.count()).select_from(layer_sets)) == 1


def test_a_quantity_that_is_measured_now_and_then_has_only_those_steps(database: Database) -> None:
    ingest = ingest_into(database)
    content = [measured(n, [1.0] * 4, zeros=[0.1, None, 0.0, math.nan] if n % 5 == 0 else []) for n in range(1, 51)]
    for at, one in enumerate(content):
        ingest.accept(shipment(batch([one], first=at)))
    (zeros,) = stored(database, "zeros")
    assert zeros.step.tolist() == list(range(5, 51, 5))
    assert zeros.known[0].tolist() == [True, False, True, True]
    assert stored(database, "updates") == []
    with database.read() as connection:
        assert layers.measured(connection, RUN) == ["norms", "zeros"]


def test_only_the_chunks_of_a_range_are_read(sqlite: Database) -> None:
    ingest_into(sqlite).accept(shipment(batch([measured(n, [1.0] * 4) for n in range(1, 1001)])))
    (part,) = stored(sqlite, low=500.0, high=510.0)
    assert {*range(500, 511)} <= set(part.step.tolist())
    assert part.step.size <= 2 * layers.CHUNK
    (later,) = stored(sqlite, axis="time", low=T0 + 900.0)
    assert later.step.max() == 1000
    assert later.step.size <= 2 * layers.CHUNK


def test_other_layers_than_before_are_a_stretch_of_their_own(sqlite: Database) -> None:
    ingest = ingest_into(sqlite)
    ingest.accept(shipment(batch([measured(1, [1.0] * 4), measured(2, [2.0, 3.0], layers=["embed", "head"])])))
    assert [(one.layers, one.step.tolist()) for one in stored(sqlite)] == [(NAMES, [1]), (["embed", "head"], [2])]


@pytest.mark.parametrize(
    "changes",
    [
        {"norms": [1.0]},
        {"zeros": [0.5]},
        {"updates": [0.5]},
        {"layers": [], "norms": []},
        {"layers": ["x" * 300, "a", "b", "c"]},
    ],
)
def test_what_does_not_fit_together_is_counted_and_harms_nothing(sqlite: Database, changes: dict[str, Any]) -> None:
    ingest = ingest_into(sqlite)
    bad = measured(1, **({"norms": [1.0] * 4} | changes))
    assert ingest.accept(shipment(batch([bad, measured(2, [1.0] * 4)]))).next == {RUN: {"rank0": 2}}
    (found,) = stored(sqlite)
    assert found.step.tolist() == [2]


def test_the_heat_map_is_a_chart_of_the_run(client: httpx2.Client) -> None:
    content = [measured(n, [1.0, math.nan if n == 7 else 2.0, 3.0, 4.0], zeros=[0.1] * 4) for n in range(1, 20)]
    send(client, batch([started(world_size=2), *content]), batch([measured(3, [9.0] * 4)], rank=1))
    ids = [chart["id"] for chart in client.get(f"/api/runs/{RUN}").json()["charts"]]
    assert ids == ["layers", "layers/zeros"]
    figure = client.get(f"/api/runs/{RUN}/charts/layers", params={"theme": "dark", "width": 800}).json()
    assert figure["layout"]["meta"]["layers"] == 4
    assert figure["layout"]["meta"]["nonfinite"] == 1
    assert figure["data"][0]["z"]["shape"] == "4, 19"
    own = client.get(f"/api/runs/{RUN}/charts/layers", params={"rank": 1}).json()
    assert own["data"][0]["z"]["shape"] == "4, 1"
    assert client.get(f"/api/runs/{RUN}/charts/layers/zeros").status_code == 200
    assert client.get(f"/api/runs/{RUN}/charts/layers", params={"rank": -1}).status_code == 422


def test_eight_ranks_of_a_hundred_layers_are_small_and_quick(sqlite: Database) -> None:
    """8 × 1,250 measurements of 100 layers; ten times as many are still read in a few seconds."""
    ingest, names = ingest_into(sqlite), [f"model.layers.{n}" for n in range(100)]
    random = np.random.default_rng(5)
    for rank in range(8):
        rows = (0.5 + random.random((1_250, 100))).tolist()
        content = [measured(10 * n, row, layers=names) for n, row in enumerate(rows)]
        ingest.accept(shipment(batch(content, rank=rank)))
    with sqlite.read() as connection:
        size = connection.scalar(select(func.sum(func.length(layer_chunks.c.norms)))) or 0
        with timing() as timed:
            found = layers.read(connection, RUN, "norms")
    assert sum(one.value.size for one in found) == 1_000_000
    assert size < 4_000_000, "more than four bytes a value"
    assert timed.took < 1.0, f"{timed.took:.2f} s (about 0.05 s on a quiet machine)"
