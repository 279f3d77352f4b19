"""NVIDIA devices: whose they are, what is read of them, and that nothing escapes when they misbehave."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.probes.machine import Machine, build
from trainwatch.probes.gpu import Circle, User, split
from trainwatch.probes.visible import Wanted, resolve, visible

MIB = 1 << 20
PID = 4_200_000  # beyond all that Linux gives out
OTHER = 4_200_001
BY_BUS = {"variables": {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}}
ALL = [f"cuda:{index}" for index in range(8)]


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("nvml"))


@pytest.fixture
def machine(library: Path, tmp_path: Path) -> Machine:
    return Machine(library, tmp_path)


def gpu_uuid(gpu: int) -> str:
    return f"GPU-{gpu}0000000-1111-2222-3333-444444444444"


def slice_uuid(gpu: int, index: int) -> str:
    return f"MIG-{gpu}{index}000000-1111-2222-3333-444444444444"


def bare(uuid: str) -> str:
    return uuid.partition("-")[2]


def once(machine: Machine, world: str, environment: dict[str, Any], names: list[str], **more: Any) -> Any:
    """The readings of one moment."""
    return machine.run("read", story=[(0.0, world)], environment=environment, names=names, **more)[0]


def used(readings: dict[str, dict[str, float]]) -> dict[str, float]:
    return {name: values["memory/device_used"] / MIB for name, values in readings.items()}


# -- which device is which ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("order", "index", "expected"),
    [
        (None, 0, 0),
        (None, 3, 3),
        ("2,3", 0, 2),
        ("2, 3", 1, 3),
        ("2,3", 2, None),
        ("", 0, None),
        ("-1", 0, None),
        ("NoDevFiles", 0, None),
        ("0,-1,1", 1, None),
        ("1,x,2", 0, 1),
        ("GPU-8932f937-d72c-4106-c12f-20bd9faed9f6,GPU-5a", 1, "GPU-5a"),
        ("MIG-b8ea3855-276c-c9cb-b366-c6fa655957c5", 0, "MIG-b8ea3855-276c-c9cb-b366-c6fa655957c5"),
        ("MIG-GPU-8932f937-d72c-4106-c12f-20bd9faed9f6/1/0", 0, "MIG-GPU-8932f937-d72c-4106-c12f-20bd9faed9f6/1/0"),
    ],
)
def test_cuda_visible_devices_is_read_as_cuda_reads_it(order: str | None, index: int, expected: int | str) -> None:
    assert resolve(order, index) == expected


def test_only_devices_that_exist_for_the_process_are_looked_for() -> None:
    environment = {"cuda_visible_devices": "4,5"}
    assert visible(environment, ["cuda:1", "cpu"]) == {"cuda:1": Wanted(entry=5)}
    assert visible(environment, ["cuda:7"]) == {}
    assert visible({}, ["cuda:0", "cuda:2"]) == {"cuda:0": Wanted(entry=0), "cuda:2": Wanted(entry=2)}
    assert visible({}, ["cpu", "mps", "None"]) == {}
    known = {"device_uuids": {"cuda:0": "abc"}, "cuda_visible_devices": "GPU-abc", **BY_BUS}
    assert visible(known, ["cuda:0", "cuda:1"]) == {"cuda:0": Wanted("abc", "GPU-abc", True)}


MIXED = "gpus 4\nmodel 0 Tesla T4\nmodel 1 H100\nmodel 2 H100\nmodel 3 Tesla T4"
SLICED = "gpus 4\nsliced 2 2\nsliced 3 0"


@pytest.mark.parametrize("count", [1, 2, 4, 8])
def test_every_device_of_a_machine_of_equals(machine: Machine, count: int) -> None:
    readings, _ = once(machine, f"gpus {count}", {}, ALL)
    assert used(readings) == {f"cuda:{index}": 100 * (index + 1) for index in range(count)}
    assert readings["cuda:0"]["memory/capacity"] == 1000 * MIB
    assert [values["device/utilization"] for values in readings.values()] == [(i + 1) / 10 for i in range(count)]


@pytest.mark.parametrize(
    ("order", "expected"),
    [
        ("2,0", {"cuda:0": 300, "cuda:1": 100}),
        ("GPU-10000000-1111-2222-3333-444444444444,GPU-2", {"cuda:0": 200, "cuda:1": 300}),
        ("GPU-unknown", {}),
        ("GPU-", {}),  # the beginning of all of them
        ("9", {}),
        ("", {}),
    ],
)
def test_hidden_and_reordered_devices_carry_the_processs_own_names(
    machine: Machine, order: str, expected: dict[str, int]
) -> None:
    readings, _ = once(machine, "gpus 4", {"cuda_visible_devices": order}, ALL[:4])
    assert used(readings) == expected


def test_the_fastest_first_is_not_the_order_of_the_bus(machine: Machine) -> None:
    names = ALL[:4]
    assert once(machine, MIXED, {}, names) == [{}, {}]  # nobody knows which one is which
    assert once(machine, MIXED, {"cuda_visible_devices": "1,3"}, names) == [{}, {}]
    by_bus, _ = once(machine, MIXED, {"cuda_visible_devices": "1,3", **BY_BUS}, names)
    assert used(by_bus) == {"cuda:0": 200, "cuda:1": 400}
    by_uuid, _ = once(machine, MIXED, {"cuda_visible_devices": f"{gpu_uuid(3)},{gpu_uuid(1)}"}, names)
    assert used(by_uuid) == {"cuda:0": 400, "cuda:1": 200}
    told = {"device_uuids": {"cuda:0": bare(gpu_uuid(1)), "cuda:1": bare(gpu_uuid(2))}, "cuda_visible_devices": None}
    readings, _ = once(machine, MIXED, told, names[:2])
    assert used(readings) == {"cuda:0": 200, "cuda:1": 300}


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({"cuda_visible_devices": slice_uuid(2, 1)}, {"cuda:0": 20}),
        ({"cuda_visible_devices": f"{slice_uuid(2, 1)},{slice_uuid(2, 0)}"}, {"cuda:0": 20, "cuda:1": 10}),
        ({"cuda_visible_devices": f"MIG-{gpu_uuid(2)}/8/0"}, {"cuda:0": 20}),
        ({"cuda_visible_devices": f"MIG-{gpu_uuid(2)}/1/0"}, {}),
        ({"device_uuids": {"cuda:0": bare(slice_uuid(2, 1))}}, {"cuda:0": 20}),
        # The whole GPU is named, but the process has a slice of it.
        ({"device_uuids": {"cuda:0": bare(gpu_uuid(2))}, "cuda_visible_devices": slice_uuid(2, 1)}, {"cuda:0": 20}),
        ({"device_uuids": {"cuda:0": bare(gpu_uuid(2))}}, {}),  # one of two: nobody knows which
        ({"cuda_visible_devices": "2", **BY_BUS}, {"cuda:0": 10}),  # CUDA shows the first slice
        ({"cuda_visible_devices": "3", **BY_BUS}, {}),  # sliced into nothing
        ({"cuda_visible_devices": "1"}, {}),  # what number 1 is among slices, only CUDA knows
        ({"cuda_visible_devices": "1", **BY_BUS}, {"cuda:0": 200}),
    ],
)
def test_slices(machine: Machine, environment: dict[str, Any], expected: dict[str, int]) -> None:
    readings, _ = once(machine, SLICED, environment, ALL[:2] if "," in str(environment) else ALL[:1])
    assert used(readings) == expected
    for name, values in readings.items():
        if expected[name] < 100:
            assert values["memory/capacity"] == 100 * MIB
            assert "device/utilization" not in values  # a slice has none of its own


# -- who uses it -------------------------------------------------------------------------------------------------


def test_several_processes_on_one_gpu(machine: Machine) -> None:
    world = (
        f"gpus 2\nused 0 900\nprocess 0 {PID} 300 c\nprocess 0 {OTHER} 250 c\nprocess 0 1 50 g\n"
        f"process 0 {OTHER} 250 g\nprocess 0 {PID + 7} 20 m\nprocess 1 {PID} 11 c"
    )
    readings, others = once(machine, world, {}, ALL[:2])
    assert readings["cuda:0"]["memory/process_used"] == 300 * MIB
    assert readings["cuda:0"]["memory/others_used"] == 320 * MIB  # who computes and draws counts once
    assert [(o["pid"], o.get("used")) for o in others["cuda:0"]] == [
        (1, 50 * MIB),
        (OTHER, 250 * MIB),
        (PID + 7, 20 * MIB),
    ]
    assert others["cuda:0"][1]["name"] == f"job-{OTHER}"  # the driver's word, without the path
    assert others["cuda:0"][0]["user"] == "root"
    assert readings["cuda:1"]["memory/process_used"] == 11 * MIB
    assert readings["cuda:1"]["memory/others_used"] == 0
    both, others = once(machine, world, {}, ALL[:1], ranks=[PID, OTHER])
    assert both["cuda:0"]["memory/others_used"] == 70 * MIB


def test_a_size_that_is_not_told_makes_no_sum(machine: Machine) -> None:
    readings, others = once(machine, f"process 0 {PID} -1 c\nprocess 0 {OTHER} 10 c", {}, ["cuda:0"])
    assert "memory/process_used" not in readings["cuda:0"]
    assert readings["cuda:0"]["memory/others_used"] == 10 * MIB
    readings, others = once(machine, f"process 0 {PID} 10 c\nprocess 0 {OTHER} -1 c", {}, ["cuda:0"])
    assert readings["cuda:0"]["memory/process_used"] == 10 * MIB
    assert "memory/others_used" not in readings["cuda:0"]
    assert others == {}
    readings, _ = once(machine, f"process 0 {PID} 10 c\nprocess 0 {PID} -1 c", {}, ["cuda:0"])
    assert "memory/process_used" not in readings["cuda:0"]


def test_an_old_driver_lists_processes_the_old_way(machine: Machine) -> None:
    world = f"process 0 {PID} 10 c\nprocess 0 {OTHER} 30 g\n"
    gone = "\n".join(
        f"fail nvmlDeviceGet{kind}RunningProcesses_v3 13" for kind in ("Compute", "Graphics", "MPSCompute")
    )
    readings, _ = once(machine, world + gone, {}, ["cuda:0"])
    assert readings["cuda:0"]["memory/process_used"] == 10 * MIB
    assert readings["cuda:0"]["memory/others_used"] == 30 * MIB


@pytest.mark.parametrize("listed", ["Graphics", "MPSCompute"])
def test_users_that_may_not_be_listed_are_not_taken_for_none(machine: Machine, listed: str) -> None:
    world = f"process 0 {PID} 10 c\nfail nvmlDeviceGet{listed}RunningProcesses_v3 4"
    readings, others = once(machine, world, {}, ["cuda:0"])
    assert "memory/others_used" not in readings["cuda:0"]
    assert others == {}


def uses(**sizes: int) -> list[User]:
    return [User(int(pid.removeprefix("p")), used) for pid, used in sizes.items()]


@pytest.mark.parametrize(
    ("found", "sharing", "alive", "own", "others"),
    [
        (uses(p70000=5), 1, [], 5, 0),  # the only user is the rank that holds memory
        (uses(p70000=5), 0, [], None, None),  # it may be somebody else: our allocator holds nothing
        (uses(p70000=5, p70001=6), 1, [], None, None),  # which of them?
        (uses(p70000=5, p70001=6), 2, [], None, 0),  # both ours, but which is which?
        (uses(p17=5, p70001=6), 1, [17], None, None),  # a process of the machine with our number by accident
        (uses(p17=5, p23=6), 1, [17, 23], 5, 6),  # all of them are in here: the numbers are ours
        ([], 1, [], None, None),
    ],
)
def test_in_a_container_numbers_are_not_believed(
    found: list[User], sharing: int, alive: list[int], own: int | None, others: int | None
) -> None:
    circle = Circle([17], False, {"GPU-x": sharing})
    mine, strangers = split(found, 17, circle, "GPU-x", lambda pid: pid in alive)
    assert mine == own
    assert (None if strangers is None else sum(user.used or 0 for user in strangers)) == others
    assert split(found, 17, circle, "", lambda pid: False) == (None, None)  # which GPU is it?


# -- when it misbehaves ------------------------------------------------------------------------------------------


@pytest.mark.skipif(shutil.which("nvidia-smi") is not None, reason="this machine has the library")
def test_without_the_library_nothing_is_available_and_nothing_is_raised(machine: Machine, tmp_path: Path) -> None:
    machine.environment["LD_LIBRARY_PATH"] = str(tmp_path)
    assert machine.run("without_library") == [False, None, None, [{}, {}]]


FUNCTIONS = [
    "nvmlInitWithFlags",
    "nvmlShutdown",
    "nvmlDeviceGetCount_v2",
    "nvmlDeviceGetHandleByIndex_v2",
    "nvmlDeviceGetHandleByUUID",
    "nvmlDeviceGetUUID",
    "nvmlDeviceGetName",
    "nvmlDeviceGetMigMode",
    "nvmlDeviceGetMaxMigDeviceCount",
    "nvmlDeviceGetMigDeviceHandleByIndex",
    "nvmlDeviceGetGpuInstanceId",
    "nvmlDeviceGetComputeInstanceId",
    "nvmlDeviceGetMemoryInfo",
    "nvmlDeviceGetUtilizationRates",
    "nvmlDeviceGetComputeRunningProcesses_v3",
    "nvmlDeviceGetGraphicsRunningProcesses_v3",
    "nvmlDeviceGetMPSComputeRunningProcesses_v3",
    "nvmlSystemGetProcessName",
    "*",
]
CODES = [*range(1, 31), 999, 77]


@pytest.mark.parametrize(
    ("world", "environment"),
    [
        ("gpus 3", {}),
        ("gpus 3", {"cuda_visible_devices": f"{gpu_uuid(2)},GPU-1,0"}),
        ("gpus 3", {"device_uuids": {f"cuda:{index}": bare(gpu_uuid(index)) for index in range(3)}}),
        (
            "gpus 3\nsliced 1 2",
            {"cuda_visible_devices": f"{slice_uuid(1, 1)},MIG-{gpu_uuid(1)}/7/0,0", **BY_BUS},
        ),
    ],
    ids=["indices", "uuids", "told", "slices"],
)
def test_any_call_may_fail_in_any_way(machine: Machine, world: str, environment: dict[str, Any]) -> None:
    names = ALL[:3]
    world += f"\nprocess 0 {PID} 10 c\nprocess 1 {PID} 20 c\nprocess 1.1 {PID} 30 c\nprocess 0 {OTHER} 5 c"
    expected, _ = once(machine, world, environment, names)
    assert set(expected) == set(names)
    found = machine.run(
        "every_failure", world=world, names=names, environment=environment, functions=FUNCTIONS, codes=CODES, pid=PID
    )
    assert len(found) == len(FUNCTIONS) * len(CODES)
    for function, code, (fresh, _), (middle, _), (later, _) in found:
        for readings in (fresh, middle):
            for name, values in readings.items():
                # What is read is right; what can't be read is not there.
                assert values.items() <= expected[name].items(), (function, code)
        assert later == expected, (function, code)  # and all of it comes back by itself


def test_a_driver_that_goes_away_and_comes_back(machine: Machine) -> None:
    away = "fail * 1"
    story = [(0, ""), (1, away), (2, ""), (61, away), (62, ""), (122, "")]
    readings = machine.run(
        "read", story=[(float(at), world) for at, world in story], environment={"cuda_visible_devices": "1"}, names=ALL
    )
    assert used(readings[0][0]) == {"cuda:0": 200}
    assert readings[1] == [{}, {}]
    assert readings[2] is None  # asked again after a minute only
    assert readings[3] is None
    assert readings[4] is None
    assert used(readings[5][0]) == {"cuda:0": 200}


def test_a_driver_that_was_replaced_without_a_word(machine: Machine) -> None:
    """Handles fail with an error that says nothing, until the library is initialised anew."""
    silent = "\n".join(f"fail {name} 999" for name in FUNCTIONS if name.startswith("nvmlDevice"))
    story = [(0, ""), (1, silent), (30, silent), (62, silent), (63, ""), (130, "")]
    readings = machine.run("read", story=[(float(at), world) for at, world in story], environment={}, names=["cuda:0"])
    assert used(readings[0][0]) == {"cuda:0": 100}
    assert readings[1] == readings[2] == [{}, {}]
    assert used(readings[5][0]) == {"cuda:0": 100}


def test_one_lost_gpu_does_not_blind_for_the_others(machine: Machine) -> None:
    lost = "\n".join(f"fail {name} 15 0" for name in FUNCTIONS)
    readings = machine.run(
        "read", story=[(0.0, ""), (1.0, lost), (2.0, lost), (3.0, "")], environment={}, names=ALL[:4]
    )
    assert [set(moment[0]) for moment in readings] == [set(ALL[:4]), set(ALL[1:4]), set(ALL[1:4]), set(ALL[:4])]
