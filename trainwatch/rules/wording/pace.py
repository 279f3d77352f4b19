"""Sentences about pace: padding, throughput, waiting, standing still, and the disk."""

from __future__ import annotations

from typing import Any, Final

from trainwatch.rules.wording.words import DOING, DOING_ZH, Wordings, size_text


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %"


def _count(number: float) -> str:
    for unit, divisor in (("billion", 1e9), ("million", 1e6)):
        if number >= divisor:
            return f"{number / divisor:.3g} {unit}"
    return f"{number:,.0f}"


def _count_zh(number: float) -> str:
    for unit, divisor in (("亿", 1e8), ("万", 1e4)):
        if number >= divisor:
            return f"{number / divisor:.3g} {unit}"
    return f"{number:.0f}"


def seconds_text(seconds: float) -> str:
    """Writes a duration: ``0.31 s``, ``45 s``, ``12 min``, ``3.5 h``."""
    if seconds < 10:
        return f"{seconds:.2g} s"
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


def _zh_seconds(seconds: float) -> str:
    text = seconds_text(seconds)
    return text.replace(" min", " 分钟").replace(" h", " 小时").replace(" s", " 秒")


def _padding(p: dict[str, Any], step: int | None, rank: int | None) -> str:
    if p["fixed"]:
        todo = "every batch has the same length: pad to the longest sample of a batch instead of a fixed length"
    elif p["grouped"]:
        todo = "lengths are grouped already: use smaller batches with accumulation, or pack samples"
    else:
        todo = "group samples of like length (train_sampling_strategy=group_by_length, before v5 group_by_length=True)"
    return (
        f"{_percent(p['share'])} of the tokens of the last {p['steps']} steps are padding:"
        f" {_count(p['padding'])} of {_count(p['tokens'])}; {todo}."
    )


def _padding_zh(p: dict[str, Any], step: int | None, rank: int | None) -> str:
    if p["fixed"]:
        todo = "所有批次长度相同，请改为填充到批内最长样本"
    elif p["grouped"]:
        todo = "已按长度分组，可减小批大小并使用梯度累积，或拼接样本"
    else:
        todo = "请按长度分组（train_sampling_strategy=group_by_length，v5 之前为 group_by_length=True）"
    return (
        f"最近 {p['steps']} 步的 token 中 {_percent(p['share'])} 是填充"
        f"（{_count_zh(p['padding'])} / {_count_zh(p['tokens'])}），{todo}。"
    )


def _throughput(p: dict[str, Any], step: int | None, rank: int | None) -> str:
    return (
        f"Throughput is down to {_percent(p['share'])} of what is usual in this run for batches of this length:"
        f" {_count(p['rate'])} {p['unit']} a second in the last {p['steps']} steps, {_count(p['usual'])} before;"
        " look for other processes on the machine, a hot device, or slower storage."
    )


def _throughput_zh(p: dict[str, Any], step: int | None, rank: int | None) -> str:
    unit = "token" if p["unit"] == "tokens" else "样本"
    return (
        f"吞吐量降至本次训练同等长度批次常态的 {_percent(p['share'])}："
        f"最近 {p['steps']} 步每秒 {_count_zh(p['rate'])} {unit}，此前为 {_count_zh(p['usual'])}；"
        "请检查机器上的其他进程、设备温度或存储速度。"
    )


def _data(p: dict[str, Any], step: int | None, rank: int | None) -> str:
    workers = p.get("workers")
    if workers is None:
        todo = "load it with more workers, or prepare it beforehand"
    elif workers == 0:
        todo = "dataloader_num_workers is 0: give it some, or prepare the data beforehand"
    else:
        todo = f"{workers} workers are not enough: use more, or prepare the data beforehand"
    return (
        f"{_percent(p['share'])} of the time of the last {p['steps']} steps was spent waiting for data:"
        f" {seconds_text(p['waited'])} for each {seconds_text(p['worked'])} of training; {todo}."
    )


def _data_zh(p: dict[str, Any], step: int | None, rank: int | None) -> str:
    workers = p.get("workers")
    now = "" if workers is None else f"（目前 dataloader_num_workers={workers}）"
    return (
        f"最近 {p['steps']} 步有 {_percent(p['share'])} 的时间在等待数据：每步等待 {_zh_seconds(p['waited'])}，"
        f"训练 {_zh_seconds(p['worked'])}；请增加数据加载进程{now}或预先处理数据。"
    )


def _straggler(p: dict[str, Any], step: int | None, rank: int | None) -> str:
    part = "mostly loading data" if p["by_data"] else "in its forward and backward passes"
    where = "of all nodes" if p.get("nodes") else "of this node"
    return (
        f"Rank {rank} is slower than the other {p['ranks'] - 1} {where}: {seconds_text(p['own'])} of work of its"
        f" own in a step against {seconds_text(p['usual'])}, {part}; the others lose {_percent(p['lost'])} of each step"
        " waiting for it."
    )


