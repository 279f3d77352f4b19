"""Sentences about memory."""

from __future__ import annotations

from typing import Any, Final

from trainwatch.rules.wording.words import DOING, DOING_ZH, Wordings, resume, resume_zh, size_text


def _memory(p: dict[str, Any], step: int | None, rank: int | None) -> str:
    who = "" if rank is None else f" on rank {rank}"
    when = f" after step {step}" if step else " before its first step was done"
    doing = f" while {DOING[p['phase']]}" if p.get("phase") in DOING else ""
    held = f" and {size_text(p['allocated'])} held by tensors" if p.get("allocated") else ""
    return (
        f"{p['device']} ran out of memory{who}{when}{doing}: {size_text(p['requested'])} were asked for,"
        f" with {size_text(p['free'])} free{held}."
    )


def _memory_zh(p: dict[str, Any], step: int | None, rank: int | None) -> str:
    when = f"在第 {step} 步之后" if step else "在完成第一步之前"
    who = "" if rank is None else f"（rank {rank}）"
    doing = f"{DOING_ZH[p['phase']]}时" if p.get("phase") in DOING_ZH else ""
    held = f"，张量占用 {size_text(p['allocated'])}" if p.get("allocated") else ""
    asked, free = size_text(p["requested"]), size_text(p["free"])
    return f"{p['device']} {when}{doing}内存不足{who}：申请 {asked}，空闲 {free}{held}。"


def _who(p: dict[str, Any], rank: int | None) -> str:
    return f"on {p['device']}" + ("" if rank is None else f" of rank {rank}")


def _who_zh(p: dict[str, Any], rank: int | None) -> str:
    return f"{p['device']}" + ("" if rank is None else f"（rank {rank}）")


def span(seconds: float) -> str:
    """Writes a time in the unit that fits."""
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


def span_zh(seconds: float) -> str:
    """Writes a time in Chinese."""
    if seconds < 120:
        return f"{seconds:.0f} 秒"
    return f"{seconds / 60:.0f} 分钟" if seconds < 7200 else f"{seconds / 3600:.1f} 小时"


def _growth(p: dict[str, Any], step: int | None, rank: int | None) -> str:
    of = "" if p.get("limit") is None else f" of {size_text(p['limit'])}"
    held = f"{size_text(p['held'])}{of} are held now."
    hint = "Look for tensors that outlive their step: a loss that is summed up without .item(), outputs kept in a list."
    if p.get("bytes_per_step") is None:
        hour = size_text(p["bytes_per_second"] * 3600)
        return (
            f"Memory {_who(p, rank)} grows {hour} an hour and does not come back: by {size_text(p['risen'])}"
            f" in the last {span(p['seconds'])}. {held}"
        )
    return (
        f"Memory {_who(p, rank)} grows {size_text(p['bytes_per_step'])} a step since step {p['since']} and does not"
        f" come back: by {size_text(p['risen'])} so far. {held} {hint}"
    )


def _growth_zh(p: dict[str, Any], step: int | None, rank: int | None) -> str:
    of = "" if p.get("limit") is None else f"（上限 {size_text(p['limit'])}）"
    held = f"目前占用 {size_text(p['held'])}{of}。"
    hint = "请检查是否有张量跨步保留，例如未用 .item() 累加的损失或保存在列表中的输出。"
    if p.get("bytes_per_step") is None:
        hour = size_text(p["bytes_per_second"] * 3600)
        return f"{_who_zh(p, rank)} 的内存每小时增长 {hour} 且不回落，已增长 {size_text(p['risen'])}。{held}"
    return (
        f"{_who_zh(p, rank)} 的内存自第 {p['since']} 步起每步增长 {size_text(p['bytes_per_step'])} 且不回落，"
        f"已增长 {size_text(p['risen'])}。{held}{hint}"
    )


def _forecast(p: dict[str, Any], step: int | None, rank: int | None) -> str:
    if p.get("bytes_per_step") is None:
        between = f"{span(p['seconds_low'])} to {span(p['seconds_high'])}"
        hour = size_text(p["bytes_per_second"] * 3600)
        return (
            f"Memory {_who(p, rank)} grows {hour} an hour and does not come back: it is full in about"
            f" {span(p['seconds_left'])} ({between}). This rests on the last {span(p['seconds'])}."
        )
    return (
        f"Memory {_who(p, rank)} grows {size_text(p['bytes_per_step'])} a step and does not come back: OOM in about"
        f" {p['steps_left']} steps ({p['steps_low']}–{p['steps_high']}), near step {p['oom_step']}, at the"
        f" limit of {size_text(p['limit'])}. This rests on the last {p['window']} steps.{resume(p)}"
    )


def _forecast_zh(p: dict[str, Any], step: int | None, rank: int | None) -> str:
    if p.get("bytes_per_step") is None:
        hour = size_text(p["bytes_per_second"] * 3600)
        between = f"{span_zh(p['seconds_low'])}至{span_zh(p['seconds_high'])}"
        return (
            f"{_who_zh(p, rank)} 的内存每小时增长 {hour} 且不回落，约 {span_zh(p['seconds_left'])}后耗尽（{between}）。"
        )
    return (
        f"{_who_zh(p, rank)} 的内存每步增长 {size_text(p['bytes_per_step'])} 且不回落，约 {p['steps_left']} 步后"
        f"内存耗尽（{p['steps_low']}–{p['steps_high']} 步），即第 {p['oom_step']} 步附近，"
        f"上限 {size_text(p['limit'])}，依据最近 {p['window']} 步。{resume_zh(p)}"
    )


