"""W&B's ``.wandb`` and TensorBoard's event files, whole and damaged."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from tests.importing import encoding
from trainwatch.events import Evaluated, Logged, RunEnded, RunStarted, Sampled
from trainwatch.importing import ImportedRun, OtherFileError, read


def put(tmp_path: Path, name: str, content: bytes) -> ImportedRun:
    path = tmp_path / name
    path.write_bytes(content)
    return read(path)


def logged(count: int, text: str = "") -> list[bytes]:
    return [
        encoding.history(
            {"train/loss": 1.0 / (n + 1), "train/global_step": n * 10, "_step": n, "_timestamp": 100.0 + n, "x": text}
        )
        for n in range(count)
    ]


def test_a_wandb_file(tmp_path: Path) -> None:
    content = encoding.wandb_file(
        encoding.run("my run", "proj"),
        encoding.stats(99.5, {"gpu.0.memoryAllocatedBytes": 5000, "disk.in": 3, "proc.memory.rssMB": 1.0}),
        *logged(3),
        encoding.history({"eval/loss": math.nan, "train/global_step": 20, "_timestamp": 103.0}),
        encoding.history({"train/grad_norm": "Infinity", "train/global_step": 30, "_timestamp": 104.0, "table": "a"}),
        encoding.exited(0),
    )
    run = put(tmp_path, "run-abc.wandb", content)
    assert (run.name, run.project, run.format, run.clock, run.points) == ("my run", "proj", ".wandb", "file", 5)
    found = list(run.events())
    assert [(point, type(event)) for point, _, event in found] == [
        (0, RunStarted),
        (0, Sampled),
        (0, Logged),
        (1, Logged),
        (2, Logged),
        (3, Evaluated),
        (4, Logged),
        (4, RunEnded),
    ]
    by_type = [event for _, _, event in found if isinstance(event, Logged)]
    assert [event.step for event in by_type] == [0, 10, 20, 30]
    assert by_type[-1].values == {"train/grad_norm": math.inf}
    assert found[1][2].devices == {"cuda:0": {"memory/device_used": 5000}, "cpu": {"memory/resident": 2**20}}
    assert math.isnan(found[5][2].values["eval/loss_reported"])
    assert run.skipped == {}


def test_numbers_as_newer_versions_write_them(tmp_path: Path) -> None:
    items = [
        encoding.field(1, encoding.field(1, "train/loss") + encoding.field(6, 0.25)),
        encoding.field(1, encoding.field(1, "train/global_step") + encoding.field(5, 40)),
        encoding.field(1, encoding.field(2, "a") + encoding.field(2, "b") + encoding.field(5, -3)),
    ]
    (event,) = (
        event
        for _, _, event in put(tmp_path, "a.wandb", encoding.wandb_file(encoding.field(2, b"".join(items)))).events()
        if isinstance(event, Logged)
    )
    assert (event.step, event.values) == (40, {"train/loss_logged": 0.25, "train/a.b": -3.0})


def test_a_run_that_failed_has_no_finished_end(tmp_path: Path) -> None:
    run = put(tmp_path, "a.wandb", encoding.wandb_file(*logged(2), encoding.exited(255)))
    assert not [event for _, _, event in run.events() if isinstance(event, RunEnded)]
    assert run.notes == ["W&B noted exit status 255."]


def test_system_readings_alone_are_a_run_too(tmp_path: Path) -> None:
    records = [encoding.stats(100.0 + n, {"gpu.0.memoryAllocatedBytes": n}) for n in range(3)]
    run = put(tmp_path, "a.wandb", encoding.wandb_file(encoding.run("r", "p"), *records))
    assert [type(event) for _, _, event in run.events()] == [RunStarted, Sampled, Sampled, Sampled]


def test_records_that_span_blocks(tmp_path: Path) -> None:
    run = put(tmp_path, "a.wandb", encoding.wandb_file(*logged(40, "y" * 5000), *logged(2, "z" * 100_000)))
    assert (run.points, run.skipped) == (42, {})


@pytest.mark.parametrize("cut", [1, 5, 20, 100])
def test_a_wandb_file_that_is_cut_off(tmp_path: Path, cut: int) -> None:
    whole = encoding.wandb_file(*logged(10))
    run = put(tmp_path, "a.wandb", whole[:-cut])
    assert run.points in (9, 8)
    assert run.skipped == {"last record cut off": 1}


def test_behind_a_damaged_block_it_goes_on(tmp_path: Path) -> None:
    whole = bytearray(encoding.wandb_file(*logged(200, "y" * 1000)))
    before = put(tmp_path, "a.wandb", bytes(whole)).points
    whole[40_000] ^= 0xFF
    run = put(tmp_path, "a.wandb", bytes(whole))
    assert before == 200
    assert 200 - 2 * encoding.BLOCK / 1000 < run.points < 200
    assert run.skipped["damaged records"] >= 1


def test_a_wandb_file_without_anything(tmp_path: Path) -> None:
    with pytest.raises(OtherFileError, match="logged nothing"):
        put(tmp_path, "a.wandb", encoding.wandb_file(encoding.run("r", "p")))


def events() -> list[bytes]:
    return [
        encoding.event(1000.0, 0, encoding.scalar("train/loss", 4.0)),
        encoding.event(1000.1, 0, encoding.scalar("train/learning_rate", 0.5)),
        encoding.event(1010.0, 10, encoding.scalar("train/loss", math.nan), encoding.scalar("train/grad_norm", 2.0)),
        encoding.event(1011.0, 10, encoding.tensor("eval/loss", 1.5)),
        encoding.event(1020.0, 10, encoding.scalar("train/loss", 3.0)),
        encoding.event(1021.0, 10, encoding.field(1, "args/text_summary")),
    ]


def test_event_files(tmp_path: Path) -> None:
    run = put(tmp_path, "events.out.tfevents.1.host", encoding.event_file(*events()))
    assert (run.format, run.clock, run.started) == ("TensorBoard events", "file", 1000.0)
    assert run.name == tmp_path.name
    found = [(point, event) for point, _, event in run.events()][1:]
    assert [(point, type(event), event.time) for point, event in found] == [
        (0, Logged, 1000.0),
        (1, Logged, 1010.0),
        (2, Evaluated, 1011.0),
        (3, Logged, 1020.0),  # the same step once more: a resumed run
    ]
    assert found[0][1].values == {"train/loss_logged": 4.0, "train/learning_rate": 0.5}
    assert math.isnan(found[1][1].values["train/loss_logged"])
    assert found[2][1].values == {"eval/loss_reported": 1.5}


def test_an_event_file_under_another_name(tmp_path: Path) -> None:
    assert put(tmp_path, "metrics.bin", encoding.event_file(*events())).points == 4


@pytest.mark.parametrize("cut", [1, 6, 30])
def test_an_event_file_that_is_cut_off(tmp_path: Path, cut: int) -> None:
    run = put(tmp_path, "events.out.tfevents.1", encoding.event_file(*events())[:-cut])
    assert run.points == 4
    assert run.skipped == {"last record cut off": 1}


def test_behind_a_damaged_length_nothing_can_be_found(tmp_path: Path) -> None:
    content = bytearray(encoding.event_file(*events()))
    content[len(encoding.event_file(*events()[:3])) + 2] ^= 1
    run = put(tmp_path, "events.out.tfevents.1", bytes(content))
    assert run.points == 2
    assert list(run.skipped.values()) == [1]


def test_an_event_file_without_scalars(tmp_path: Path) -> None:
    with pytest.raises(OtherFileError, match="no scalar"):
        put(tmp_path, "events.out.tfevents.1", encoding.event_file())
