from __future__ import annotations

import os
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch

from tests.patience import timing
from tests.training.tiny import make_trainer, of, read_events
from trainwatch.events import RunStarted
from trainwatch.training.describe import describe_environment, describe_model
from trainwatch.training.describe.code import describe_code
from trainwatch.training.describe.devices import describe_devices
from trainwatch.training.describe.machine import describe_container
from trainwatch.training.describe.packages import versions
from trainwatch.training.describe.parallel import describe_parallel, launcher, scheduler


def test_a_description_travels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NCCL_DEBUG", "INFO")
    monkeypatch.setenv("TRAINWATCH_TOKEN", "abcdef")
    monkeypatch.setenv("UNRELATED", "mine")
    environment = describe_environment(torch.nn.Linear(2, 3))
    assert environment["packages"]["torch"].startswith("2.")
    assert environment["packages"]["trainwatch"]
    assert environment["variables"]["NCCL_DEBUG"] == "INFO"
    assert environment["variables"]["TRAINWATCH_TOKEN"] == "[redacted]"
    assert "UNRELATED" not in environment["variables"]
    assert environment["device"] == "cpu"
    assert environment["cpus"] >= 1
    assert environment["memory"]["total"] > 2**28
    assert environment["limits"]["open_files"] == "unlimited" or environment["limits"]["open_files"] > 0
    assert environment["hostname"]
    model = describe_model(torch.nn.Linear(2, 3))
    assert (model["parameters"], model["dtypes"], model["devices"]) == (9, ["float32"], ["cpu"])
    msgspec.msgpack.encode([environment, model])


def test_a_part_that_fails_leaves_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    from trainwatch.training.safety import Safety

    class Broken(torch.nn.Module):
        def parameters(self, recurse: bool = True) -> Any:
            raise RuntimeError("no")

    safety = Safety(quiet=True)
    environment = describe_environment(Broken(), safety)
    assert "device" not in environment
    assert environment["packages"]["torch"]
    assert list(safety.errors) == ["description of the environment: device"]


def test_it_costs_little(home: Path, tmp_path: Path) -> None:
    model = torch.nn.Sequential(*(torch.nn.Linear(2, 2) for _ in range(300)))
    describe_environment(model)
    took = []
    for _ in range(5):
        with timing() as timed:
            describe_environment(model)
            describe_model(model)
        took.append(timed.took)
    assert min(took) < 0.03


