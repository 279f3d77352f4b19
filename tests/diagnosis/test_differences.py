from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trainwatch.diagnosis.differences import MOST_VALUES, Difference, differences, span_of


def environments(*each: dict[str, Any]) -> list[Difference]:
    return differences({rank: {"environment": environment} for rank, environment in enumerate(each)})


def variables(**each: list[str | None]) -> list[Difference]:
    count = len(next(iter(each.values())))
    return environments(
        *(
            {"variables": {name: values[rank] for name, values in each.items() if values[rank] is not None}, "a": 1}
            for rank in range(count)
        )
    )


def test_a_version_that_differs_is_a_warning_with_its_ranks() -> None:
    torch = ["2.9.0", "2.9.0", "2.8.1", "2.9.0", "2.9.0"]
    (found,) = environments(*({"packages": {"torch": version, "numpy": "2.0"}} for version in torch))
    assert (found.key, found.severity) == ("environment.packages.torch", "warning")
    assert [(holder.value, holder.ranks, holder.span) for holder in found.holders] == [
        ("2.9.0", [0, 1, 3, 4], "0-1, 3-4"),
        ("2.8.1", [2], "2"),
    ]


@pytest.mark.parametrize(
    ("name", "severity"),
    [
        ("NCCL_ALGO", "warning"),
        ("NCCL_DEBUG", "info"),
        ("NCCL_SOCKET_IFNAME", "info"),
        ("OMP_NUM_THREADS", "info"),
        ("WORLD_SIZE", "warning"),
    ],
)
def test_variables_that_differ(name: str, severity: str) -> None:
    (found,) = variables(**{name: ["a", "b"]})
    assert (found.key, found.severity) == (f"environment.variables.{name}", severity)


def test_a_variable_that_is_set_on_some_ranks_only() -> None:
    (found,) = variables(NCCL_P2P_DISABLE=[None, "1", None])
    assert [(holder.value, holder.span) for holder in found.holders] == [(None, "0, 2"), ("1", "1")]


@pytest.mark.parametrize(
    "name",
    [
        "RANK",
        "LOCAL_RANK",
        "MASTER_PORT",
        "SLURM_PROCID",
        "SLURMD_NODENAME",
        "OMPI_COMM_WORLD_RANK",
        "TORCHELASTIC_ERROR_FILE",
        "CUDA_VISIBLE_DEVICES",
        "HIP_VISIBLE_DEVICES",
    ],
)
def test_what_must_differ_is_not_shown(name: str) -> None:
    assert not variables(**{name: ["0", "1", "2"]})


def test_visible_devices_are_shown_when_they_are_not_one_each() -> None:
    (found,) = variables(CUDA_VISIBLE_DEVICES=["0,1", "0,1,2,3"])
    assert [holder.value for holder in found.holders] == ["0,1", "0,1,2,3"]
    assert variables(CUDA_VISIBLE_DEVICES=["0", None])


def test_hosts_devices_and_the_rank_option_of_the_command_may_differ() -> None:
    assert not environments(
        *(
            {
                "hostname": f"gpu{rank}",
                "device": f"cuda:{rank}",
                "pid": rank,
                "device_uuids": {f"cuda:{rank}": f"GPU-{rank}"},
                "gpu": {"numa": rank, "memory": 80_000_000_000 + rank},
                "command": f"train.py --local-rank={rank} --lr 1",
                "memory": {"total": 1_000_000_000 + rank},
            }
            for rank in range(4)
        )
    )
    assert [found.key for found in environments({"device": "cuda:0"}, {"device": "cpu"})] == ["environment.device"]
    assert environments({"memory": {"total": 10**9}}, {"memory": {"total": 2 * 10**9}})
    assert environments({"command": "train.py --lr 1"}, {"command": "train.py --lr 2"})


