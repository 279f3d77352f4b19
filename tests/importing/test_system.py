"""Memory traces, nvidia-smi and W&B's system readings: what is read of devices, and what has to be worked out."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from trainwatch.events import Sampled
from trainwatch.importing import ImportedRun, read

GIB = 2**30


def samples(run: ImportedRun) -> list[tuple[int, int | None, Sampled]]:
    return [(point, rank, event) for point, rank, event in run.events() if isinstance(event, Sampled)]


def trace(tmp_path: Path, *rows: str) -> ImportedRun:
    path = tmp_path / "trace.csv"
    path.write_text("t_seconds,series,value,unit\n" + "\n".join(rows) + "\n", "utf-8")
    return read(path)


def test_a_trace_is_put_together_by_time(tmp_path: Path) -> None:
    run = trace(
        tmp_path,
        "0.0,proc.rss,1024,MB",
        "30.0,proc.rss,2048,MB",
        "30.0,gpu.1.memory_allocated_bytes,5000,bytes",
        "0.0,gpu.1.memory_allocated_bytes,4000,bytes",
        "15.0,disk.usage_percent,3,percent",
        "x,proc.rss,1,MB",
    )
    assert run.points == 2
    found = samples(run)
    assert [(point, rank, event.time) for point, rank, event in found] == [(0, 0, 0.0), (1, 0, 30.0)]
    assert found[1][2].devices == {"cpu": {"memory/resident": 2 * GIB}, "cuda:1": {"memory/device_used": 5000}}
    assert run.skipped == {"series disk.usage_percent": 1, "lines without a time or a value": 1}


def test_a_machines_memory_comes_from_what_is_available_and_the_percentage(tmp_path: Path) -> None:
    rows = []
    for second, available in enumerate((50_000, 25_000, 10_000)):
        rows.append(f"{second},host.available,{available},MB")
        rows.append(f"{second},host.memory_percent,{100 - available / 1000:.1f},percent")
    found = samples(trace(tmp_path, *rows))
    assert [rank for _, rank, _ in found] == [None, None, None], "the node's, as an agent records it"
    assert [event.devices["host"]["memory/device_used"] / 2**20 for _, _, event in found] == [50_000, 75_000, 90_000]
    assert {event.devices["host"]["memory/capacity"] / 2**20 for _, _, event in found} == {100_000}


def test_a_cards_size_comes_from_bytes_and_percentage(tmp_path: Path) -> None:
    run = trace(
        tmp_path,
        "0,gpu.0.memory_allocated_bytes,4000,bytes",
        "0,gpu.0.memory_allocated_pct,40,percent",
        "1,gpu.0.memory_allocated_bytes,8000,bytes",
        "1,gpu.0.memory_allocated_pct,80,percent",
    )
    assert [event.devices["cuda:0"] for _, _, event in samples(run)] == [
        {"memory/device_used": 4000, "memory/capacity": 10_000},
        {"memory/device_used": 8000, "memory/capacity": 10_000},
    ]
    assert run.notes == []


def test_percentages_alone_are_shown_as_a_hundred_gib(tmp_path: Path) -> None:
    run = trace(tmp_path, "0,gpu.0.memory_allocated_pct,25,percent")
    assert samples(run)[0][2].devices == {"cuda:0": {"memory/device_used": 25 * GIB, "memory/capacity": 100 * GIB}}
    assert "percentages only" in run.notes[0]


@pytest.mark.parametrize(
    ("used", "assumed"),
    [(79 * GIB, 80 * GIB), (44 * GIB, 48 * GIB), (55 * GIB, None), (3 * GIB, None), (500 * GIB, None)],
)
def test_a_card_is_assumed_only_where_one_fits(tmp_path: Path, used: int, assumed: int | None) -> None:
    run = trace(
        tmp_path,
        "0,gpu.0.memory_allocated_bytes,1000,bytes",
        f"1,gpu.0.memory_allocated_bytes,{used},bytes",
        "2,gpu.1.memory_allocated_bytes,1000,bytes",
    )
    assert {device.get("memory/capacity") for _, _, event in samples(run) for device in event.devices.values()} == {
        assumed
    }
    assert bool(run.notes) == bool(assumed)


def test_a_series_twice_at_one_time_is_two_samples_of_one_point(tmp_path: Path) -> None:
    run = trace(tmp_path, "0,proc.rss,1,MB", "0,proc.rss,2,MB", "5,proc.rss,3,MB")
    assert [point for point, _, _ in samples(run)] == [0, 0, 1]


@pytest.mark.parametrize(
    "text",
    [
        "timestamp, index, memory.used [MiB], memory.total [MiB], utilization.gpu [%]\n"
        "2024/03/01 10:00:00.000, 0, 100 MiB, 1000 MiB, 50 %\n"
        "2024/03/01 10:00:00.004, 1, 200 MiB, 1000 MiB, 50 %\n"
        "2024/03/01 10:00:01.000, 0, 110 MiB, 1000 MiB, 50 %\n"
        "2024/03/01 10:00:01.004, 1, [N/A], 1000 MiB, 50 %\n",
        "timestamp, index, memory.used [MiB], memory.total [MiB]\n"
        "2024/03/01 10:00:00.000, 0, 100, 1000\n"
        "2024/03/01 10:00:00.004, 1, 200, 1000\n"
        "2024/03/01 10:00:01.000, 0, 110, 1000\n"
        "2024/03/01 10:00:01.004, 1, [N/A], 1000\n",
        "2024/03/01 10:00:00.000, 0, 100 MiB, 1000 MiB\n"
        "2024/03/01 10:00:00.004, 1, 200 MiB, 1000 MiB\n"
        "2024/03/01 10:00:01.000, 0, 110 MiB, 1000 MiB\n"
        "2024/03/01 10:00:01.004, 1, [N/A], 1000 MiB\n",
        "2024/03/01 10:00:00.000, 0, 100, 1000\n"
        "2024/03/01 10:00:00.004, 1, 200, 1000\n"
        "2024/03/01 10:00:01.000, 0, 110, 1000\n"
        "2024/03/01 10:00:01.004, 1, [N/A], 1000\n",
        "2024/03/01 10:00:00.000, 0, NVIDIA A100, 37, 100 MiB, 1000 MiB\n"
        "2024/03/01 10:00:00.004, 1, NVIDIA A100, 37, 200 MiB, 1000 MiB\n"
        "2024/03/01 10:00:01.000, 0, NVIDIA A100, 37, 110 MiB, 1000 MiB\n"
        "2024/03/01 10:00:01.004, 1, NVIDIA A100, 37, [N/A], 1000 MiB\n",
    ],
    ids=["units", "nounits", "noheader", "noheader,nounits", "noheader, more columns"],
)
def test_nvidia_smi(tmp_path: Path, text: str) -> None:
    path = tmp_path / "gpu.csv"
    path.write_text(text, "utf-8")
    run = read(path)
    assert (run.format, run.points, run.clock) == ("nvidia-smi CSV", 2, "file")
    first, second = (event for _, _, event in samples(run))
    assert second.time - first.time == 1.0
    used = {device: values.get("memory/device_used") for device, values in first.devices.items()}
    assert used == {"cuda:0": 100 * 2**20, "cuda:1": 200 * 2**20}
    assert {values["memory/capacity"] for values in first.devices.values()} == {1000 * 2**20}
    assert second.devices["cuda:0"]["memory/device_used"] == 110 * 2**20
    assert "memory/device_used" not in second.devices["cuda:1"]
    assert run.skipped == {"values of memory.used that are no number": 1}


@pytest.mark.parametrize("cell", ["1.2.3 MiB", ".", "-"])
def test_what_is_no_number_in_nvidia_smi_is_counted(tmp_path: Path, cell: str) -> None:
    path = tmp_path / "smi.csv"
    rows = [f"2024/01/01 00:00:0{second}.000, 0, {used}" for second, used in enumerate((cell, ".5 MiB", "5. MiB"))]
    path.write_text("timestamp, index, memory.used [MiB]\n" + "\n".join(rows) + "\n", "utf-8")
    run = read(path)
    assert run.skipped == {"values of memory.used that are no number": 1}
    assert run.points == 2


def test_nvidia_smi_without_an_index_has_the_cards_in_their_order(tmp_path: Path) -> None:
    path = tmp_path / "gpu.csv"
    path.write_text(
        "timestamp, memory.used [MiB]\n2024/03/01 10:00:00, 100 MiB\n2024/03/01 10:00:00, 200 MiB\n", "utf-8"
    )
    (found,) = samples(read(path))
    assert set(found[2].devices) == {"cuda:0", "cuda:1"}


def test_wandb_events(tmp_path: Path) -> None:
    path = tmp_path / "wandb-events.jsonl"
    lines = [
        {"system.gpu.0.memoryAllocated": 40, "system.gpu.0.memoryAllocatedBytes": 4000, "_timestamp": 100.0},
        {"system.gpu.0.gpu": 50, "system.proc.memory.rssMB": 2.0, "system.disk": 3, "_timestamp": 102.0},
        {"system.cpu": 10},
    ]
    path.write_text("\n".join(map(json.dumps, lines)) + '\n{"system.cpu": 1', "utf-8")
    run = read(path)
    assert (run.format, run.clock) == ("W&B system readings", "file")
    assert [event.devices for _, _, event in samples(run)] == [
        {"cuda:0": {"memory/device_used": 4000, "memory/capacity": 10_000}},
        {"cuda:0": {"device/utilization": 0.5}, "cpu": {"memory/resident": 2 * 2**20}},
    ]
    assert run.skipped["last line cut off"] == 1
    assert run.skipped["lines without a time"] == 1
