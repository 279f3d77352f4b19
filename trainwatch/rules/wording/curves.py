"""Sentences about the curves of a run: loss, eval loss, gradient norm, learning rate, loss scale."""

from __future__ import annotations

from typing import Any, Final

from trainwatch.rules.wording.words import Wordings, at, at_zh


def _times(high: float, low: float) -> str:
    """Says how much higher a value is, as a share while that is short and as a factor after that."""
    if low <= 0 or high < low:
        return ""
    return f"{100 * (high / low - 1):.0f} %" if high < 2 * low else f"{high / low:.3g} times"


def _above(high: float, low: float) -> str:
    text = _times(high, low)
    return f" ({text} above it)" if text.endswith("%") else f" ({text} that)" if text else ""


def _above_zh(high: float, low: float) -> str:
    text = _times(high, low)
    return f"（高出 {text}）" if text.endswith("%") else f"（{text.removesuffix(' times')} 倍）" if text else ""


def _zero(p: dict[str, Any], step: int | None, rank: int | None) -> str:
    row = f", {p['in_a_row']} values in a row since step {p['since']}" if p["in_a_row"] > 1 else ""
    before = f"; it was {p['usual']:.3g} before" if p.get("usual") is not None else ""
    if p.get("norm") is not None and (p.get("usual") or 0.0) < 0.01:
        return (
            f"The loss is exactly 0{at(step, rank)}{row}{before}, and the gradient norm is {p['norm']:.3g}. Some losses"
            " of reinforcement learning are, and small ones are rounded; otherwise something is broken."
        )
    return (
        f"The loss is exactly 0{at(step, rank)}{row}{before}. With the Trainer's NaN filter this is what a NaN loss"
        " looks like: look at the gradient norm, and set logging_nan_inf_filter=False to see it."
    )


def _zero_zh(p: dict[str, Any], step: int | None, rank: int | None) -> str:
    row = f"，自第 {p['since']} 步起连续 {p['in_a_row']} 次" if p["in_a_row"] > 1 else ""
    before = f"，此前约为 {p['usual']:.3g}" if p.get("usual") is not None else ""
    if p.get("norm") is not None and (p.get("usual") or 0.0) < 0.01:
        return (
            f"{at_zh(step, rank)}损失恰好为 0{row}{before}，而梯度范数为 {p['norm']:.3g}。强化学习的损失可以如此，"
            "很小的损失也会被舍入为 0；否则说明训练有误。"
        )
    return (
        f"{at_zh(step, rank)}损失恰好为 0{row}{before}。Trainer 过滤 NaN 时，NaN 损失就显示为 0："
        "请查看梯度范数，并设置 logging_nan_inf_filter=False。"
    )


def _spike(p: dict[str, Any], step: int | None, rank: int | None) -> str:
    lasts = f" and {p['values']} values later it has not come back" if p["values"] > 40 else ""
    if p["values"] == 1:
        return f"The loss jumped to {p['value']:.4g} at step {p['since']}, from a usual {p['level']:.4g}."
    return f"The loss jumped at step {p['since']}, from a usual {p['level']:.4g} to as much as {p['value']:.4g}{lasts}."


def _spike_zh(p: dict[str, Any], step: int | None, rank: int | None) -> str:
    lasts = f"，{p['values']} 个值之后仍未回落" if p["values"] > 40 else ""
    if p["values"] == 1:
        return f"损失在第 {p['since']} 步跳到 {p['value']:.4g}，平时约为 {p['level']:.4g}。"
    return f"损失自第 {p['since']} 步起突升，最高达 {p['value']:.4g}，平时约为 {p['level']:.4g}{lasts}。"


def _divergence(p: dict[str, Any], step: int | None, rank: int | None) -> str:
    return (
        f"The loss is {p['value']:.4g}{at(step, rank)} and has been rising away from its best level, {p['best']:.4g},"
        f" since step {p['since']}{_above(p['value'], p['best'])}. If it stays there, go back to a checkpoint from"
        " before, with a lower learning rate."
    )


def _divergence_zh(p: dict[str, Any], step: int | None, rank: int | None) -> str:
    return (
        f"{at_zh(step, rank)}损失为 {p['value']:.4g}，自第 {p['since']} 步起偏离最佳水平 {p['best']:.4g}"
        f"{_above_zh(p['value'], p['best'])}。若不回落，请从此前的检查点以更小的学习率继续。"
    )


def _plateau(p: dict[str, Any], step: int | None, rank: int | None) -> str:
    return (
        f"The loss has not come down: {p['first']:.4g} in the beginning, {p['last']:.4g} now, after {p['values']}"
        " values. Check the learning rate, which parameters are trained, and the labels."
    )


def _plateau_zh(p: dict[str, Any], step: int | None, rank: int | None) -> str:
    return (
        f"损失没有下降：开始时为 {p['first']:.4g}，{p['values']} 个值之后为 {p['last']:.4g}。"
        "请检查学习率、可训练参数与标签。"
    )


