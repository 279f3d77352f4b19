from __future__ import annotations

import itertools
import random
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import torch

from tests.patience import timing, wait_for
from trainwatch.training.describe import describe_datasets
from trainwatch.training.describe.dataset import describe_dataset
from trainwatch.training.describe.probing import positions

LENGTHS = [int(length) for length in np.random.default_rng(3).integers(1, 700, 3000)]


def describe_calmly(dataset: Any, **options: Any) -> dict[str, Any]:
    """As on a machine on which nothing else runs: every look at the clock takes ten microseconds."""
    ticks = itertools.count()
    return describe_dataset(dataset, clock=lambda: next(ticks) * 1e-5, **options)


def samples(lengths: list[int]) -> list[dict[str, Any]]:
    return [{"input_ids": [1] * length, "labels": [2] * length} for length in lengths]


def assert_describes(found: dict[str, Any], lengths: list[int]) -> None:
    """The description is that of all these lengths, as numpy computes it."""
    msgspec.msgpack.encode(found)
    assert (found["samples"], found["read"], found["complete"]) == (len(lengths), len(lengths), True)
    told = found["lengths"]
    assert (told["min"], told["max"], told["mean"]) == (min(lengths), max(lengths), pytest.approx(np.mean(lengths)))
    for name, share in (("p50", 50), ("p90", 90), ("p99", 99)):
        low = np.percentile(lengths, share - 1, method="lower")
        assert low <= told[name] <= np.percentile(lengths, min(100, share + 1), method="higher")
    edges, counts = found["histogram"]["edges"], found["histogram"]["counts"]
    assert len(counts) <= 32
    assert len(edges) == len(counts) + 1
    assert counts == np.histogram(lengths, bins=[*edges[:-1], edges[-1] - 0.5])[0].tolist()


# -- Arrow -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def arrow() -> Any:
    datasets = pytest.importorskip("datasets")
    return datasets.Dataset.from_list(samples(LENGTHS))


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (lambda data: data, LENGTHS),
        (lambda data: data.shuffle(seed=1), LENGTHS),
        (lambda data: data.select(range(100, 900, 2)), LENGTHS[100:900:2]),
        (lambda data: data.select([5, 5, 7]), [LENGTHS[5], LENGTHS[5], LENGTHS[7]]),
        (lambda data: data.with_format("torch"), LENGTHS),
        (lambda data: data.map(lambda row: {"length": len(row["input_ids"]) + 1}), [n + 1 for n in LENGTHS]),
        (lambda data: data.select(range(10)).flatten_indices(), LENGTHS[:10]),
    ],
)
def test_lengths_come_out_of_arrow(arrow: Any, change: Callable[[Any], Any], expected: list[int]) -> None:
    assert_describes(describe_calmly(change(arrow)), expected)


def test_pieces_slices_and_fixed_lists(arrow: Any, tmp_path: Path) -> None:
    import datasets

    assert_describes(
        describe_calmly(datasets.concatenate_datasets([arrow, arrow.select(range(7))])), LENGTHS + LENGTHS[:7]
    )
    arrow.save_to_disk(str(tmp_path / "saved"), num_shards=3)
    assert_describes(describe_calmly(datasets.load_from_disk(str(tmp_path / "saved"))), LENGTHS)
    fixed = datasets.Features({"input_ids": datasets.Sequence(datasets.Value("int32"), length=8)})
    assert_describes(describe_calmly(datasets.Dataset.from_dict({"input_ids": [[1] * 8] * 5}, features=fixed)), [8] * 5)
    missing = datasets.Dataset.from_dict({"input_ids": [[1, 2], None, [1]]})
    found = describe_dataset(missing)
    assert (found["samples"], found["read"], found["complete"]) == (3, 2, False)
    assert found["lengths"]["mean"] == 1.5


def test_text_has_no_lengths(arrow: Any) -> None:
    import datasets

    text = datasets.Dataset.from_dict({"text": ["a", "b"]})
    assert describe_dataset(text) == {"kind": "Dataset", "samples": 2}
    assert describe_dataset(datasets.Dataset.from_dict({"input_ids": ["a", "b"]})) == {"kind": "Dataset", "samples": 2}
    assert describe_dataset(datasets.Dataset.from_dict({"input_ids": []})) == {"kind": "Dataset", "samples": 0}


def test_a_transform_is_not_called(arrow: Any) -> None:
    asked = []

    def transform(rows: Any) -> Any:
        asked.append(1)
        return {"input_ids": [row[:3] for row in rows["input_ids"]]}

    assert describe_dataset(arrow.with_transform(transform)) == {"kind": "Dataset", "samples": len(LENGTHS)}
    assert not asked


