"""Versions that are known to harm trainings, with what they do and who says so.

An entry speaks only once what it is known for has happened: most trainings with such a version are well.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from itertools import takewhile
from typing import Any, Final, Literal

import msgspec

Evidence = Literal["maintainers", "users"]


class Known(msgspec.Struct, frozen=True, kw_only=True):
    """One known harm.

    Attributes:
        id: Its name; never changes.
        packages: Package to the versions concerned: ``">=2.1,<2.2"``; all of them must match.
        symptoms: The rules whose findings it explains.
        what: What is known, to follow "torch 2.5.0 is known for this: ".
        what_zh: The same in Chinese.
        remedy: What helps.
        remedy_zh: The same in Chinese.
        source: Where it is established.
        evidence: Who established it: the package's maintainers, or users who reported it.
        device: Device type that it needs (``"cuda"``); empty: any.
        argument: Trainer's argument that it needs, and what its value contains (``"True"`` for a switch).
        model: What the model's class contains; empty: any.
    """

    id: str
    packages: dict[str, str]
    symptoms: frozenset[str]
    what: str
    what_zh: str
    remedy: str
    remedy_zh: str
    source: str
    evidence: Evidence = "maintainers"
    device: str = ""
    argument: tuple[str, str] | None = None
    model: str = ""


_NAN: Final = frozenset({"nonfinite_loss", "nonfinite_gradient", "nonfinite_eval_loss", "zero_loss"})
_LEAK: Final = frozenset({"memory_growth", "oom_forecast", "host_memory"})

KNOWN: Final = (
    Known(
        id="torch-2.5.0-cudnn-attention",
        packages={"torch": "==2.5.0"},
        symptoms=_NAN | {"divergence", "loss_spike"},
        what="its attention uses cuDNN's kernels by default, which give NaN and wrong gradients in some shapes",
        what_zh="其注意力默认使用 cuDNN 内核，在某些形状下会产生 NaN 和错误的梯度",
        remedy="use torch 2.5.1 or 2.4.1, or call torch.backends.cuda.enable_cudnn_sdp(False)",
        remedy_zh="改用 torch 2.5.1 或 2.4.1，或调用 torch.backends.cuda.enable_cudnn_sdp(False)",
        source="https://github.com/pytorch/pytorch/issues/138649",
        device="cuda",
    ),
    Known(
        id="torch-2.5.0-padded-evaluation",
        packages={"torch": "==2.5.0"},
        symptoms=frozenset({"nonfinite_eval_loss"}) | _LEAK,
        what="with more than one sample in a padded batch, eval_loss becomes NaN and memory grows",
        what_zh="批内多于一个样本且有填充时，eval_loss 变为 NaN，显存不断增长",
        remedy="use torch 2.4.1 or newer than 2.5.0; a batch size of 1 with accumulation avoids it meanwhile",
        remedy_zh="改用 torch 2.4.1 或 2.5.0 之后的版本；在此之前可用 batch size 1 加梯度累积规避",
        source="https://github.com/zai-org/GLM-4/issues/724",
        evidence="users",
        device="cuda",
    ),
    Known(
        id="torch-2.11-cudnn-attention-backward",
        packages={"torch": ">=2.11,<2.14"},
        symptoms=frozenset({"nonfinite_gradient"}),
        what="with an attention mask and a length of 64 more than a multiple of 128, cuDNN's attention gives NaN"
        " gradients on H100 and H200",
        what_zh="在 H100/H200 上，带注意力掩码且长度除以 128 余 64 时，cuDNN 注意力的反向传播会产生 NaN 梯度",
        remedy="call torch.backends.cuda.enable_cudnn_sdp(False), or pad to a multiple of 128",
        remedy_zh="调用 torch.backends.cuda.enable_cudnn_sdp(False)，或把长度填充到 128 的倍数",
        source="https://github.com/pytorch/pytorch/issues/196678",
        device="cuda",
    ),
    Known(
        id="torch-2.1-efficient-attention",
        packages={"torch": ">=2.1,<2.2"},
        symptoms=_NAN | {"divergence"},
        what="memory-efficient attention returns garbage for inputs that are not contiguous when a mask is given",
        what_zh="给出掩码且输入不连续时，内存高效注意力会返回错误结果",
        remedy="use torch 2.2 or newer",
        remedy_zh="升级到 torch 2.2 或更新版本",
        source="https://github.com/pytorch/pytorch/issues/112577",
        device="cuda",
    ),
    Known(
        id="torch-2.3.0-compile-leak",
        packages={"torch": ">=2.0,<2.3.1"},
        symptoms=_LEAK,
        what="torch.compile leaks memory",
        what_zh="torch.compile 存在内存泄漏",
        remedy="use torch 2.3.1 or newer, or train without torch_compile",
        remedy_zh="升级到 torch 2.3.1 或更新版本，或不使用 torch_compile",
        source="https://github.com/pytorch/pytorch/issues/119607",
        argument=("torch_compile", "True"),
    ),
    Known(
        id="accelerate-0.20.3-host-leak",
        packages={"accelerate": "==0.20.3", "torch": "==2.0.1"},
        symptoms=_LEAK,
        what="memory of the host was reported to grow until the machine fails",
        what_zh="有用户报告主机内存持续增长直至崩溃",
        remedy="use a newer accelerate",
        remedy_zh="升级 accelerate",
        source="https://github.com/huggingface/accelerate/issues/1572",
        evidence="users",
    ),
    Known(
        id="deepspeed-0.12.2-zero-loss",
        packages={"deepspeed": "==0.12.2"},
        symptoms=frozenset({"zero_loss", "nonfinite_gradient", "nonfinite_loss"}),
        what="losses of exactly 0 from the second step on were reported",
        what_zh="有用户报告从第二步起损失恒为 0",
        remedy="use another DeepSpeed (0.11.1 was well)",
        remedy_zh="更换 DeepSpeed 版本（0.11.1 正常）",
        source="https://github.com/deepspeedai/DeepSpeed/issues/4661",
        evidence="users",
    ),
    Known(
        id="deepspeed-0.13.5-nan",
        packages={"deepspeed": "==0.13.5"},
        symptoms=_NAN,
        what="NaN in loss and gradients from the second step on was reported with the Trainer",
        what_zh="有用户报告与 Trainer 一起使用时，从第二步起损失和梯度为 NaN",
        remedy="use another DeepSpeed (0.10.2 was well)",
        remedy_zh="更换 DeepSpeed 版本（0.10.2 正常）",
        source="https://github.com/deepspeedai/DeepSpeed/issues/5242",
        evidence="users",
    ),
    Known(
        id="bitsandbytes-0.37-adamw8bit",
        packages={"bitsandbytes": ">=0.36,<0.41.1"},
        symptoms=_NAN,
        what="losses that become NaN with its 8-bit AdamW were reported",
        what_zh="有用户报告其 8 位 AdamW 会使损失变为 NaN",
        remedy="use bitsandbytes 0.41.1 or newer, or another optimizer",
        remedy_zh="升级到 bitsandbytes 0.41.1 或更新版本，或更换优化器",
        source="https://github.com/bitsandbytes-foundation/bitsandbytes/issues/152",
        evidence="users",
        argument=("optim", "8bit"),
    ),
    Known(
        id="flash-attn-2.0-backward",
        packages={"flash-attn": ">=2.0,<2.1"},
        symptoms=frozenset({"nonfinite_gradient", "nonfinite_loss"}),
        what="its backward pass gives NaN for some inputs and short keys",
        what_zh="其反向传播对某些输入和较短的键会产生 NaN",
        remedy="use flash-attn 2.1 or newer",
        remedy_zh="升级到 flash-attn 2.1 或更新版本",
        source="https://github.com/Dao-AILab/flash-attention/issues/443",
    ),
    Known(
        id="transformers-gemma2-sdpa-padding",
        packages={"transformers": ">=4.42,<4.44"},
        symptoms=frozenset({"nonfinite_eval_loss", "nonfinite_loss"}),
        what="Gemma 2 gives NaN for padded positions with SDPA attention",
        what_zh="Gemma 2 在 SDPA 注意力下，填充位置会产生 NaN",
        remedy='load the model with attn_implementation="eager"',
        remedy_zh='以 attn_implementation="eager" 加载模型',
        source="https://github.com/huggingface/transformers/issues/32390",
        evidence="users",
        model="Gemma2",
    ),
)
"""All that we know; each entry is about released versions and names its source."""


def known_harms(
    environment: Mapping[str, Any], arguments: Mapping[str, Any], model: Mapping[str, Any]
) -> tuple[Known, ...]:
    """Returns the entries that fit a run's setup.

    Args:
        environment: As :class:`~trainwatch.events.RunStarted` has it.
        arguments: Likewise.
        model: Likewise.
    """
    return tuple(entry for entry in KNOWN if _fits(entry, environment, arguments, model))


def is_within(version: str, wanted: str) -> bool:
    """Tells whether a version lies within a range.

    Only the release counts: ``2.5.0+cu118`` and ``2.5.0.dev1`` are 2.5.0.

    Args:
        version: ``"2.5.0+cu118"``.
        wanted: Conditions separated by commas, all of which must hold: ``">=2.1,<2.2"``.
    """
    have = _release(version)
    for condition in wanted.split(","):
        matched = re.fullmatch(r"(==|>=|<=|<|>)([\d.]+)", condition.strip())
        if matched is None or not have:
            return False
        limit = _release(matched[2])
        size = max(len(have), len(limit))
        ours, theirs = have + (0,) * (size - len(have)), limit + (0,) * (size - len(limit))
        holds = {
            "==": ours == theirs,
            ">=": ours >= theirs,
            "<=": ours <= theirs,
            "<": ours < theirs,
            ">": ours > theirs,
        }
        if not holds[matched[1]]:
            return False
    return True


def _release(version: str) -> tuple[int, ...]:
    parts = re.split(r"[+\-]", version.strip(), maxsplit=1)[0].split(".")
    return tuple(int(part) for part in takewhile(str.isdecimal, parts))


def _fits(entry: Known, environment: Mapping[str, Any], arguments: Mapping[str, Any], model: Mapping[str, Any]) -> bool:
    packages = environment.get("packages")
    if not isinstance(packages, Mapping):
        return False
    if not all(is_within(str(packages.get(name, "")), wanted) for name, wanted in entry.packages.items()):
        return False
    if entry.device and not str(environment.get("device", "")).startswith(entry.device):
        return False
    if entry.argument and entry.argument[1] not in str(arguments.get(entry.argument[0], "")):
        return False
    return not entry.model or entry.model in str(model.get("class", ""))
