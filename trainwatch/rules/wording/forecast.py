"""Sentences about memory that is still to be needed, and about what a run's memory does."""

from __future__ import annotations

from typing import Any, Final

from trainwatch.rules.wording.words import Wordings, size_text


def _in_unit_of(count: float, limit: float) -> str:
    """Writes a limit with as many digits as it takes to tell it from the other number."""
    for unit, divisor in (("GiB", 2**30), ("MiB", 2**20)):
        if max(count, limit) >= divisor:
            return f"{count / divisor:.1f} {unit}"
    return size_text(count)


def _interval(p: dict[str, Any]) -> str:
    unit = _in_unit_of(p["high"], p["limit"])
    return f"{_in_unit_of(p['low'], p['limit']).split()[0]}–{unit}"


def _percent(share: float) -> str:
    if 0 < share < 0.001:
        return "less than 0.1 %"
    return f"{100 * share:.1f} %" if 0 < share < 0.095 else f"{100 * share:.0f} %"


def _who(rank: int | None) -> str:
    return "" if rank is None else f" on rank {rank}"


def _peak(p: dict[str, Any], step: int | None, rank: int | None) -> str:
    need, limit = _in_unit_of(p["need"], p["limit"]), _in_unit_of(p["limit"], p["need"])
    when = "at a step that is not known" if p["at"] is None else f"at step {p['at']:,}"
    longest = "The longest sample" if p.get("complete", True) else "The longest sample that could be read"
    text = (
        f"{longest} has {p['length']:,} tokens and has not been seen yet: that batch will need"
        f" {need} ({_interval(p)}) of {limit} on {p['device']}{_who(rank)}, {when}"
        f" (foreseen from {p['steps']} steps, up to {p['longest_seen']:,} tokens long)."
    )
    if p.get("cap"):
        many = "" if p.get("longer") is None else f"; {_percent(p['longer'])} of the samples are longer"
        text += f" A length of up to {p['cap']:,} tokens fits{many}."
    return text


def _peak_zh(p: dict[str, Any], step: int | None, rank: int | None) -> str:
    need, limit = _in_unit_of(p["need"], p["limit"]), _in_unit_of(p["limit"], p["need"])
    when = "出现的步数未知" if p["at"] is None else f"将在第 {p['at']} 步出现"
    who = "" if rank is None else f"（rank {rank}）"
    longest = "最长的样本" if p.get("complete", True) else "已读到的最长样本"
    text = (
        f"{longest}有 {p['length']} 个 token，尚未出现：该批次在 {p['device']} 上{who}需要 {need}"
        f"（{_interval(p)}），而可用的只有 {limit}，{when}"
        f"（依据前 {p['steps']} 步，最长 {p['longest_seen']} 个 token）。"
    )
    return text + (f"长度不超过 {p['cap']} 个 token 时可以放下。" if p.get("cap") else "")


_PHASES: Final = {"eval": "evaluating", "save": "saving", "update": "the first update"}
_PHASES_ZH: Final = {"eval": "评估", "save": "保存", "update": "第一次参数更新"}


def _phase(p: dict[str, Any], step: int | None, rank: int | None) -> str:
    when = "" if p["at"] is None else f" at step {p['at']:,}"
    doing = _PHASES[p["phase"]]
    seen = "it follows from the sizes of the model" if not p["seen"] else f"{p['seen']} seen so far"
    may = "may need up to" if p["phase"] == "save" and not p["seen"] else "will need"
    # The sentence begins with what is done.
    return (
        f"{doing[0].upper()}{doing[1:]}{when}{_who(rank)} {may} {size_text(p['more'])} more than is left on"
        f" {p['device']}: {_in_unit_of(p['need'], p['limit'])} of {_in_unit_of(p['limit'], p['need'])} ({seen})."
    )


def _phase_zh(p: dict[str, Any], step: int | None, rank: int | None) -> str:
    when = "" if p["at"] is None else f"第 {p['at']} 步"
    return (
        f"{when}{_PHASES_ZH[p['phase']]}时 {p['device']} 将比剩余内存多需要 {size_text(p['more'])}"
        f"：需要 {_in_unit_of(p['need'], p['limit'])}，可用 {_in_unit_of(p['limit'], p['need'])}。"
    )


def _rise(p: dict[str, Any], step: int | None, rank: int | None) -> str:
    end = f"; at this pace {p['device']} is full in {p['left']:.0f} s" if p["runs_out"] else ""
    return (
        f"Memory{_who(rank)} rises all through the evaluation, {size_text(p['rate'])} a second,"
        f" by {size_text(p['risen'])} in {p['seconds']:.0f} s{end}: predictions are gathered on {p['device']}."
        " Set eval_accumulation_steps, or prediction_loss_only where only the loss is wanted."
    )


def _rise_zh(p: dict[str, Any], step: int | None, rank: int | None) -> str:
    end = f"，按此速度 {p['left']:.0f} 秒后 {p['device']} 将耗尽" if p["runs_out"] else ""
    return (
        f"评估过程中内存持续上升，每秒 {size_text(p['rate'])}，{p['seconds']:.0f} 秒内增加"
        f" {size_text(p['risen'])}{end}。"
        "请设置 eval_accumulation_steps，或在只需要损失时设置 prediction_loss_only。"
    )


def _period(p: dict[str, Any]) -> str:
    if not p.get("period_steps"):
        return ""
    return f", about every {p['period_steps']:.0f} steps ({p['period_seconds']:.0f} s)"


def _steady(p: dict[str, Any]) -> str:
    return f"Memory is steady: {size_text(p['held'])} held between steps, {size_text(p['peak'])} at the highest peak."


