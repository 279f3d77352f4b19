"""Phrases that sentences share, in English and Chinese."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

Wording = Callable[[dict[str, Any], "int | None", "int | None"], str]
"""Evidence, step and rank in, a sentence out."""

Wordings = dict[str, tuple[Wording, Wording]]
"""Rule id to its English and its Chinese wording."""


def at(step: int | None, rank: int | None) -> str:
    """Says where: step and rank."""
    where = "" if step is None else f" at step {step}"
    return where + ("" if rank is None else f" on rank {rank}")


def at_zh(step: int | None, rank: int | None) -> str:
    """Says where, in Chinese."""
    where = "" if step is None else f"第 {step} 步"
    return where + ("" if rank is None else f"（rank {rank}）")


def resume(p: dict[str, Any]) -> str:
    """Names the checkpoint to go on from, if there is one."""
    path = p.get("checkpoint")
    return f" Resume from {path}." if path else ""


def resume_zh(p: dict[str, Any]) -> str:
    """Names the checkpoint, in Chinese."""
    path = p.get("checkpoint")
    return f"可从 {path} 继续训练。" if path else ""


def ordinal(number: int) -> str:
    """Writes a place in a row: 1st, 2nd."""
    ending = "th" if number % 100 in (11, 12, 13) else {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number}{ending}"


def size_text(count: float) -> str:
    """Writes bytes in the largest unit that fits."""
    for unit, divisor in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if count >= divisor:
            return f"{count / divisor:.3g} {unit}" if count < 1000 * divisor else f"{count / divisor:.0f} {unit}"
    return f"{count:.0f} bytes"


DOING: Final = {"train": "training", "eval": "evaluating", "save": "saving", "load": "loading", "idle": "idling"}
DOING_ZH: Final = {"train": "训练", "eval": "评估", "save": "保存", "load": "加载", "idle": "空闲"}
