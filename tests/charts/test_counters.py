from __future__ import annotations

import numpy as np
import pytest

from tests.charts.helpers import GIB, column, draw, trace, traces
from trainwatch.charts.counters import growth


def counted(value: object, metric: str = "memory/alloc_retries", rank: int = 0) -> object:
    return column(metric, value, device=f"cuda:{rank}", rank=rank)


def test_a_counter_is_marked_where_it_grew() -> None:
    drawn = draw("fragmentation", column("memory/inactive_split", [GIB] * 5, device="cuda:0"), counted([0, 0, 2, 2, 3]))
    marks = trace(drawn, counter="memory/alloc_retries")
    assert marks["x"].tolist() == [3, 5]
    assert marks["name"] == "Allocator retries ×3"
    assert marks["text"] == [
        "Allocator retries +2 at step 3 · rank 0 · cuda:0",
        "Allocator retries +1 at step 5 · rank 0 · cuda:0",
    ]
    # Bytes alone decide the axis.
    assert drawn["layout"]["yaxis"]["ticksuffix"] == " GiB"


def test_out_of_memory_is_louder_than_a_retry() -> None:
    drawn = draw("fragmentation", counted([0, 1]), counted([0, 1], metric="memory/ooms"))
    grave, mild = (trace(drawn, counter=name)["marker"]["color"] for name in ("memory/ooms", "memory/alloc_retries"))
    assert grave != mild


def test_ranks_are_counted_together_and_a_counter_that_never_grew_is_not_shown() -> None:
    drawn = draw("fragmentation", counted([0, 1]), counted([0, 4], rank=1), counted([0, 0], metric="memory/ooms"))
    assert trace(drawn, counter="memory/alloc_retries")["name"] == "Allocator retries ×5"
    assert traces(drawn, counter="memory/ooms") == []


@pytest.mark.parametrize(
    ("value", "grown"),
    [([0, 1, 1, 3], [0, 1, 0, 2]), ([2, 2], [2, 0]), ([5, 1, 2], [5, 1, 1]), ([1, np.nan, 2], [1, 0, 1])],
)
def test_growth(value: list[float], grown: list[float]) -> None:
    assert growth(np.array(value)).tolist() == grown