def _exploding(p: dict[str, Any], step: int | None, rank: int | None) -> str:
    usual = f", {p['value'] / p['usual']:.3g} times the usual {p['usual']:.3g}" if p.get("usual") else ""
    often = f"; {p['often']} of the last 10 were like that" if p["often"] > 1 else ""
    return f"The gradient norm is {p['value']:.4g}{at(step, rank)}{usual}{often}."


def _exploding_zh(p: dict[str, Any], step: int | None, rank: int | None) -> str:
    usual = f"，是平时 {p['usual']:.3g} 的 {p['value'] / p['usual']:.3g} 倍" if p.get("usual") else ""
    often = f"，最近 10 个中有 {p['often']} 个如此" if p["often"] > 1 else ""
    return f"{at_zh(step, rank)}梯度范数为 {p['value']:.4g}{usual}{often}。"


def _vanishing(p: dict[str, Any], step: int | None, rank: int | None) -> str:
    usual = f" (usually {p['usual']:.3g})" if p.get("usual") is not None else ""
    loss = f", while the loss is still {p['loss']:.4g}"
    return (
        f"The gradient norm has been {p['value']:.3g}{usual} since step {p['since']}, {p['in_a_row']} values in a"
        f" row{loss}: nothing is learned any more."
    )


def _vanishing_zh(p: dict[str, Any], step: int | None, rank: int | None) -> str:
    usual = f"（平时为 {p['usual']:.3g}）" if p.get("usual") is not None else ""
    return (
        f"自第 {p['since']} 步起梯度范数为 {p['value']:.3g}{usual}，连续 {p['in_a_row']} 个值，"
        f"而损失仍为 {p['loss']:.4g}：模型已不再学习。"
    )


def _overfitting(p: dict[str, Any], step: int | None, rank: int | None) -> str:
    return (
        f"The eval loss is {p['value']:.4g}{at(step, rank)}, {100 * p['rise']:.0f} % above its best of {p['best']:.4g}"
        f" at step {p['best_step']}, while the training loss fell from {p['train_then']:.4g} to {p['train']:.4g}: the"
        f" model overfits. Of the checkpoints, the one nearest to step {p['best_step']} is the best."
    )


def _overfitting_zh(p: dict[str, Any], step: int | None, rank: int | None) -> str:
    return (
        f"{at_zh(step, rank)}评估损失为 {p['value']:.4g}，比第 {p['best_step']} 步的最佳值 {p['best']:.4g} 高"
        f" {100 * p['rise']:.0f} %，而训练损失从 {p['train_then']:.4g} 降到 {p['train']:.4g}：模型过拟合，"
        f"最接近第 {p['best_step']} 步的检查点最好。"
    )


def _learning_rate(p: dict[str, Any], step: int | None, rank: int | None) -> str:
    if p["what"] == "bad":
        return f"The learning rate is {p['value']}{at(step, rank)}."
    if p["had_one"]:
        return (
            f"The learning rate has been 0 since step {p['since']} and training goes on: nothing changes any more. The"
            " schedule was made for fewer steps."
        )
    return (
        f"The learning rate is 0 and has been since step {p['since']}: no optimizer step has been taken, as when all of"
        " them are skipped because the gradients are not finite."
    )


def _learning_rate_zh(p: dict[str, Any], step: int | None, rank: int | None) -> str:
    if p["what"] == "bad":
        return f"{at_zh(step, rank)}学习率为 {p['value']}。"
    if p["had_one"]:
        return f"自第 {p['since']} 步起学习率为 0 而训练仍在继续，模型不再变化：学习率计划的步数过少。"
    return f"自第 {p['since']} 步起学习率一直为 0：优化器没有执行过更新，例如梯度非有限值而每步都被跳过。"


def _loss_scale(p: dict[str, Any], step: int | None, rank: int | None) -> str:
    return (
        f"The loss scale has fallen from {p['from']:.4g} to {p['value']:.4g}{at(step, rank)}: step after step overflows"
        " in fp16 and is skipped. Use bf16, or a lower learning rate."
    )


def _loss_scale_zh(p: dict[str, Any], step: int | None, rank: int | None) -> str:
    return (
        f"{at_zh(step, rank)}损失缩放因子从 {p['from']:.4g} 降到 {p['value']:.4g}：fp16 不断溢出，更新被跳过。"
        "请改用 bf16 或减小学习率。"
    )


WORDINGS: Final[Wordings] = {
    "zero_loss": (_zero, _zero_zh),
    "loss_spike": (_spike, _spike_zh),
    "divergence": (_divergence, _divergence_zh),
    "plateau": (_plateau, _plateau_zh),
    "exploding_gradient": (_exploding, _exploding_zh),
    "vanishing_gradient": (_vanishing, _vanishing_zh),
    "overfitting": (_overfitting, _overfitting_zh),
    "learning_rate": (_learning_rate, _learning_rate_zh),
    "loss_scale": (_loss_scale, _loss_scale_zh),
}
