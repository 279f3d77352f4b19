"""Versions of the packages that decide what a training does."""

from __future__ import annotations

import os
import sys
from typing import Final

import trainwatch

_PACKAGES: Final = {
    "torch": "torch",
    "torchvision": "torchvision",
    "torchao": "torchao",
    "triton": "triton",
    "transformers": "transformers",
    "accelerate": "accelerate",
    "datasets": "datasets",
    "peft": "peft",
    "trl": "trl",
    "deepspeed": "deepspeed",
    "bitsandbytes": "bitsandbytes",
    "flash-attn": "flash_attn",
    "xformers": "xformers",
    "liger-kernel": "liger_kernel",
    "unsloth": "unsloth",
    "vllm": "vllm",
    "transformer-engine": "transformer_engine",
    "apex": "apex",
    "optimum": "optimum",
    "lightning": "lightning",
    "tokenizers": "tokenizers",
    "safetensors": "safetensors",
    "huggingface-hub": "huggingface_hub",
    "kernels": "kernels",
    "numpy": "numpy",
    "pyarrow": "pyarrow",
}
"""Name on PyPI to name of the module."""


def versions() -> dict[str, str]:
    """Returns the versions of what is installed.

    A module that is loaded says its version itself: it may be another one than is installed. For the others the names
    of the folders that installers leave are enough; importing them would take seconds, and asking
    :mod:`importlib.metadata` reads every file.
    """
    found = _installed()
    for package, module in _PACKAGES.items():
        loaded = sys.modules.get(module)
        # Its dictionary, since some modules import half the world when asked for an attribute they don't have.
        version = vars(loaded).get("__version__") if loaded is not None else None
        if isinstance(version, str):
            found[package] = str(version)
    return {"trainwatch": trainwatch.__version__, **dict(sorted(found.items()))}


def _installed() -> dict[str, str]:
    wanted = {name.replace("-", "_"): name for name in _PACKAGES}
    found: dict[str, str] = {}
    for folder in sys.path:
        try:
            entries = os.listdir(folder or ".")
        except OSError:
            continue
        for entry in entries:
            stem, dot, kind = entry.rpartition(".")
            if not dot or kind not in ("dist-info", "egg-info"):
                continue
            name, _, version = stem.partition("-")
            package = wanted.get(name.lower().replace("-", "_").replace(".", "_"))
            if package and version:
                found.setdefault(package, version.partition("-py")[0])
    return found