def test_code_that_differs_is_shown_and_what_could_not_be_told_is_not() -> None:
    (found,) = environments({"git": {"commit": "a", "dirty": True}}, {"git": {"commit": "b"}})
    assert (found.key, found.severity) == ("environment.git.commit", "warning")
    (found,) = environments({"git": {"dirty": True}}, {"git": {"dirty": False}}, {"git": {"branch": None}})
    assert (found.key, [holder.value for holder in found.holders]) == ("environment.git.dirty", ["True", "False"])


def test_models_arguments_and_data() -> None:
    ranks = {
        rank: {
            "model": {"parameters": 10 + rank, "devices": [f"cuda:{rank}"], "device_map": {"": rank}},
            "arguments": {"learning_rate": 0.1, "local_rank": rank, "seed": rank},
            "dataset": {"train": {"samples": 100 - rank}},
        }
        for rank in range(2)
    }
    found = differences(ranks)
    assert [difference.key for difference in found] == ["arguments.seed", "dataset.train.samples", "model.parameters"]
    assert {difference.severity for difference in found} == {"warning"}


def test_a_device_map_that_spreads_differently_is_shown() -> None:
    spread = {"embed": 0, "head": 1}
    (found,) = differences({0: {"model": {"device_map": spread}}, 1: {"model": {"device_map": {**spread, "head": 0}}}})
    assert found.key == "model.device_map"


def test_a_rank_that_said_nothing_is_left_out() -> None:
    same = {"packages": {"torch": "2.9.0"}}
    assert not differences({0: {"environment": same}, 1: {"environment": {}}, 2: {}, 3: {"environment": same}})
    assert not differences({})
    assert not differences({0: {"environment": same}})


def test_a_part_that_only_some_ranks_have_is_one_difference() -> None:
    (found,) = environments({"git": {"commit": "abc", "branch": "main"}}, {"python": None})
    assert found.key == "environment.git"
    assert [holder.value for holder in found.holders] == ["{branch: main, commit: abc}", None]


def test_long_values_show_where_they_differ() -> None:
    (found,) = environments({"x": "a" * 500 + "1" + "b" * 500}, {"x": "a" * 500 + "2" + "b" * 500})
    texts = [holder.value or "" for holder in found.holders]
    assert all(len(text) < 200 for text in texts)
    assert "1" in texts[0]
    assert "2" in texts[1]


def test_many_values_are_counted() -> None:
    (found,) = environments(*({"x": str(rank)} for rank in range(50)))
    assert (len(found.holders), found.more) == (MOST_VALUES, 50 - MOST_VALUES)


def test_a_value_that_is_not_set_beside_nothing_else_is_no_difference() -> None:
    assert not environments({"a": None, "b": 1}, {"b": 1})


@pytest.mark.parametrize(
    ("ranks", "text"), [([], ""), ([3], "3"), ([0, 1], "0-1"), ([5, 1, 2, 0, 2], "0-2, 5"), ([0, 2, 4], "0, 2, 4")]
)
def test_spans(ranks: list[int], text: str) -> None:
    assert span_of(ranks) == text


leaf = st.none() | st.booleans() | st.integers() | st.floats() | st.sampled_from(["", "a", "cuda:0", "b" * 400, "ü,"])
names = st.sampled_from(["device", "variables", "RANK", "CUDA_VISIBLE_DEVICES", "memory", "device_map", "x", ""])
section = st.dictionaries(
    names, leaf | st.lists(leaf, max_size=3) | st.dictionaries(names, leaf, max_size=3), max_size=4
)


@settings(deadline=None, max_examples=60)
@given(st.dictionaries(st.integers(0, 6), st.dictionaries(st.sampled_from(["environment", "model"]), section)))
def test_whatever_the_ranks_said_is_compared_without_an_error(ranks: dict[int, dict[str, Any]]) -> None:
    found = differences(ranks)
    msgspec.json.encode(found)
    for difference in found:
        assert len(difference.holders) + difference.more > 1
        told = [rank for holder in difference.holders for rank in holder.ranks]
        assert len(told) == len(set(told))
    assert not differences({rank: {"environment": {"a": ranks}} for rank in ranks})