def _straggler_zh(p: dict[str, Any], step: int | None, rank: int | None) -> str:
    part = "主要在加载数据" if p["by_data"] else "在前向和反向计算中"
    where = "全部节点的" if p.get("nodes") else "本节点"
    return (
        f"rank {rank} 比{where}其他 {p['ranks'] - 1} 个 rank 慢：每步自身用时 {_zh_seconds(p['own'])}，"
        f"其他为 {_zh_seconds(p['usual'])}（{part}）；其他 rank 每步有 {_percent(p['lost'])} 的时间在等它。"
    )


def _hang(p: dict[str, Any], step: int | None, rank: int | None) -> str:
    step = p.get("step", step)
    where = "before its first step was done" if step is None else f"after step {step}"
    phase = p.get("phase")
    doing = f" while {DOING[phase]}" if phase in ("eval", "save", "load") else ""
    usual = p.get("usual")
    kind = {"eval": "the longest evaluation so far took", "save": "the longest save so far took"}.get(
        str(phase), "a step usually takes"
    )
    known = f"; {kind} {seconds_text(usual)}" if usual is not None else ""
    slow = p.get("behind") or []
    who = ""
    if slow:
        names = ", ".join(map(str, slow[:8]))
        who = (
            f" Look at rank {names} first: it did not come as far as the others."
            if len(slow) == 1
            else (f" Look at ranks {names} first: they did not come as far as the others.")
        )
    return f"The run has stood still for {seconds_text(p['seconds'])} {where}{doing}{known}; its processes live.{who}"


def _hang_zh(p: dict[str, Any], step: int | None, rank: int | None) -> str:
    step = p.get("step", step)
    where = "在完成第一步之前" if step is None else f"在第 {step} 步之后"
    phase = p.get("phase")
    doing = f"（{DOING_ZH[phase]}中）" if phase in ("eval", "save", "load") else ""
    usual = p.get("usual")
    kind = {"eval": "此前最长的评估用时", "save": "此前最长的保存用时"}.get(str(phase), "通常每步用时")
    known = f"，{kind} {_zh_seconds(usual)}" if usual is not None else ""
    slow = p.get("behind") or []
    who = f"请先检查 rank {'、'.join(map(str, slow[:8]))}：它落后于其他 rank。" if slow else ""
    return f"训练{where}{doing}已停滞 {_zh_seconds(p['seconds'])}{known}，进程仍然存活。{who}"


def _disk(p: dict[str, Any], step: int | None, rank: int | None) -> str:
    free = f"{size_text(p['free'])} are free on the disk of the output folder"
    if p["fit"] < 1:
        return (
            f"The next checkpoint will not fit: {free}, and the last one took {size_text(p['size'])};"
            " make room, or the save will fail."
        )
    return (
        f"{free}: room for {p['fit']} of the {p['left']} checkpoints still to come, of {size_text(p['size'])} each;"
        " make room, or keep fewer (save_total_limit)."
    )


def _disk_zh(p: dict[str, Any], step: int | None, rank: int | None) -> str:
    free = f"输出目录所在磁盘剩余 {size_text(p['free'])}"
    if p["fit"] < 1:
        return f"下一个检查点放不下：{free}，上一个占用 {size_text(p['size'])}；请腾出空间，否则保存会失败。"
    return (
        f"{free}，只够保存剩余 {p['left']} 个检查点中的 {p['fit']} 个（每个 {size_text(p['size'])}）；"
        "请腾出空间或减少保留数量（save_total_limit）。"
    )


def _idle(p: dict[str, Any], step: int | None, rank: int | None) -> str:
    who = "" if rank is None else f" of rank {rank}"
    return (
        f"{p['device']}{who} was busy for {_percent(p['share'])} of {seconds_text(p['seconds'])} of training"
        f" ({p['steps']} steps): is the model on it, and does the data come?"
    )


def _idle_zh(p: dict[str, Any], step: int | None, rank: int | None) -> str:
    who = "" if rank is None else f"（rank {rank}）"
    return (
        f"{p['device']}{who} 在 {_zh_seconds(p['seconds'])} 的训练中只有 {_percent(p['share'])} 的时间在工作"
        f"（{p['steps']} 步）：请确认模型在该设备上且数据供应正常。"
    )


WORDINGS: Final[Wordings] = {
    "padding_waste": (_padding, _padding_zh),
    "throughput_drop": (_throughput, _throughput_zh),
    "data_bound": (_data, _data_zh),
    "straggler": (_straggler, _straggler_zh),
    "hang": (_hang, _hang_zh),
    "disk_space": (_disk, _disk_zh),
    "gpu_idle": (_idle, _idle_zh),
}
