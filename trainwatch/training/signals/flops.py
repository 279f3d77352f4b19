"""Model FLOPs utilisation: what of the device's arithmetic the training uses (PaLM, appendix B).

A token costs 2 operations a parameter forward and 4 backward (2 of them only for parameters that are trained), and the
attention 4 × layers × width × length more forward, twice that backward. Recomputation under gradient checkpointing is
not counted, since the model does not need it.
"""

from __future__ import annotations

import re
from typing import Any, Final

from trainwatch.events import Values

_PEAKS: Final = (
    # Dense bf16 or fp16 operations a second, from the makers' data sheets. The longer name first.
    ("B200", 2.25e15),
    ("GH200", 989e12),
    ("H200", 989e12),
    ("H100 PCIe", 756e12),
    ("H100 NVL", 835e12),
    ("H100", 989e12),
    ("H800", 989e12),
    ("H20", 148e12),
    ("A100", 312e12),
    ("A800", 312e12),
    ("A40", 150e12),
    ("A30", 165e12),
    ("A10G", 70e12),
    ("A10", 125e12),
    ("L40S", 362e12),
    ("L40", 181e12),
    ("L4", 121e12),
    ("V100", 125e12),
    ("T4", 65e12),
    ("RTX 4090", 165e12),
    ("RTX 3090", 71e12),
    ("MI300X", 1307e12),
    ("MI250X", 191.5e12),  # one of its two dies, which torch counts as devices
    ("MI210", 181e12),
)
_NAMED: Final = tuple((re.compile(rf"\b{part}\b", re.IGNORECASE), peak) for part, peak in _PEAKS)
_OTHERS: Final = re.compile(r"\b(MIG|Laptop|Mobile|Max Q|Ti|D|GRID|\d+[ABCQ])\b", re.IGNORECASE)
"""In the names of what is another device than its name says, or a part of one: ``A10-8Q`` is a slice of an A10."""
_HALVES: Final = ("torch.float16", "torch.bfloat16")


class Flops:
    """Knows what a model's tokens cost and what its device can do.

    Args:
        model: The model, unwrapped.
        half: It computes in half precision (its weights are, or autocast is on); the peaks are for that.
        replicas: It is copied to several devices (``DataParallel``), which its own parameters do not tell; nothing is
            said then.
    """

    def __init__(self, model: Any, *, half: bool, replicas: bool = False) -> None:
        self._per_token, self._per_token_and_length = cost_of(model)
        first = next(iter(model.parameters()), None)
        on_gpu = first is not None and first.device.type == "cuda"
        half = half or (first is not None and str(first.dtype) in _HALVES)
        self._peak = 0.0
        if on_gpu and half and not replicas:
            import torch

            devices = {parameter.device for parameter in model.parameters() if parameter.device.type == "cuda"}
            self._peak = sum(peak_of(torch.cuda.get_device_name(device)) for device in devices)

    def add(self, values: Values) -> None:
        """Adds the utilisation to a step's values, where all that it needs is known.

        Args:
            values: The step's values, its times and tokens among them.
        """
        if not self._peak or not self._per_token:
            return
        tokens, seconds = values.get("train/padded_tokens"), values.get("train/step_seconds")
        if tokens and seconds:
            whole = seconds + values.get("train/data_seconds", 0.0)
            cost = self._per_token + self._per_token_and_length * values.get("train/batch_length", 0.0)
            values["train/mfu"] = tokens * cost / whole / self._peak


def peak_of(name: str) -> float:
    """Returns the operations a second of a device, in half precision, dense; 0 when it is not known.

    Args:
        name: The device's name as its driver gives it.
    """
    words = name.replace("-", " ")
    if _OTHERS.search(words):
        return 0.0
    return next((peak for part, peak in _NAMED if part.search(words)), 0.0)


def cost_of(model: Any) -> tuple[float, float]:
    """Returns what a token costs in training, in operations: by itself, and for each token of its sequence.

    Args:
        model: The model. Zeros for one whose tokens do not all go through all parameters (experts), or that is no
            transformer over tokens.
    """
    config = getattr(model, "config", None)
    experts = any(getattr(config, name, 0) for name in ("num_experts", "num_local_experts", "n_routed_experts"))
    layers, width = getattr(config, "num_hidden_layers", None), getattr(config, "hidden_size", None)
    if experts or not layers or not width or getattr(config, "is_encoder_decoder", False):
        return 0.0, 0.0
    # Looking up an embedding costs nothing; the head multiplies, also where it is the same matrix.
    inputs = model.get_input_embeddings() if hasattr(model, "get_input_embeddings") else None
    outputs = model.get_output_embeddings() if hasattr(model, "get_output_embeddings") else None
    looked_up = {id(parameter) for parameter in inputs.parameters()} if inputs is not None else set()
    if outputs is not None:
        looked_up -= {id(parameter) for parameter in outputs.parameters()}
    trained = frozen = 0
    for name, parameter in model.named_parameters():
        if id(parameter) in looked_up or "position" in name or name.endswith("wpe.weight"):
            continue
        if parameter.requires_grad:
            trained += parameter.numel()
        else:
            frozen += parameter.numel()
    return 6.0 * trained + 4.0 * frozen, 12.0 * layers * width
