"""Sentences about NaN and Inf."""

from __future__ import annotations

from typing import Any, Final

from trainwatch.rules.wording.words import Wordings, at, at_zh, ordinal, resume, resume_zh


def _consequence(p: dict[str, Any]) -> str:
    if p["action"] == "recorded":
        # Nothing is known of what a bad loss did; a bad gradient that is not held back reaches the weights.
        used = p.get("parameter_count")
        return "the optimizer used it, so the weights are ruined" if used else "it was only recorded"
    skipped = "these steps were skipped" if p.get("in_a_row", 1) > 1 else "the step was skipped"
    return f"{skipped} and the weights were not touched"


def _when(p: dict[str, Any], step: int | None, rank: int | None) -> str:
    if p.get("in_a_row", 1) > 1 and step is not None:
        return f" in steps {step - p['in_a_row'] + 1} to {step}" + ("" if rank is None else f" on rank {rank}")
    often = f" (the {ordinal(p['recent'])} in 200 steps)" if p.get("recent", 1) > 1 else ""
    return at(step, rank) + often


def _logged(p: dict[str, Any], what: str, step: int | None, rank: int | None) -> str:
    lasts = (
        f" and has been since step {p['since']}: {p['in_a_row']} logged values in a row" if p["in_a_row"] > 1 else ""
    )
    return f"{what}{at(step, rank)} in the log{lasts}."


def _logged_zh(p: dict[str, Any], what: str, step: int | None, rank: int | None) -> str:
    lasts = f"，自第 {p['since']} 步起已连续 {p['in_a_row']} 次" if p["in_a_row"] > 1 else ""
    return f"{at_zh(step, rank)}日志中的{what}为 {p['value']}{lasts}。"


def _nonfinite(p: dict[str, Any], what: str, step: int | None, rank: int | None) -> str:
    if p.get("logged"):
        return _logged(p, what, step, rank)
    text = f"{what}{_when(p, step, rank)}; {_consequence(p)}.{resume(p)}"
    return f"Halted: {text[0].lower()}{text[1:]}" if p["action"] == "halt" else text


def _culprit(p: dict[str, Any]) -> str:
    names = p.get("parameters") or []
    if not names:
        return ""
    more = p.get("parameter_count", len(names)) - 1
    return f" in {names[0]}" + (f" and {more} more" if more > 0 else "")


def _loss(p: dict[str, Any], step: int | None, rank: int | None) -> str:
    return _nonfinite(p, f"The loss is {p['value']}", step, rank)


def loss_zh(p: dict[str, Any], step: int | None, rank: int | None) -> str:
    if p.get("logged"):
        return _logged_zh(p, "损失", step, rank)
    halted = "训练已停止：" if p["action"] == "halt" else ""
    result = "仅作记录" if p["action"] == "recorded" else "该步已跳过，权重未被更新"
    return f"{halted}{at_zh(step, rank)}损失为 {p['value']}，{result}。{resume_zh(p)}"


def _gradient(p: dict[str, Any], step: int | None, rank: int | None) -> str:
    return _nonfinite(p, f"The gradient is {p['value']}{_culprit(p)}", step, rank)


def _gradient_zh(p: dict[str, Any], step: int | None, rank: int | None) -> str:
    if p.get("logged"):
        return _logged_zh(p, "梯度范数", step, rank)
    halted = "训练已停止：" if p["action"] == "halt" else ""
    result = "仅作记录" if p["action"] == "recorded" else "该步已跳过，权重未被更新"
    return f"{halted}{at_zh(step, rank)}梯度为 {p['value']}，{result}。{resume_zh(p)}"


def _eval(p: dict[str, Any], step: int | None, rank: int | None) -> str:
    since = f" since step {p['since']}" if p.get("since") is not None else ""
    who = "" if rank is None else f" on rank {rank}"
    hidden = f"; the Trainer reports {p['reported']}" if p.get("reported") not in (None, "nan") else ""
    if not p["batches"]:
        return f"The eval loss is {p['value']}{since}{who}."
    return f"The eval loss is {p['value']} in {p['nonfinite']} of {p['batches']} batches{since}{who}{hidden}."


def _eval_zh(p: dict[str, Any], step: int | None, rank: int | None) -> str:
    hidden = f"，而 Trainer 报告的是 {p['reported']}" if p.get("reported") not in (None, "nan") else ""
    return f"自第 {p['since']} 步起，{p['batches']} 个评估批次中有 {p['nonfinite']} 个损失为 {p['value']}{hidden}。"


WORDINGS: Final[Wordings] = {
    "nonfinite_loss": (_loss, loss_zh),
    "nonfinite_gradient": (_gradient, _gradient_zh),
    "nonfinite_eval_loss": (_eval, _eval_zh),
}