def test_nothing_is_imported_or_woken_up_for_it() -> None:
    code = """
import sys, torch
from trainwatch.training.describe import describe_datasets, describe_environment, describe_model
def forbidden(*args): raise AssertionError("CUDA was asked")
for name in ("is_available", "device_count", "init", "_lazy_init", "get_device_name", "get_device_properties"):
    setattr(torch.cuda, name, forbidden)
import subprocess
subprocess.Popen.__init__ = forbidden
before = set(sys.modules)
from trainwatch.training.safety import Safety
safety = Safety()
describe_environment(torch.nn.Linear(1, 1), safety)
describe_datasets([{"input_ids": [1]}], None, safety)
describe_model(torch.nn.Linear(1, 1))
assert not safety.errors, safety.errors
heavy = {name.partition(".")[0] for name in set(sys.modules) - before} - set(sys.stdlib_module_names)
assert heavy <= {"trainwatch"}, heavy
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr


def test_versions_are_those_of_the_packages_installed() -> None:
    from importlib import metadata

    found = versions()
    assert "transformers" in found
    for name, version in found.items():
        if name != "trainwatch":
            assert version == metadata.version(name), name


def test_a_loaded_module_knows_its_version_better(monkeypatch: pytest.MonkeyPatch) -> None:
    class Module:
        __version__ = "9.9.9"

        def __getattr__(self, name: str) -> Any:
            raise AssertionError("it may import half the world")

    module = Module()
    vars(module)["__version__"] = "9.9.9"
    monkeypatch.setitem(sys.modules, "deepspeed", module)  # type: ignore[arg-type]
    assert versions()["deepspeed"] == "9.9.9"


def test_gpus_that_the_process_does_not_use_are_read_from_the_drivers_files(tmp_path: Path) -> None:
    folder = tmp_path / "gpus" / "0000:01:00.0"
    folder.mkdir(parents=True)
    (folder / "information").write_text("Model: \t\t NVIDIA H100 80GB HBM3\nIRQ: 1\n")
    (tmp_path / "version").write_text(
        "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.124.06  Release Build  (x)\nGCC: 12\n"
    )
    found = describe_devices(tmp_path)
    assert (found["gpus"], found["driver"]) == (["NVIDIA H100 80GB HBM3"], "570.124.06")
    assert describe_devices(tmp_path / "none")["gpus"] == []


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_gpus_in_use_are_described() -> None:
    torch.ones(1, device="cuda")
    found = describe_environment(torch.nn.Linear(1, 1).cuda())
    assert found["gpus"][0] == torch.cuda.get_device_name(0)
    assert found["gpu"]["memory"] == torch.cuda.get_device_properties(0).total_memory
    assert found["driver"].count(".") >= 1
    assert found["cudnn"].count(".") == 2
    assert found["nccl"].count(".") == 2
    assert found["device"] == "cuda:0"


@pytest.mark.parametrize(
    ("variables", "name"),
    [
        ({}, "python"),
        ({"TORCHELASTIC_RUN_ID": "x", "WORLD_SIZE": "2"}, "torchrun"),
        ({"TORCHELASTIC_RUN_ID": "x", "ACCELERATE_MIXED_PRECISION": "no"}, "accelerate launch"),
        ({"CROSS_RANK": "0", "CROSS_SIZE": "1", "LOCAL_SIZE": "2", "WORLD_SIZE": "2"}, "deepspeed"),
        ({"SLURM_PROCID": "1", "SLURM_NTASKS": "4"}, "srun"),
        ({"SLURM_PROCID": "0", "SLURM_NTASKS": "1"}, "python"),
        ({"SLURM_PROCID": "1", "PMI_RANK": "1"}, "srun"),
        ({"OMPI_COMM_WORLD_RANK": "1"}, "mpirun"),
        ({"WORLD_SIZE": "4", "RANK": "0"}, "unknown"),
        ({"WORLD_SIZE": "", "SLURM_NTASKS": ""}, "python"),
        ({"WORLD_SIZE": "many"}, "python"),
    ],
)
def test_launchers_are_recognised(variables: dict[str, str], name: str) -> None:
    assert launcher(variables) == name


def test_schedulers_and_containers_are_recognised() -> None:
    assert scheduler({"SLURM_JOB_ID": "1"}) == "slurm"
    assert scheduler({}) is None
    assert describe_container({"KUBERNETES_SERVICE_HOST": "10.0.0.1"}) == "kubernetes"
    assert describe_container({"APPTAINER_NAME": "x"}) == "apptainer"


# -- code ------------------------------------------------------------------------------------------------------------


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    root = tmp_path / "project"
    (root / "src").mkdir(parents=True)
    (root / "src" / "train.py").write_text("print(1)\n")
    (root / "other.txt").write_text("text\n")
    git(root, "init", "-q", "-b", "trunk")
    git(root, "remote", "add", "origin", "https://me:abcdefgh12@example.org/x.git")
    git(root, "add", ".")
    git(root, "commit", "-q", "-m", "first")
    return root


def git(root: Path, *arguments: str) -> str:
    name = ["-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false"]
    done = subprocess.run(["git", "-C", str(root), *name, *arguments], capture_output=True, text=True, check=True)
    return done.stdout.strip()


def test_the_commit_and_branch_of_the_code_are_told(repository: Path) -> None:
    found = describe_code(repository / "src" / "train.py")
    assert found["commit"] == git(repository, "rev-parse", "HEAD")
    assert (found["branch"], found["dirty"]) == ("trunk", False)
    assert describe_code(repository.parent) == {}


@pytest.mark.parametrize(
    ("change", "dirty"),
    [
        (lambda root: (root / "src" / "train.py").write_text("print(2)\n"), True),
        (lambda root: (root / "src" / "train.py").write_text("print(10)\n"), True),
        (lambda root: (root / "other.txt").unlink(), True),
        (lambda root: os.utime(root / "other.txt", (1, 1)), False),
        (lambda root: (root / "new.txt").write_text("not tracked"), False),
        (lambda root: [(root / "a").write_text("x"), git(root, "add", "a")], None),
        (lambda root: [(root / "a").write_text("x"), git(root, "add", "a"), git(root, "commit", "-qm", "b")], False),
        (lambda root: git(root, "gc", "-q"), False),
        (lambda root: git(root, "commit", "-q", "--allow-empty", "-m", "second"), False),
        (lambda root: git(root, "checkout", "-q", "--detach"), False),
        (lambda root: git(root, "update-index", "--index-version", "4"), None),
        (lambda root: (root / ".git" / "index").write_bytes(b"DIRC damaged"), None),
        (lambda root: (root / ".git" / "index").unlink(), None),
    ],
)
def test_changes_since_the_commit_are_seen_or_left_open(repository: Path, change: Any, dirty: bool | None) -> None:
    change(repository)
    found = describe_code(repository / "src")
    assert found.get("dirty") is dirty
    assert found["commit"] == git(repository, "rev-parse", "HEAD")
    if dirty is not None:
        assert dirty == bool(git(repository, "status", "--porcelain", "--untracked-files=no"))


def test_a_soft_reset_is_a_change(repository: Path) -> None:
    (repository / "other.txt").write_text("changed\n")
    git(repository, "commit", "-qam", "second")
    git(repository, "reset", "-q", "--soft", "HEAD~1")
    assert describe_code(repository)["dirty"] is True


def test_linked_working_trees_are_followed(repository: Path, tmp_path: Path) -> None:
    git(repository, "worktree", "add", "-q", "-b", "side", str(tmp_path / "linked"))
    found = describe_code(tmp_path / "linked" / "src" / "train.py")
    assert (found["branch"], found["dirty"]) == ("side", False)
    assert found["commit"] == git(repository, "rev-parse", "HEAD")
    assert found["remote"].startswith("https://")


def test_a_large_repository_is_not_waited_for(repository: Path) -> None:
    for number in range(8000):
        (repository / f"file{number}").touch()
    git(repository, "add", ".")
    git(repository, "commit", "-q", "-m", "many")
    with timing() as timed:
        found = describe_code(repository)
    assert timed.took < 0.2
    assert found["branch"] == "trunk"


def test_the_login_of_a_remote_is_not_recorded(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", [str(repository / "src" / "train.py"), "--lr", "1"])
    found = describe_environment(torch.nn.Linear(1, 1))
    assert found["git"]["remote"] == "https://[redacted]@example.org/x.git"
    assert found["command"].endswith("train.py --lr 1")


# -- models ----------------------------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
@pytest.mark.filterwarnings("ignore:.*gradient_checkpointing:FutureWarning")  # peft asks for it
def test_adapters_compilation_and_attention_are_described() -> None:
    peft = pytest.importorskip("peft")
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=32, hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2
    )
    model = LlamaForCausalLM(config)
    whole = sum(parameter.numel() for parameter in model.parameters())
    adapted = peft.get_peft_model(model, peft.LoraConfig(r=2, target_modules=["q_proj"]))
    adapted.gradient_checkpointing_enable()
    compiled = torch.compile(adapted)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = describe_model(compiled)
    msgspec.msgpack.encode(found)
    assert found["class"] == "PeftModel"
    assert found["compiled"] is True
    assert found["gradient_checkpointing"] is True
    assert found["attention"] in ("sdpa", "eager")
    assert found["adapters"]["default"]["r"] == 2
    assert found["adapters"]["default"]["peft_type"]
    assert found["parameters"] == whole + 2 * (16 * 2)
    assert found["trainable_parameters"] == 2 * (16 * 2)
    assert found["config"]["vocab_size"] == 32


def test_parameters_that_are_elsewhere_are_counted() -> None:
    model = torch.nn.Linear(2, 3, bias=False)
    model.weight.ds_numel = 600  # type: ignore[assignment]
    assert describe_model(model)["parameters"] == 600


# -- a training ------------------------------------------------------------------------------------------------------


def test_a_training_says_what_it_runs_in(home: Path, tmp_path: Path) -> None:
    make_trainer(tmp_path / "out", steps=2).train()
    (start,) = of(RunStarted, read_events(home))
    assert start.environment["parallel"]["type"] == "NO"
    assert start.environment["launcher"] == "python"
    assert start.environment["packages"]["accelerate"]
    assert describe_parallel()["type"] == "NO"