def _warm_up(p: dict[str, Any]) -> str:
    return (
        f"Memory has warmed up by {size_text(p['risen'])} and stays now: {size_text(p['held'])} held between steps,"
        f" {size_text(p['peak'])} at the highest peak."
    )


def _padding(p: dict[str, Any]) -> str:
    waste = "" if p.get("padding") is None else f" {_percent(p['padding'])} of the tokens are padding."
    return (
        f"Memory saws between {size_text(p['lowest'])} and {size_text(p['highest'])}{_period(p)}:"
        f" {_percent(p['share'])} of the memory swing is explained by padded tokens.{waste}"
    )


def _leak(p: dict[str, Any]) -> str:
    end = "" if p.get("ends_at") is None else f"; it meets the limit at about step {p['ends_at']:,}"
    return (
        f"Memory leaks: {size_text(p['rate'])} a step, {size_text(p['risen'])} since step {p['since']:,},"
        f" and it does not come back{end}."
    )


def _fragmentation(p: dict[str, Any]) -> str:
    return (
        f"The allocator's memory is fragmented: {size_text(max(p['split'], p['over']))}"
        f" ({_percent(p['share'])} of the device) is reserved and of no use."
    )


def _outside(p: dict[str, Any]) -> str:
    return (
        f"{size_text(p['outside'])} ({_percent(p['share'])} of the device) is used by this process outside the"
        " allocator: context, communication buffers, libraries."
    )


def _eval(p: dict[str, Any]) -> str:
    peak = size_text(p["eval_peak"])
    return f"Evaluating needs {size_text(p['more'])} more than any step of training: {peak} at the peak."


def _other(p: dict[str, Any]) -> str:
    return f"Other processes hold {size_text(p['others'])} ({_percent(p['share'])}) of the device."


_KINDS: Final = {
    "steady": _steady,
    "warm_up": _warm_up,
    "padding_sawtooth": _padding,
    "leak": _leak,
    "fragmentation": _fragmentation,
    "outside_allocator": _outside,
    "eval_accumulation": _eval,
    "other_process": _other,
}

REMEDIES: Final = {
    "length_cap": ("a length of at most {value:,} tokens", "长度限制为 {value} 个 token"),
    "smaller_batch": (
        "a batch of {value} with as much more gradient accumulation",
        "批大小减为 {value}，相应增加梯度累积",
    ),
    "group_by_length": ("grouping by length (less padding, not a lower peak)", "按长度分组（减少填充，不降低峰值）"),
    "gradient_checkpointing": ("gradient checkpointing", "梯度检查点"),
    "eval_accumulation_steps": ("eval_accumulation_steps", "eval_accumulation_steps"),
    "expandable_segments": (
        "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True",
        "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True",
    ),
    "free_device": ("keeping other processes off the device", "让其他进程离开该设备"),
    "find_leak": ("finding what keeps tensors alive", "找出未释放的张量"),
}
"""What helps, in both languages; with ``value``, what to set it to."""

_WITHOUT_FIGURE: Final = ("find_leak",)


def remedy_text(remedy: dict[str, Any], language: int = 0) -> str:
    """Says a remedy, with what it saves where that was computed.

    Args:
        remedy: A :class:`~trainwatch.forecast.remedies.Remedy` as plain values.
        language: 0 for English, 1 for Chinese.
    """
    text = REMEDIES[remedy["kind"]][language].format(value=remedy.get("value") or 0)
    if remedy.get("saves") and remedy["kind"] not in _WITHOUT_FIGURE:
        saves = size_text(remedy["saves"])
        text += f"（节省 {saves}）" if language else f" (saves {saves})"
    return text


def _verdict(p: dict[str, Any], step: int | None, rank: int | None) -> str:
    text = f"{p['device']}{_who(rank)}: {_KINDS[p['kind']](p)}"
    remedies = [remedy_text(remedy) for remedy in p.get("remedies") or ()]
    return f"{text} What helps: {'; '.join(remedies)}." if remedies else text


_KINDS_ZH: Final = {
    "steady": "内存平稳：步间占用 {held}，峰值 {peak}。",
    "warm_up": "内存预热后增加了 {risen}，现已稳定：步间占用 {held}，峰值 {peak}。",
    "padding_sawtooth": "内存在 {lowest} 与 {highest} 之间呈锯齿状，{share} 的波动由填充后的 token 数解释。",
    "leak": "内存泄漏：每步 {rate}，自第 {since} 步以来增加 {risen}，没有回落。",
    "fragmentation": "分配器内存碎片化：设备的 {share} 已保留却无法使用。",
    "outside_allocator": "本进程在分配器之外占用 {outside}（设备的 {share}）。",
    "eval_accumulation": "评估比任何训练步多需要 {more}，峰值 {eval_peak}。",
    "other_process": "其他进程占用 {others}（设备的 {share}）。",
}
_PLAIN: Final = frozenset({"since"})


def _verdict_zh(p: dict[str, Any], step: int | None, rank: int | None) -> str:
    shown = {
        name: value if name in _PLAIN else _percent(value) if name == "share" else size_text(value)
        for name, value in p.items()
        if isinstance(value, int | float)
    }
    text = f"{p['device']}：{_KINDS_ZH[p['kind']].format(**shown)}"
    if p["kind"] == "leak" and p.get("ends_at") is not None:
        text = f"{text.removesuffix('。')}，约在第 {p['ends_at']} 步达到上限。"
    remedies = [remedy_text(remedy, 1) for remedy in p.get("remedies") or ()]
    return f"{text}可用的办法：{'；'.join(remedies)}。" if remedies else text


WORDINGS: Final[Wordings] = {
    "peak_forecast": (_peak, _peak_zh),
    "phase_forecast": (_phase, _phase_zh),
    "eval_accumulation": (_rise, _rise_zh),
    "memory_verdict": (_verdict, _verdict_zh),
}
