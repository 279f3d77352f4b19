"""The room on a disk and the size of a folder, on this machine's own."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from trainwatch.probes import disk


def test_the_room_is_what_the_kernel_says(tmp_path: Path) -> None:
    found = disk.room(tmp_path)
    kernel = os.statvfs(tmp_path)
    assert found is not None
    assert found[0] == pytest.approx(kernel.f_bavail * kernel.f_frsize, abs=1 << 30)
    assert found[1] == kernel.f_blocks * kernel.f_frsize


def test_a_folder_that_is_not_there_yet_has_the_room_of_what_it_will_be_made_in(tmp_path: Path) -> None:
    here, later = disk.room(tmp_path), disk.room(tmp_path / "a" / "b")
    assert here is not None
    assert later is not None
    assert here[1] == later[1]
    (tmp_path / "file").touch()
    assert disk.room(tmp_path / "file" / "below") is not None


def test_the_size_of_a_folder_is_that_of_its_files(tmp_path: Path) -> None:
    (tmp_path / "one.safetensors").write_bytes(b"x" * 1000)
    (tmp_path / "state").mkdir()
    (tmp_path / "state" / "two.pt").write_bytes(b"x" * 234)
    (tmp_path / "round").symlink_to(tmp_path, target_is_directory=True)
    assert disk.size(tmp_path) == pytest.approx(1234, abs=200)  # a link has the length of its target
    assert disk.size(tmp_path / "one.safetensors") == 1000
    assert disk.size(tmp_path / "gone") is None
