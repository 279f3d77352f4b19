"""Sentences about how a training came to its end."""

from __future__ import annotations

from typing import Any, Final

from trainwatch.rules.wording.words import Wordings, at, at_zh, resume, resume_zh, size_text


def _failed(p: dict[str, Any], step: int | None, rank: int | None) -> str:
    step = p.get("step", step)
    when = f" at step {step}" if step else " before its first step was done"
    who = "" if rank is None else f" on rank {rank}"
    if p["error"].startswith("KeyboardInterrupt"):
        return f"The training was interrupted{when}{who} (Ctrl-C)."
    return f"The training failed{when}{who}: {p['error'] or 'it did not say why'}"


def _failed_zh(p: dict[str, Any], step: int | None, rank: int | None) -> str:
    step = p.get("step", step)
    when = f"在第 {step} 步" if step else "在完成第一步之前"
    who = "" if rank is None else f"（rank {rank}）"
    if p["error"].startswith("KeyboardInterrupt"):
        return f"训练{when}被手动中断{who}（Ctrl-C）。"
    return f"训练{when}失败{who}：{p['error'] or '原因不明'}"


def _gone(p: dict[str, Any], step: int | None, rank: int | None) -> str:
    step = p.get("step", step)
    who = "The training process" if rank is None else f"The process of rank {rank}"
    where = f" after step {step}" if step is not None else " before its first step"
    phase = f" in phase {p['phase']}" if p.get("phase") else ""
    why = " The kernel's OOM killer was at work." if p.get("oom_kills") else ""
    return f"{who} died{where}{phase} without a word.{why}"


def _gone_zh(p: dict[str, Any], step: int | None, rank: int | None) -> str:
    step = p.get("step", step)
    who = "训练进程" if rank is None else f"rank {rank} 的进程"
    where = f"在第 {step} 步之后" if step is not None else "在第一步之前"
    why = "内核 OOM killer 曾终止进程。" if p.get("oom_kills") else ""
    return f"{who}{where}无声终止。{why}"


def _silent(p: dict[str, Any], step: int | None, rank: int | None) -> str:
    phase = f", in phase {p['phase']}" if p.get("phase") else ""
    memory = ""
    if p.get("device"):
        memory = f", with {size_text(p['used'])} of {size_text(p['capacity'])} of {p['device']} in use"
    return f"Nothing was heard of the run for {round(p['seconds'])} s; its last step was {step}{phase}{memory}."


def _silent_zh(p: dict[str, Any], step: int | None, rank: int | None) -> str:
    phase = f"，处于 {p['phase']} 阶段" if p.get("phase") else ""
    memory = ""
    if p.get("device"):
        memory = f"，{p['device']} 已用 {size_text(p['used'])}（共 {size_text(p['capacity'])}）"
    return f"已有 {round(p['seconds'])} 秒没有收到该训练的消息，最后一步是第 {step} 步{phase}{memory}。"


def _command(p: dict[str, Any], step: int | None, rank: int | None) -> str:
    why = f": {p['reason']}" if p.get("reason") else ""
    return f"Halted{at(step, rank)} by command{why}.{resume(p)}"


def _command_zh(p: dict[str, Any], step: int | None, rank: int | None) -> str:
    return f"{at_zh(step, rank)}按命令停止。{resume_zh(p)}"


def _imported(p: dict[str, Any], step: int | None, rank: int | None) -> str:
    return f"What was imported does not say how the run ended; its last step was {step}."


def _imported_zh(p: dict[str, Any], step: int | None, rank: int | None) -> str:
    return f"导入的文件没有说明训练如何结束，最后一步是第 {step} 步。"


WORDINGS: Final[Wordings] = {
    "process_gone": (_gone, _gone_zh),
    "training_failed": (_failed, _failed_zh),
    "silent": (_silent, _silent_zh),
    "imported": (_imported, _imported_zh),
    "run_lost": (_silent, _silent_zh),
    "command": (_command, _command_zh),
}
