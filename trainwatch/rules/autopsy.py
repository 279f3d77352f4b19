"""What an autopsy found, in one sentence."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from trainwatch.events import Autopsied, Cause

_PREFIXES: Final = ("_orig_mod.", "module.", "base_model.model.")
"""What wrappers (torch.compile, DDP, peft) put before a module's name."""
_LONG: Final = 60
_KEPT: Final = 3


def autopsy_sentence(event: Autopsied) -> str:
    """Says what an autopsy found.

    Never raises: evidence written by another version may lack a field, and then the sentence says less.

    Args:
        event: The autopsy.
    """
    wording = _WORDINGS.get(event.cause)
    if wording is None:
        return f"{event.cause.replace('_', ' ').capitalize()}."
    try:
        return wording[0](event, event.parameters)
    except (KeyError, TypeError, ValueError):
        return wording[1]


def short_name(name: str) -> str:
    """Shortens a module's or parameter's name for people: without wrappers' prefixes, a long one without its middle."""
    stripped = True
    while stripped:
        stripped = False
        for prefix in _PREFIXES:
            if name.startswith(prefix):
                name, stripped = name.removeprefix(prefix), True
    parts = name.split(".")
    if len(name) > _LONG and len(parts) > _KEPT + 1:
        return f"{parts[0]}…{'.'.join(parts[-_KEPT:])}"
    return name


def _module(event: Autopsied) -> str:
    name = short_name(event.module)
    kind = event.module_kind
    if not name:
        return kind or "the model itself"
    return f"{name} ({kind})" if kind else name


def _turn(p: dict[str, Any]) -> str:
    return f", in call {p['call']} of {p['calls']}" if p.get("calls", 1) > 1 else ""


def _values(p: dict[str, Any]) -> str:
    size, counts = int(p["size"]), [(int(p[key]), name) for key, name in (("nan", "NaN"), ("inf", "Inf")) if p[key]]
    if size == 1:
        return f"it is {counts[0][1]}"
    (first, name), *rest = counts
    if first == size:
        return f"all {size:,} values are {name}"
    text = f"{first:,} of {size:,} values {'is' if first == 1 else 'are'} {name}"
    return text + "".join(f" and {count:,} {'is' if count == 1 else 'are'} {name}" for count, name in rest)


def _number(value: float) -> str:
    return f"{value:,.0f}" if 100 <= abs(value) < 1e7 else f"{value:.3g}"


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:] if text.startswith("the ") else text


def _no_supervised_tokens(event: Autopsied, p: dict[str, Any]) -> str:
    labels, supervised = int(p["labels"]), int(p.get("supervised", 0))
    if not supervised:
        which = "The only label of this batch is" if labels == 1 else f"All {labels:,} labels of this batch are"
        return f"{which} -100, so the mean over zero tokens is NaN."
    which = "The only label" if supervised == 1 else f"The only {supervised:,} labels"
    first = "is its sample's first" if supervised == 1 else "are their samples' first"
    return (
        f"{which} of this batch that {'is' if supervised == 1 else 'are'} not -100 {first}, which nothing predicts:"
        " the mean over zero tokens is NaN."
    )


def _label_out_of_range(event: Autopsied, p: dict[str, Any]) -> str:
    if "vocabulary" in p:
        return f"Label {p['label']} lies outside of the vocabulary of {p['vocabulary']}."
    return f"Label {p['label']} lies outside of the {p['classes']} classes, 0 to {int(p['classes']) - 1}."


def _input_out_of_range(event: Autopsied, p: dict[str, Any]) -> str:
    if event.module:
        return f"Index {p['id']} lies outside of the {p['size']} entries of {_module(event)}."
    return f"Token id {p['id']} in {p['input']} lies outside of the {p['size']} entries of the model's embedding."


def _nonfinite_input(event: Autopsied, p: dict[str, Any]) -> str:
    return f"The batch itself is not finite: in {p['input']}, {_values(p)}."


