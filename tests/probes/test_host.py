"""Host memory, processes and cgroups: against this machine, and against file trees of other ones."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from tests.patience import PATIENCE, wait_for
from trainwatch.probes import cgroup, family, host

GIB = 1 << 30


def test_this_process_is_measured_as_psutil_measures_it() -> None:
    process = psutil.Process()
    assert host.resident() == pytest.approx(process.memory_info().rss, rel=0.05)
    assert host.resident(os.getpid()) == pytest.approx(process.memory_info().rss, rel=0.05)
    assert host.started() == pytest.approx(process.create_time(), abs=1.5)
    machine = host.machine_memory()
    assert machine is not None
    assert machine[1] == psutil.virtual_memory().total
    capacity = host.capacity()
    assert capacity is not None
    assert 0 < capacity <= machine[1]


def test_a_process_is_alive_until_it_is_not_also_as_a_zombie() -> None:
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    created = host.started(process.pid)
    assert created == pytest.approx(time.time(), abs=30)
    assert created is not None
    assert host.is_alive(process.pid, created)
    assert host.is_alive(process.pid, 0.0)
    assert not host.is_alive(process.pid, created - 100)
    process.kill()
    wait_for(lambda: not host.is_alive(process.pid, created))  # nobody has waited for it yet
    assert host.started(process.pid) is None
    process.communicate()
    assert not host.is_alive(process.pid, 0.0)
    assert host.resident(process.pid) is None
    assert family.tree_resident(process.pid) is None


def test_a_command_with_brackets_and_spaces_hides_nothing(tmp_path: Path) -> None:
    (tmp_path / "proc/7").mkdir(parents=True)
    (tmp_path / "proc/stat").write_text("cpu 1 2\nbtime 1700000000\n")
    rest = " ".join(["S", *["0"] * 18, "5000", "0"])
    (tmp_path / "proc/7/stat").write_text(f"7 (a ) Z (b) {rest}")
    assert host.started(7, tmp_path) == pytest.approx(1700000000 + 5000 / os.sysconf("SC_CLK_TCK"))


def test_a_tree_weighs_more_than_its_root() -> None:
    code = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'print(1, flush=True); input()'])"
    process = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        assert process.stdout
        process.stdout.readline()
        root, tree = host.resident(process.pid), family.tree_resident(process.pid)
        assert root
        assert tree
        assert tree > 1.3 * root
    finally:
        process.communicate(b"\n", timeout=PATIENCE)


class Processes:
    """A machine's processes, by number: who started them and how many pages they hold."""

    def __init__(self, root: Path, **processes: tuple[int, int]) -> None:
        for name, (parent, pages) in processes.items():
            folder = root / "proc" / name.removeprefix("p")
            folder.mkdir(parents=True)
            (folder / "stat").write_text(f"{folder.name} (a (b) c) S {parent} {' '.join(['0'] * 20)}")
            (folder / "statm").write_text(f"9999 {pages} 1 1 0 1 0")
            (folder / "comm").write_text("pt_data_worker\n")


