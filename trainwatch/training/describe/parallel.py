"""How this process was started, and how it works together with others."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any, Final

_DEEPSPEED_LAUNCHER: Final = ("CROSS_RANK", "CROSS_SIZE", "LOCAL_SIZE")
_LEFT_OUT: Final = frozenset({"hf_ds_config", "auto_wrap_policy", "param_init_fn", "mixed_precision_policy"})


def launcher(environment: Mapping[str, str]) -> str:
    """Returns what started this process.

    Args:
        environment: The variables of the process.

    Returns:
        ``"accelerate launch"``, ``"torchrun"``, ``"deepspeed"``, ``"srun"``, ``"mpirun"``, ``"notebook"``,
        ``"python"``, or ``"unknown"`` for a rank of several that something else started.
    """
    if "ACCELERATE_MIXED_PRECISION" in environment or "ACCELERATE_DYNAMO_BACKEND" in environment:
        return "accelerate launch"
    if "TORCHELASTIC_RUN_ID" in environment:
        return "torchrun"
    if all(name in environment for name in _DEEPSPEED_LAUNCHER):
        return "deepspeed"
    if "OMPI_COMM_WORLD_RANK" in environment or "PMIX_RANK" in environment or "PMI_RANK" in environment:
        # Slurm speaks PMI to its tasks, too.
        return "srun" if "SLURM_PROCID" in environment else "mpirun"
    if _several(environment, "SLURM_NTASKS") and "SLURM_PROCID" in environment:
        return "srun"
    kernel = sys.modules.get("ipykernel.kernelapp")
    if kernel is not None and kernel.IPKernelApp.initialized():
        return "notebook"
    return "unknown" if _several(environment, "WORLD_SIZE") else "python"


def _several(environment: Mapping[str, str], name: str) -> bool:
    return environment.get(name, "") not in ("", "0", "1") and environment[name].isdigit()


def scheduler(environment: Mapping[str, str]) -> str | None:
    """Returns what gave this process its machine, as far as one can tell.

    Args:
        environment: The variables of the process.
    """
    for name, variable in (
        ("slurm", "SLURM_JOB_ID"),
        ("lsf", "LSB_JOBID"),
        ("pbs", "PBS_JOBID"),
        ("ray", "RAY_JOB_ID"),
    ):
        if variable in environment:
            return name
    return "sagemaker" if "SM_HOSTS" in environment else None


def describe_parallel() -> dict[str, Any]:
    """Describes how ranks work together, as accelerate and torch were told; empty for a process alone."""
    found: dict[str, Any] = {}
    module = sys.modules.get("accelerate.state")
    # The dictionary, and not AcceleratorState(): making one would decide what the user's script has not yet.
    state: Mapping[str, Any] = getattr(getattr(module, "AcceleratorState", None), "_shared_state", {})
    process: Mapping[str, Any] = getattr(getattr(module, "PartialState", None), "_shared_state", {})
    kind = state.get("distributed_type", process.get("distributed_type"))
    if kind is not None:
        found["type"] = str(getattr(kind, "value", kind))
    if state.get("_mixed_precision"):
        found["mixed_precision"] = str(state["_mixed_precision"])
    if process.get("backend"):
        found["backend"] = str(process["backend"])
    for name, attribute in (
        ("fsdp", "fsdp_plugin"),
        ("parallelism", "parallelism_config"),
        ("dynamo", "dynamo_plugin"),
    ):
        plugin = state.get(attribute)
        if plugin is not None and (name != "dynamo" or str(getattr(plugin.backend, "value", "NO")) != "NO"):
            found[name] = _fields(plugin)
    deepspeed = _deepspeed(state)
    if deepspeed is not None:
        found["deepspeed"] = getattr(deepspeed, "deepspeed_config", None) or _fields(deepspeed)
    return found


def _deepspeed(state: Mapping[str, Any]) -> Any:
    plugins = state.get("deepspeed_plugins")
    if isinstance(plugins, Mapping):
        return next((plugin for plugin in plugins.values() if getattr(plugin, "_selected", True)), None)
    return plugins if plugins is not None else state.get("deepspeed_plugin")


def _fields(plugin: Any) -> dict[str, Any]:
    """The settings of one of accelerate's plugins."""
    return {
        name: _plain(value)
        for name, value in vars(plugin).items()
        if not name.startswith("_") and name not in _LEFT_OUT and value is not None and not callable(value)
    }


def _plain(value: Any) -> Any:
    """A value as it is, if it is plain; of an enumeration its name."""
    return (
        value if isinstance(value, str | int | float | list | tuple | Mapping) else str(getattr(value, "name", value))
    )
