"""The model: class, sizes, precision, adapters, and where its layers lie."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trainwatch.training.redaction import redact


def describe_model(model: Any) -> dict[str, Any]:
    """Describes a model.

    Args:
        model: A ``torch.nn.Module``.

    Returns:
        ``class``, ``parameters`` and ``trainable_parameters`` (of the whole model, also where this rank holds a part),
        ``dtypes``, ``devices`` and, where there are such: ``config``, ``device_map``, ``adapters``, ``attention``,
        ``gradient_checkpointing``, ``compiled``, ``quantization``.
    """
    inner = getattr(model, "_orig_mod", model)
    parameters = list(inner.parameters())
    description: dict[str, Any] = {
        "class": type(inner).__name__,
        "parameters": sum(map(_size, parameters)),
        "trainable_parameters": sum(_size(parameter) for parameter in parameters if parameter.requires_grad),
        "dtypes": sorted({str(parameter.dtype).removeprefix("torch.") for parameter in parameters}),
        "devices": sorted({str(parameter.device) for parameter in parameters}),
    }
    if inner is not model:
        description["compiled"] = True
    config = getattr(inner, "config", None)
    if config is not None and hasattr(config, "to_dict"):
        description["config"] = redact(config.to_dict())
    attention = getattr(config, "_attn_implementation", None)
    if isinstance(attention, str):
        description["attention"] = attention
    # What transformers' own property asks; its name changed between versions, and the old one warns.
    checkpointing = [
        bool(switch) for module in inner.modules() if (switch := _own(module, "gradient_checkpointing")) is not None
    ]
    if checkpointing:
        description["gradient_checkpointing"] = any(checkpointing)
    method = getattr(inner, "quantization_method", None)
    if method is not None:
        description["quantization"] = str(getattr(method, "value", method))
    device_map = getattr(inner, "hf_device_map", None)
    if device_map:
        description["device_map"] = redact(device_map)
    adapters = getattr(inner, "peft_config", None)
    if isinstance(adapters, Mapping):
        description["adapters"] = {str(name): redact(_adapter(adapter)) for name, adapter in adapters.items()}
    return description


def _own(module: Any, name: str) -> Any:
    """An attribute of the module itself, not of one that it wraps."""
    return vars(module).get(name)


def _size(parameter: Any) -> int:
    """Number of values of a parameter, of all ranks."""
    whole = getattr(parameter, "ds_numel", None)  # under ZeRO-3 a rank's own part is empty between uses
    if isinstance(whole, int):
        return whole
    size = int(parameter.numel())
    if type(parameter).__name__ == "Params4bit":
        return 2 * size * int(parameter.element_size())  # two values in each byte of what it is stored as
    return size


def _adapter(adapter: Any) -> dict[str, Any]:
    known = adapter.to_dict() if hasattr(adapter, "to_dict") else vars(adapter)
    return {name: value for name, value in known.items() if value not in (None, {}, [], False, "")}