def test_trees_are_weighed_together(tmp_path: Path) -> None:
    page = os.sysconf("SC_PAGE_SIZE")
    Processes(tmp_path, p1=(0, 1), p7=(1, 10), p8=(7, 20), p9=(8, 30), p10=(1, 40), p11=(12, 50), p12=(11, 60))
    trees = family.trees_resident([7, 8, 10, 11, 99], tmp_path)
    # 11 and 12 are each other's parent, as processes that come and go can look.
    assert {pid: size // page for pid, size in trees.items()} == {7: 60, 8: 50, 10: 40, 11: 110}
    assert family.tree_resident(7, tmp_path) == 60 * page
    assert family.descends(9, {7}, tmp_path)
    assert not family.descends(10, {7}, tmp_path)
    assert not family.descends(11, {7}, tmp_path)
    name, owner = family.name_and_owner(8, tmp_path)
    assert name == "pt_data_worker"
    assert owner


def test_the_share_of_busy_cores(tmp_path: Path) -> None:
    (tmp_path / "proc").mkdir()
    stat = tmp_path / "proc/stat"
    stat.write_text("cpu  100 0 100 700 100 0 0 0 0 0\n")
    meter = host.CpuMeter(tmp_path)
    assert meter.read() is None
    stat.write_text("cpu  130 0 120 740 110 0 0 0 0 0\n")
    assert meter.read() == 0.5
    stat.write_text("broken")
    assert meter.read() is None


class Machine:
    """The files of another machine, of which process 7 is watched."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.write(
            "proc/meminfo", f"MemTotal: {64 * GIB // 1024} kB\nMemFree: 0 kB\nMemAvailable: {48 * GIB // 1024} kB\n"
        )
        self.write("proc/stat", "cpu 1 2 3 4 5 6 7 8\nbtime 1\n")

    def write(self, path: str, text: str | int) -> None:
        (self.root / path).parent.mkdir(parents=True, exist_ok=True)
        (self.root / path).write_text(f"{text}\n")

    def cgroups(self, path_of_process: str, mounts: str) -> None:
        self.write("proc/7/cgroup", path_of_process)
        self.write("proc/self/mountinfo", mounts)

    def v2(self, group: str, used: int, cache: int, limit: int | str, oom_kills: int = 0) -> None:
        folder = f"sys/fs/cgroup{group}"
        self.write(f"{folder}/memory.current", used)
        self.write(f"{folder}/memory.max", limit)
        self.write(f"{folder}/memory.stat", f"anon 1\ninactive_file {cache}\nactive_file 3\nfile_mapped 3")
        self.write(f"{folder}/memory.events", f"low 0\noom 9\noom_kill {oom_kills}")

    def v1(self, group: str, used: int, cache: int, limit: int, oom_kills: int | None = 0) -> None:
        folder = f"sys/fs/cgroup/memory{group}"
        self.write(f"{folder}/memory.usage_in_bytes", used)
        self.write(f"{folder}/memory.limit_in_bytes", limit)
        self.write(f"{folder}/memory.stat", f"cache 1\ninactive_file 5\ntotal_inactive_file {cache}")
        text = "oom_kill_disable 0\nunder_oom 0"
        self.write(f"{folder}/memory.oom_control", text if oom_kills is None else f"{text}\noom_kill {oom_kills}")


V2_MOUNT = "31 23 0:28 / /sys/fs/cgroup rw,relatime shared:4 - cgroup2 cgroup2 rw,nsdelegate"
V1_MOUNT = "35 31 0:32 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory"
NO_LIMIT_V1 = 9223372036854771712


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


@pytest.mark.parametrize("version", [1, 2])
def test_page_cache_does_not_count_as_used_unless_it_is_mapped(machine: Machine, version: int) -> None:
    folder = "sys/fs/cgroup" + ("/memory" if version == 1 else "")
    total = "total_" if version == 1 else ""
    machine.write(f"{folder}/{'memory.usage_in_bytes' if version == 1 else 'memory.current'}", 1000)
    stat = f"active_file 1\n{total}inactive_file 200\n{total}active_file 300\n{total}mapped_file 50\nfile_mapped 50"
    machine.write(f"{folder}/memory.stat", stat)
    group = cgroup.Cgroup(version, machine.root / folder, machine.root / folder)
    assert group.used() == 1000 - 200 - (300 - 50)


def check(machine: Machine, capacity: int, used: int, oom_kills: int | None) -> None:
    assert host.capacity(7, machine.root) == capacity
    values = host.HostProbe(7, machine.root).read()["host"]
    assert values["memory/capacity"] == capacity
    assert values["memory/device_used"] == used
    group = cgroup.find(7, machine.root)
    assert (group.oom_kills() if group else 0) == (oom_kills or 0)
    # Where nobody counts there is no count, which is not a count of 0.
    assert values.get("host/oom_kills") == oom_kills
    assert "memory/shared" not in values


def test_version_2_with_a_limit(machine: Machine) -> None:
    machine.cgroups("0::/job/step", V2_MOUNT)
    machine.v2("/job", 9 * GIB, 2 * GIB, "max")
    machine.v2("/job/step", 8 * GIB, 1 * GIB, 16 * GIB, oom_kills=3)
    check(machine, 16 * GIB, 7 * GIB, 3)


def test_version_2_with_the_tightest_limit_above(machine: Machine) -> None:
    machine.cgroups("0::/job/step", V2_MOUNT)
    machine.v2("/job", 9 * GIB, 2 * GIB, 12 * GIB)
    machine.v2("/job/step", 8 * GIB, 1 * GIB, 16 * GIB)
    check(machine, 12 * GIB, 7 * GIB, 0)


@pytest.mark.parametrize("limit", ["max", 100 * GIB])
def test_a_limit_that_does_not_bind_leaves_the_machines(machine: Machine, limit: int | str) -> None:
    machine.cgroups("0::/job", V2_MOUNT)
    machine.v2("/job", 8 * GIB, 1 * GIB, limit)
    check(machine, 64 * GIB, 16 * GIB, 0)


def test_version_2_in_a_container_with_a_cgroup_namespace(machine: Machine) -> None:
    machine.cgroups("0::/", V2_MOUNT)
    machine.v2("", 5 * GIB, 1 * GIB, 8 * GIB, oom_kills=1)
    check(machine, 8 * GIB, 4 * GIB, 1)


def test_version_1_with_a_limit(machine: Machine) -> None:
    machine.cgroups("12:memory:/slurm/job\n5:cpu,cpuacct:/x\n0::/y", V1_MOUNT)
    machine.v1("", 30 * GIB, 0, NO_LIMIT_V1)
    machine.v1("/slurm", 20 * GIB, 0, NO_LIMIT_V1)
    machine.v1("/slurm/job", 10 * GIB, 4 * GIB, 32 * GIB, oom_kills=2)
    check(machine, 32 * GIB, 6 * GIB, 2)


def test_version_1_in_a_container_that_sees_its_path_from_outside(machine: Machine) -> None:
    mount = "35 31 0:32 /docker/abc /sys/fs/cgroup/memory ro,relatime - cgroup cgroup rw,memory"
    machine.cgroups("12:memory:/docker/abc", mount)
    machine.v1("", 10 * GIB, 4 * GIB, 24 * GIB, oom_kills=None)
    check(machine, 24 * GIB, 6 * GIB, None)


def test_a_hybrid_machine_keeps_memory_in_version_1(machine: Machine) -> None:
    unified = "41 31 0:38 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw"
    machine.cgroups("4:memory:/job\n0::/", f"{unified}\n{V1_MOUNT}")
    machine.v1("/job", 2 * GIB, 1 * GIB, 4 * GIB)
    check(machine, 4 * GIB, 1 * GIB, 0)


def test_a_group_that_is_not_visible_or_not_there(machine: Machine) -> None:
    machine.cgroups("0::/../../elsewhere", V2_MOUNT)
    check(machine, 64 * GIB, 16 * GIB, None)
    machine.cgroups("", "")
    check(machine, 64 * GIB, 16 * GIB, None)
    assert cgroup.find(8, machine.root) is None


def test_a_group_still_counts_oom_kills_when_its_process_is_gone(machine: Machine) -> None:
    machine.cgroups("0::/job", V2_MOUNT)
    machine.v2("/job", 1, 0, GIB)
    group = cgroup.find(7, machine.root)
    assert group
    (machine.root / "proc/7/cgroup").unlink()
    machine.v2("/job", 1, 0, GIB, oom_kills=1)
    assert group.oom_kills() == 1


def test_a_machine_that_tells_nothing(tmp_path: Path) -> None:
    assert host.machine_memory(tmp_path) is None
    assert host.capacity(7, tmp_path) is None
    assert host.resident(7, tmp_path) is None
    assert host.HostProbe(7, tmp_path).read() == {"host": {}}


def test_importing_the_probes_costs_the_training_nothing() -> None:
    code = "import sys, trainwatch.probes.host, trainwatch.probes.nvml; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert not {"psutil", "pynvml", "numpy", "torch", "subprocess"} & set(loaded)
