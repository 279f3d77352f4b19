"""What is said of a halted run: the rule's own sentence, and where to go on from."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from trainwatch.rules.wording import sentence
from trainwatch.rules.wording.words import resume, resume_zh

COMMAND: Final = "command"
"""The reason of a halt that a person ordered."""

FOUND_AT: Final = "found_at"
"""In the evidence of a halt that a rule ordered: the step that its finding names. Guards, which halt in the training
process itself at that very step, do without."""

_SPOILT_SINCE: Final = {"divergence": "since", "zero_loss": "since", "loss_spike": "since", "overfitting": "best_step"}
"""Rules that see what has already happened to the weights, and where their evidence has the last good step."""


def spoilt_since(rule: str, parameters: Mapping[str, Any]) -> int | None:
    """Returns the step behind which the weights of a halted run are not what one wants to go on from.

    Args:
        rule: The reason of the run's end.
        parameters: Its evidence.

    Returns:
        None where the state at the halt is good.
    """
    step = parameters.get(_SPOILT_SINCE.get(rule, ""))
    return step if isinstance(step, int) else None


def halt_sentence(
    rule: str, parameters: Mapping[str, Any], *, step: int | None, rank: int | None = None, language: str = "en"
) -> str:
    """Says in one sentence, or two, why a run was halted and what to resume from.

    Args:
        rule: The reason of the run's end.
        parameters: Its evidence, with ``checkpoint`` where one was saved.
        step: The step after which the run stopped.
        rank: The rank to name, where the run has several and the evidence names none.
        language: ``"en"`` or ``"zh"``.
    """
    if FOUND_AT not in parameters:
        return sentence(rule, parameters, step=step, rank=rank, language=language)
    found = {name: value for name, value in parameters.items() if name != "checkpoint"}
    text = sentence(rule, found, step=parameters[FOUND_AT], rank=parameters.get("culprit"), language=language)
    spoilt = spoilt_since(rule, parameters)
    after = _kept(parameters, spoilt) if spoilt is not None else (resume(dict(parameters)), resume_zh(dict(parameters)))
    if language == "zh":
        where = "训练已停止" if step is None else f"训练已在第 {step} 步停止"
        return f"{where}：{text}{after[1]}"
    where = "Halted" if step is None else f"Halted at step {step}"
    # A sentence goes on in lower case, but a name or an abbreviation stays as it is: "GPU", "TrainWatch".
    lower = text[:1].isupper() and (text[1:].split(" ")[0].islower() or text[1:2] == " ")
    text = text[:1].lower() + text[1:] if lower else text
    return f"{where}: {text}{after[0]}"


def _kept(parameters: Mapping[str, Any], since: int) -> tuple[str, str]:
    """Says what the checkpoint of a halt is good for when the weights have suffered, in English and Chinese."""
    path = parameters.get("checkpoint")
    if not path:
        return f" Resume from a checkpoint up to step {since}.", f"请从第 {since} 步或更早的检查点继续训练。"
    return (
        f" {path} keeps the state as it is; to train on, resume from a checkpoint up to step {since}.",
        f"当前状态保存在 {path}；如要继续训练，请使用第 {since} 步或更早的检查点。",
    )
