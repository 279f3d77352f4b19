"""What differs between the ranks of a run and should not: versions, variables, arguments, models, data.

Mixed versions and settings are behind many a hang and many a curve that cannot be reproduced, and nobody looks for
them. What has to differ between ranks (their numbers, their devices, their hosts) is left out.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any, Final

import msgspec

from trainwatch.events import Severity

_UNSET: Final = object()
_LONGEST: Final = 160
_AROUND: Final = 60

_MUST_DIFFER: Final = re.compile(
    r"environment\.(hostname|pid|device_uuids|resumed|gpu\.numa)"
    r"|environment\.variables\.(RANK|LOCAL_RANK|GROUP_RANK|ROLE_RANK|NODE_RANK|MASTER_PORT|HOSTNAME|PMI_\w+|PMIX_\w+"
    r"|SLURM_(PROCID|LOCALID|NODEID|TASK_PID|GTIDS|TOPOLOGY_ADDR\w*|LAUNCH_NODE_IPADDR|CPU_BIND\w*|MEM_BIND\w*"
    r"|CPUS_ON_NODE|SRUN_COMM_\w+|STEP_\w+|STEPMGR|JOB_CPUS_PER_NODE|GPUS_ON_NODE|SHARDS_ON_NODE|SPANK_\w+)"
    r"|SLURMD_NODENAME|OMPI_COMM_WORLD_(RANK|LOCAL_RANK|NODE_RANK)|OMPI_\w*(RANK|NODEID)\w*|MV2_COMM_WORLD_\w*RANK"
    r"|TORCHELASTIC_ERROR_FILE|TORCHELASTIC_RESTART_COUNT|TORCHELASTIC_MAX_RESTARTS|TORCHELASTIC_USE_AGENT_STORE"
    r"|TORCH_NCCL_ASYNC_ERROR_HANDLING_PORT|ACCELERATE_PROCESS_INDEX|TRAINWATCH_NODE|TRITON_CACHE_DIR"
    r"|TORCHINDUCTOR_CACHE_DIR|CUDA_MPS_\w+DIRECTORY)"
    r"|arguments\.(local_rank|process_index|local_process_index|logging_dir|device|_n_gpu|distributed_state)"
    r"|model\.(local|shard)\w*"
    r"|dataset\.\w+\.(seconds|read)"
)
_ONE_DEVICE_EACH: Final = re.compile(r"(CUDA|HIP|ROCR|ASCEND_RT|ZE_AFFINITY|GPU)_?\w*(VISIBLE_DEVICES|MASK)", re.I)
_RANK_OPTION: Final = re.compile(r"\s--?(?:local|node|machine)[-_]rank[= ]\d+")
_DEVICE_INDEX: Final = re.compile(r"^((?:cuda|xpu|npu|mps|hpu|mlu|musa|sdaa|hip)):\d+$")
_UNKNOWN_UNLESS_SET: Final = "environment.git.dirty"
"""Found out within a few milliseconds, or left out."""
_AMOUNT: Final = re.compile(r"environment\.(memory\.|limits\.memory|gpus?\.)|.*_bytes$")
_TOLERANCE: Final = 0.02
"""Machines of one kind differ a little in the memory that their firmware leaves them."""

_WARNING: Final = re.compile(
    r"environment\.(python|cuda|cudnn|nccl|rocm|driver|gpus?|device|git|launcher|parallel)\b"
    r"|environment\.packages\."
    r"|environment\.variables\.(WORLD_SIZE|LOCAL_WORLD_SIZE|MASTER_ADDR|CUBLAS_WORKSPACE_CONFIG|NVIDIA_TF32_OVERRIDE"
    r"|TORCH_ALLOW_TF32\w*|ACCELERATE_MIXED_PRECISION|ACCELERATE_USE_\w+|FSDP_\w+|NCCL_(?!DEBUG|SOCKET_IFNAME|IB_HCA"
    r"|TOPO_|GRAPH_|IB_GID|NET_GDR|CONF_FILE|HOSTID)\w+)"
    r"|arguments\.|model\.|dataset\.\w+\.(samples|kind)"
)
_INFORMATION: Final = re.compile(
    r"environment\.packages\.(pip|setuptools|wandb|tensorboard|mlflow|tqdm)$|environment\.git\.(branch|dirty)$"
    r"|model\.(config\.)?_?(name_or_path|transformers_version)$"
    r"|arguments\.(output_dir|report_to|run_name|logging_\w+|disable_tqdm|log_level\w*)$"
)


class Holder(msgspec.Struct, frozen=True, kw_only=True):
    """A value, and the ranks that have it.

    Attributes:
        value: The value as text, shortened; None where the rank has none.
        ranks: The ranks, ascending.
        span: The same for people: ``"0-3, 5"``.
    """

    value: str | None
    ranks: list[int]
    span: str


class Difference(msgspec.Struct, frozen=True, kw_only=True):
    """One thing in which ranks differ.

    Attributes:
        key: Where it stands: ``"environment.packages.torch"``.
        severity: ``"warning"`` for what has broken trainings (versions, code, arguments, settings of NCCL that all
            ranks must share), ``"info"`` for the rest.
        holders: The values, that of the most ranks first; at most :data:`MOST_VALUES`.
        more: How many further values are not listed.
    """

    key: str
    severity: Severity
    holders: list[Holder]
    more: int = 0


MOST_VALUES: Final = 8


def differences(ranks: Mapping[int, Mapping[str, Any]]) -> list[Difference]:
    """Compares what the ranks of a run said of themselves when they began.

    Args:
        ranks: Rank to its sections by name; the names that mean something are those of
            :class:`~trainwatch.events.RunStarted`: ``{"environment": …, "model": …, "arguments": …, "dataset": …}``,
            each as the event has it. Sections may be left out; one that is empty on a rank is not known there, and the
            rank is left out of its comparison.

    Returns:
        What differs and should not: warnings first, then by key. Empty for fewer than two ranks.
    """
    found: list[Difference] = []
    for section in sorted({name for sections in ranks.values() for name in sections}):
        known = {rank: sections[section] for rank, sections in sorted(ranks.items()) if sections.get(section)}
        if len(known) > 1:
            _compare(section, known, found)
    return sorted(found, key=lambda difference: (difference.severity != "warning", difference.key))


def span_of(ranks: Iterable[int]) -> str:
    """Writes ranks for people: ``[0, 1, 2, 3, 5]`` as ``"0-3, 5"``.

    Args:
        ranks: Numbers, in any order.
    """
    parts: list[list[int]] = []
    for rank in sorted(set(ranks)):
        if parts and rank == parts[-1][-1] + 1:
            parts[-1] = [parts[-1][0], rank]
        else:
            parts.append([rank])
    return ", ".join("-".join(map(str, part)) for part in parts)


def _compare(path: str, values: dict[int, Any], found: list[Difference]) -> None:
    if _MUST_DIFFER.fullmatch(path):
        return
    if all(isinstance(value, Mapping) for value in values.values()) and not path.endswith("device_map"):
        for key in sorted({str(key) for value in values.values() for key in value}):
            _compare(f"{path}.{key}", {rank: value.get(key, _UNSET) for rank, value in values.items()}, found)
        return
    if path == _UNKNOWN_UNLESS_SET:
        values = {rank: value for rank, value in values.items() if value is not _UNSET}
    comparable = {rank: _comparable(path, value) for rank, value in values.items()}
    if len(set(comparable.values())) < 2 or _may_differ(path, values):
        return
    groups: dict[str | None, list[int]] = {}
    for rank, text in comparable.items():
        groups.setdefault(text, []).append(rank)
    texts = _shortened(list(groups))
    # The value of the most ranks is most likely the one that is meant.
    order = sorted(groups, key=lambda text: (-len(groups[text]), groups[text][0]))
    holders = [Holder(value=texts[text], ranks=groups[text], span=span_of(groups[text])) for text in order]
    severity: Severity = "warning" if _WARNING.match(path) and not _INFORMATION.match(path) else "info"
    found.append(
        Difference(key=path, severity=severity, holders=holders[:MOST_VALUES], more=max(0, len(holders) - MOST_VALUES))
    )


def _comparable(path: str, value: Any) -> str | None:
    """Writes a value such that what must differ in it does not."""
    if value is _UNSET or value is None:
        return None
    if path == "environment.command":
        return _RANK_OPTION.sub("", str(value))
    if path.endswith("device_map") and isinstance(value, Mapping):
        places = {str(place) for place in value.values()}
        return "all on one device" if len(places) == 1 and places.isdisjoint({"cpu", "disk"}) else _text(value)
    if isinstance(value, str):
        return _DEVICE_INDEX.sub(r"\1", value)
    if path == "model.devices" and isinstance(value, list) and len(value) == 1:
        return _DEVICE_INDEX.sub(r"\1", str(value[0]))
    return _text(value)


def _may_differ(path: str, values: Mapping[int, Any]) -> bool:
    known = list(values.values())
    if _ONE_DEVICE_EACH.fullmatch(path.rpartition(".")[2]):
        return all(isinstance(value, str) and value and "," not in value for value in known)
    if _AMOUNT.match(path) and all(isinstance(value, int | float) for value in known):
        return bool(max(known) - min(known) <= _TOLERANCE * abs(max(known)))
    return False


def _text(value: Any) -> str:
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key}: {_text(item)}" for key, item in sorted(value.items(), key=str)) + "}"
    if isinstance(value, list | tuple):
        return ", ".join(_text(item) for item in value) if value else "[]"
    return str(value)


def _shortened(texts: list[str | None]) -> dict[str | None, str | None]:
    """Shortens texts such that where they differ can still be seen."""
    known = [text for text in texts if text is not None]
    if max(map(len, known)) <= _LONGEST:
        return {text: text for text in texts}
    length = min(map(len, known))
    first = next((place for place in range(length) if len({text[place] for text in known}) > 1), length)
    begin = max(0, first - _AROUND) if len(known) > 1 else 0
    end = begin + _LONGEST
    short: dict[str | None, str | None] = {None: None}
    for text in known:
        short[text] = ("…" if begin else "") + text[begin:end] + ("…" if len(text) > end else "")
    return short