def _headroom(p: dict[str, Any], step: int | None, rank: int | None) -> str:
    whole = f"{size_text(p['used'])} of {size_text(p['limit'])}"
    if not p.get("by_step"):
        return f"{whole} are in use {_who(p, rank)}, by everybody and with caches; {size_text(p['left'])} are left."
    return (
        f"A step needed {whole} {_who(p, rank)}; {size_text(p['left'])} are left. A longer batch, an evaluation or a"
        f" save may run out of memory: smaller batches with accumulation, or gradient checkpointing, make room."
    )


def _headroom_zh(p: dict[str, Any], step: int | None, rank: int | None) -> str:
    used, limit, left = size_text(p["used"]), size_text(p["limit"]), size_text(p["left"])
    if not p.get("by_step"):
        return f"{_who_zh(p, rank)} 共用 {used} / {limit}（含缓存和其他进程），剩余 {left}。"
    return f"{_who_zh(p, rank)} 单步需要 {used} / {limit}，剩余 {left}。可减小批次并使用梯度累积，或启用梯度检查点。"


def _host(p: dict[str, Any], step: int | None, rank: int | None) -> str:
    if "kills" in p:
        what = "a process" if p["kills"] == 1 else f"{p['kills']} processes"
        return f"The kernel's OOM killer took {what}: the memory of the machine or its control group was used up."
    return (
        f"{size_text(p['used'])} of {size_text(p['limit'])} of the host's memory are in use, page cache not counted;"
        f" {size_text(p['left'])} are left. Data loader workers, if there are any, hold some of it."
    )


def _host_zh(p: dict[str, Any], step: int | None, rank: int | None) -> str:
    if "kills" in p:
        return f"内核 OOM killer 终止了 {p['kills']} 个进程：主机或控制组的内存已耗尽。"
    used, limit, left = size_text(p["used"]), size_text(p["limit"]), size_text(p["left"])
    return f"主机内存已用 {used} / {limit}（不含页缓存），剩余 {left}。若使用数据加载进程，其也占用内存。"


def _fragmentation(p: dict[str, Any], step: int | None, rank: int | None) -> str:
    asked = f" A request of {size_text(p['requested'])} failed although" if p.get("requested") else " Of it"
    return (
        f"The allocator {_who(p, rank)} holds {size_text(p['reserved'])} of {size_text(p['limit'])}.{asked}"
        f" {size_text(p['split'])} lie unused in pieces. PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True helps."
    )


def _fragmentation_zh(p: dict[str, Any], step: int | None, rank: int | None) -> str:
    asked = f"申请 {size_text(p['requested'])} 失败。" if p.get("requested") else ""
    return (
        f"{_who_zh(p, rank)} 的分配器保留 {size_text(p['reserved'])} / {size_text(p['limit'])}，其中"
        f" {size_text(p['split'])} 为无法使用的碎片。{asked}可设置 PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True。"
    )


def _retries(p: dict[str, Any], step: int | None, rank: int | None) -> str:
    often = f", {p['recent']} times since step {p['since']}" if p["recent"] > 1 else ""
    return (
        f"The allocator {_who(p, rank)} had to give its cache back to serve a request{often}: memory is all but used"
        f" up, and each time costs the step many milliseconds. Smaller batches make room."
    )


def _retries_zh(p: dict[str, Any], step: int | None, rank: int | None) -> str:
    return (
        f"{_who_zh(p, rank)} 的分配器不得不释放缓存才能满足请求（自第 {p['since']} 步起 {p['recent']} 次）："
        "显存几乎耗尽，且每次都会拖慢训练。可减小批次。"
    )


def _imbalance(p: dict[str, Any], step: int | None, rank: int | None) -> str:
    return (
        f"Rank {p['most']} needs {size_text(p['highest'])} of {size_text(p['limit'])} on {p['device']}, rank"
        f" {p['least']} only {size_text(p['lowest'])}: one will run out while the other has room."
    )


def _imbalance_zh(p: dict[str, Any], step: int | None, rank: int | None) -> str:
    return (
        f"rank {p['most']} 在 {p['device']} 上需要 {size_text(p['highest'])} / {size_text(p['limit'])}，"
        f"而 rank {p['least']} 仅需 {size_text(p['lowest'])}：前者会先耗尽内存。"
    )


def _others(p: dict[str, Any], step: int | None, rank: int | None) -> str:
    names = ", ".join(p.get("processes") or [])
    return (
        f"Other processes hold {size_text(p['others'])} of {size_text(p['capacity'])} {_who(p, rank)}"
        + (f" ({names})" if names else "")
        + (f", {size_text(p['grown'])} more than before" if p.get("grown", 0) > 0 else "")
        + ". That memory is missing when a step needs it."
    )


def _others_zh(p: dict[str, Any], step: int | None, rank: int | None) -> str:
    names = "、".join(p.get("processes") or [])
    return (
        f"其他进程在 {_who_zh(p, rank)} 上占用 {size_text(p['others'])} / {size_text(p['capacity'])}"
        + (f"（{names}）" if names else "")
        + "，训练需要时将无法使用这部分内存。"
    )


WORDINGS: Final[Wordings] = {
    "out_of_memory": (_memory, _memory_zh),
    "memory_growth": (_growth, _growth_zh),
    "oom_forecast": (_forecast, _forecast_zh),
    "memory_headroom": (_headroom, _headroom_zh),
    "host_memory": (_host, _host_zh),
    "fragmentation": (_fragmentation, _fragmentation_zh),
    "allocator_retries": (_retries, _retries_zh),
    "memory_imbalance": (_imbalance, _imbalance_zh),
    "other_processes": (_others, _others_zh),
}