def _nonfinite_weights(event: Autopsied, p: dict[str, Any]) -> str:
    return f"The weights are not finite: in {short_name(p['parameter'])}, {_values(p)}."


def _half_overflow(event: Autopsied, p: dict[str, Any]) -> str:
    limit = _number(p["limit"])
    if p.get("backward"):
        scale = f" of {_number(event.loss_scale)}" if event.loss_scale else ""
        return (
            f"With the loss scale{scale} a gradient in {_module(event)} overflows {p['dtype']}, which ends at {limit}"
            f"{_turn(p)}: {_values(p)}; without it the gradient is finite."
        )
    who = _capital(_module(event))
    if p["value"] > p["limit"]:
        reached = _number(p["value"])
        return f"{who} overflows {p['dtype']}{_turn(p)}: its output reaches {reached}, and the type ends at {limit}."
    way = f"{p['dtype']} on the way to its output"
    return f"{who} overflows {way}{_turn(p)}: {_values(p)}, and in float32 it is finite."


def _module_forward(event: Autopsied, p: dict[str, Any]) -> str:
    if not event.module:
        if "into" in p:
            return (
                f"{_capital(_module(event))} makes something that is not finite between its modules: of what goes into"
                f" {short_name(p['into'])}, {_values(p)}."
            )
        output = f" in its {p['output']}" if p.get("output") else ""
        return (
            f"All modules are finite, but {_module(event)} makes of them something that is not:{output} {_values(p)}."
        )
    return (
        f"{_module(event)} is the first module whose output is not finite{_turn(p)}: {_values(p)}; its inputs were"
        " finite."
    )


def _loss_function(event: Autopsied, p: dict[str, Any]) -> str:
    if p.get("backward"):
        return (
            "The forward pass is finite; the first gradient that is not comes from the loss function, out of"
            f" {p['operation']}: {_values(p)}."
        )
    whose = "The model's own loss function" if p.get("own") else "The loss function"
    return f"{whose} makes {p['value']} of finite outputs."


def _module_backward(event: Autopsied, p: dict[str, Any]) -> str:
    return (
        f"The forward pass is finite; the first gradient that is not comes from {_module(event)}, out of"
        f" {p['operation']}{_turn(p)}: {_values(p)}."
    )


def _not_reproduced(event: Autopsied, p: dict[str, Any]) -> str:
    times = int(p.get("attempts", 1))
    again = "once more" if times == 1 else f"{times} times more"
    why = "; the model draws random numbers (dropout), so that each run differs" if p.get("random") else ""
    return f"The batch was finite when it was run {again}{why}."


def _not_examined(event: Autopsied, p: dict[str, Any]) -> str:
    if not event.note:
        raise KeyError("note")
    return f"The step could not be examined: {event.note}."


_Wording = Callable[[Autopsied, dict[str, Any]], str]
_WORDINGS: Final[dict[Cause, tuple[_Wording, str]]] = {
    "no_supervised_tokens": (
        _no_supervised_tokens,
        "No label of this batch is supervised, so the mean over zero tokens is NaN.",
    ),
    "label_out_of_range": (_label_out_of_range, "A label of this batch is no class of the model."),
    "input_out_of_range": (_input_out_of_range, "An input of this batch lies outside of the model's embedding."),
    "nonfinite_input": (_nonfinite_input, "The batch itself is not finite."),
    "nonfinite_weights": (_nonfinite_weights, "The weights are not finite."),
    "half_overflow": (_half_overflow, "A half-precision value overflowed."),
    "module_forward": (_module_forward, "A module's output is not finite although its inputs were."),
    "loss_function": (_loss_function, "The loss function makes something that is not finite of finite outputs."),
    "module_backward": (_module_backward, "The forward pass is finite; a gradient is not."),
    "not_reproduced": (_not_reproduced, "The batch was finite when it was run once more."),
    "not_examined": (_not_examined, "The step could not be examined."),
}
"""The sentence of each cause, and what is left of it without evidence."""