def test_a_large_set_takes_no_longer_than_it_may(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    import pyarrow as pa

    rng = np.random.default_rng(0)
    lengths = rng.integers(1, 100, 400_000)
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    column = pa.LargeListArray.from_arrays(pa.array(offsets), pa.array(np.zeros(offsets[-1], np.int8)))
    data = datasets.Dataset(
        pa.table({"input_ids": pa.chunked_array([column[i : i + 1000] for i in range(0, 400_000, 1000)])})
    )
    shuffled = data.shuffle(seed=0)
    with timing() as timed:
        # On a busy machine the time can be over before anything was read.
        assert describe_dataset(shuffled)["samples"] == 400_000
    assert timed.took < 0.6
    found = describe_calmly(shuffled)
    assert found["lengths"]["mean"] == pytest.approx(lengths.mean(), rel=0.05)
    few = describe_calmly(data, budget=0.0005)
    assert 0 < few["read"] < 400_000
    assert not few["complete"]


# -- lists and classes of the user's own -----------------------------------------------------------------------------


def test_lists_are_read_as_they_are() -> None:
    assert_describes(describe_calmly(samples(LENGTHS)), LENGTHS)
    assert_describes(describe_calmly([{"length": 3}, {"length": 9}]), [3, 9])
    assert_describes(describe_calmly([{"input_ids": torch.ones(1, 4)}, {"input_ids": np.ones(2)}]), [4, 2])
    assert describe_dataset([]) == {"kind": "list", "samples": 0}
    assert describe_dataset([(1, 2)]) == {"kind": "list", "samples": 1}
    assert describe_dataset([{"text": "a"}]) == {"kind": "list", "samples": 1}


class Own(torch.utils.data.Dataset[Any]):
    """A data set of somebody's own class; it notes which samples it was asked for."""

    asked: list[int]

    def __init__(self, lengths: list[int], **attributes: Any) -> None:
        object.__setattr__(self, "lengths_of_mine", lengths)
        self.__dict__.update(attributes)
        type(self).asked = []

    def __len__(self) -> int:
        return len(self.lengths_of_mine)  # type: ignore[attr-defined, no-any-return]

    def __getitem__(self, index: int) -> Any:
        type(self).asked.append(index)
        return {"input_ids": [1] * self.lengths_of_mine[index]}  # type: ignore[attr-defined]


def test_an_own_class_is_not_asked_for_samples() -> None:
    for own in (Own(LENGTHS), Own(LENGTHS, examples=[1] * 3), Own(LENGTHS, length=LENGTHS, examples=LENGTHS)):
        assert describe_calmly(own) == {"kind": "Own", "samples": len(LENGTHS)}
        assert not Own.asked


def test_generators_that_a_data_set_owns_are_not_advanced() -> None:
    class Drawing(Own):
        def __getitem__(self, index: int) -> Any:
            return {"input_ids": [1] * int(self.numpy.integers(1, 9)), "more": self.python.random()}  # type: ignore[attr-defined]

    data = Drawing(LENGTHS, numpy=np.random.default_rng(0), python=random.Random(0))
    describe_calmly(data)
    assert data.numpy.random() == np.random.default_rng(0).random()  # type: ignore[attr-defined]
    assert data.python.random() == random.Random(0).random()  # type: ignore[attr-defined]


def test_a_file_that_is_opened_late_is_opened_by_each_worker(tmp_path: Path) -> None:
    path = tmp_path / "records"
    path.write_bytes(b"".join(number.to_bytes(8, "little") for number in range(64)))

    class Late(Own):
        file: Any = None

        def __getitem__(self, index: int) -> Any:
            if self.file is None:
                self.file = path.open("rb", buffering=0)
            self.file.seek(index * 8)
            return {"input_ids": [int.from_bytes(self.file.read(8), "little")]}

    data = Late([1] * 64)
    describe_calmly(data)
    assert data.file is None
    loader = torch.utils.data.DataLoader(data, batch_size=None, num_workers=2)
    assert [sample["input_ids"][0] for sample in loader] == list(range(64))


def test_lists_of_somebodys_own_are_not_asked_either() -> None:
    class Lazy(list[Any]):
        def __getitem__(self, index: Any) -> Any:
            raise AssertionError("asked")

    class Row(dict[str, Any]):
        def get(self, *key: Any) -> Any:
            raise AssertionError("asked")

        __getitem__ = get

    class Value:
        def __len__(self) -> int:
            raise AssertionError("asked")

    lazy = Lazy(samples(LENGTHS))
    assert describe_dataset(lazy) == {"kind": "Lazy", "samples": len(LENGTHS)}
    assert "lengths" not in describe_dataset(Own(LENGTHS, examples=lazy))
    assert_describes(describe_calmly([Row(row) for row in samples([3, 4])]), [3, 4])
    assert describe_dataset([{"input_ids": Value()}]) == {"kind": "list", "samples": 1}


def test_what_a_class_keeps_in_sight_is_read_whole() -> None:
    from transformers import BatchEncoding

    ids = [[1] * length for length in LENGTHS]
    for attributes in (
        {"examples": samples(LENGTHS)},
        {"input_ids": ids},
        {"encodings": {"input_ids": ids}},
        {"encodings": BatchEncoding({"input_ids": ids})},
        {"data": [BatchEncoding(sample) for sample in samples(LENGTHS)]},
        {"encodings": {"length": LENGTHS, "input_ids": ids}},
        {"input_ids": [torch.ones(length) for length in LENGTHS]},
    ):
        assert_describes(describe_calmly(Own(LENGTHS, **attributes)), LENGTHS)
        assert not Own.asked
    for padded in (torch.ones(70, 9), np.ones((70, 9), np.int64), tuple([1] * 9 for _ in range(70))):
        assert_describes(describe_calmly(Own([9] * 70, encodings={"input_ids": padded})), [9] * 70)
    for other in (torch.ones(70), np.ones(70), [1] * 70, "x" * 70, torch.ones(69, 9)):
        assert "lengths" not in describe_dataset(Own([9] * 70, input_ids=other))


def test_many_stored_samples_take_no_longer_than_they_may() -> None:
    count = 1_000_000
    data = Own([], encodings={"input_ids": [[1, 2]] * (count - 1) + [[1]]})
    object.__setattr__(data, "lengths_of_mine", range(count))
    seconds = iter(range(100))
    tracemalloc.start()
    try:
        found = describe_dataset(data, budget=9.5, clock=lambda: float(next(seconds)))
        assert tracemalloc.get_traced_memory()[1] < 1_000_000
    finally:
        tracemalloc.stop()
    assert (found["read"], found["complete"], found["lengths"]["max"]) == (9 * 64, False, 2)


def test_what_can_only_be_iterated_is_not_touched() -> None:
    class Stream(torch.utils.data.IterableDataset[Any]):
        def __iter__(self) -> Any:
            raise AssertionError("touched")

        def __len__(self) -> int:
            raise AssertionError("touched")

        def __getitem__(self, index: int) -> Any:
            raise AssertionError("touched")

    assert describe_dataset(Stream()) == {"kind": "Stream", "samples": None}
    datasets = pytest.importorskip("datasets")

    def rows() -> Any:
        raise AssertionError("touched")
        yield {}

    stream = datasets.IterableDataset.from_generator(rows)
    assert describe_dataset(stream) == {"kind": "IterableDataset", "samples": None}
    assert describe_dataset(row for row in ()) == {"kind": "generator", "samples": None}


def test_training_and_evaluation_sets_together() -> None:
    evaluation = {"math": samples([1, 2]), "code": Own(LENGTHS)}
    found: list[dict[str, Any]] = []

    def is_whole() -> bool:
        # On a busy machine the time can be over before all was read.
        found.append(describe_datasets(samples(LENGTHS), evaluation))
        return bool(found[-1]["train"].get("complete"))

    wait_for(is_whole)
    assert_describes(found[-1]["train"], LENGTHS)
    assert found[-1]["eval"] == {
        "samples": 2 + len(LENGTHS),
        "sets": {"math": {"kind": "list", "samples": 2}, "code": {"kind": "Own", "samples": len(LENGTHS)}},
    }
    assert not Own.asked
    assert describe_datasets(None) == {}
    assert describe_datasets(None, samples([1]))["eval"] == {"kind": "list", "samples": 1}


def test_an_odd_set_costs_only_itself() -> None:
    class Odd(Own):
        def __len__(self) -> int:
            raise TypeError("who knows")

    from trainwatch.training.safety import Safety

    safety = Safety(quiet=True)
    found = describe_datasets(Odd(LENGTHS), samples([1]), safety)
    assert list(found) == ["eval"]
    assert list(safety.errors) == ["description of the training set"]


@pytest.mark.parametrize("count", [0, 1, 2, 3, 10, 34, 55, 1000])
def test_positions_are_all_and_spread(count: int) -> None:
    found = list(positions(count))
    assert sorted(found) == list(range(count))
    if count >= 1000:
        assert sorted(found[:10])[-1] > 800
        assert sorted(found[:10])[0] < 200
