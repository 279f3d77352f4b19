"""The setups of the matrix: how people really train. Adding one is a function in ``builders.py`` and a line here."""

from __future__ import annotations

from tests.matrix import builders
from tests.matrix.setup import Setup

NOT_THE_MODELS = (
    "not available: what is trained on is not the loss in the model's output; attach with trainwatch.watch(trainer)"
)
AROUND_LOSS = {"loss/callback": NOT_THE_MODELS, "eval/callback": NOT_THE_MODELS}
OWN_LOSS = {**AROUND_LOSS, "bad loss/callback": NOT_THE_MODELS}
NO_LABELS = {
    **OWN_LOSS,
    "supervised/callback": "not available: the labels are not among the model's inputs",
    "autopsy/callback/nan-gradient": (
        "running the batch once more: there is no loss to begin a backward pass at; the loss is made outside of the "
        "model and could not be computed again: use trainwatch.watch(trainer)"
    ),
}
TAPPED = "attach with trainwatch.watch(trainer)"
UNSEEN = f"not available under torch.compile: the passes of a compiled model can't be seen; {TAPPED}"
COMPILED = {
    "loss/callback": UNSEEN,
    "bad loss/callback": UNSEEN,
    "layers/callback": "not available under torch.compile: the gradients can't be seen before clipping",
    "counters/callback": "not available under torch.compile: the model's inputs can't be seen",
    "autopsy/callback": "its batch was not kept",
}
PARTS = "not available under FSDP: each rank holds a part of each layer"
SHARDED = {
    "local": PARTS,
    "layers": PARTS,
    "culprit": PARTS,
    "autopsy": "not available under FSDP2: each rank holds a part of each parameter",
}
TAKEN = "not available under DeepSpeed: each rank holds a part of each layer"
DEEPSPEED = {
    "local": TAKEN,
    "layers": TAKEN,
    "culprit": TAKEN,
    "finding/callback/nan-gradient": "not available under DeepSpeed: it takes each gradient away as it comes; "
    + TAPPED,
    "autopsy/callback/nan-gradient": "not available under DeepSpeed: it takes each gradient away as it comes; "
    + TAPPED,
    "protection": "not available under DeepSpeed: its engine steps before a callback is asked, and skips by itself",
}
ZERO_3 = {**DEEPSPEED, "autopsy": "not available under DeepSpeed ZeRO-3: each rank holds a part of each parameter"}

LOSSES = (
    Setup("plain", "Trainer", builders.plain),
    Setup("accumulation", "gradient accumulation (4)", builders.plain, accumulation=4),
    Setup("own-loss", "own `compute_loss`", builders.own_loss, missing=OWN_LOSS),
    Setup("scaled-loss", "own `compute_loss` around the model's loss", builders.scaled_loss, missing=AROUND_LOSS),
    Setup("loss-function", "`compute_loss_func`", builders.loss_function, accumulation=2, missing=NO_LABELS),
    Setup("smoothing", "label smoothing", builders.smoothing, missing=NO_LABELS),
    Setup("resume", "resumed from a checkpoint", builders.saving, resume=True),
)
MODELS = (
    Setup("lora", "PEFT LoRA", builders.lora, needs="peft"),
    Setup("frozen", "frozen layers", builders.frozen),
    Setup("tied", "tied embeddings", builders.tied),
    Setup("bf16", "bf16 autocast", builders.half),
    Setup("checkpointing", "gradient checkpointing", builders.checkpointing(False)),
    Setup("checkpointing-reentrant", "gradient checkpointing, reentrant", builders.checkpointing(True)),
    Setup("stream", "iterable dataset", builders.stream),
    Setup("grouped", "`group_by_length`", builders.grouped, ordered=False),
)
TRL = (
    Setup("sft", "TRL SFT", builders.sft, missing=OWN_LOSS, needs="trl"),
    Setup("dpo", "TRL DPO", builders.dpo, missing=OWN_LOSS, needs="trl"),
    Setup("dpo-lora", "TRL DPO with LoRA", builders.dpo_lora, missing=OWN_LOSS, needs="trl"),
    Setup(
        "grpo",
        "TRL GRPO",
        builders.grpo,
        rows=2,
        missing=OWN_LOSS,
        skip={"nan-eval": "a model that is NaN in evaluation can't generate: the training ends with an exception"},
        needs="trl",
    ),
)
RANKS = (Setup("ddp2", "DDP, 2 ranks", builders.plain, ranks=2),)
SLOW = (
    Setup("ddp4", "DDP, 4 ranks", builders.plain, ranks=4),
    Setup("ddp2-accumulation", "DDP, 2 ranks, accumulation (4)", builders.plain, ranks=2, accumulation=4),
    Setup("ddp2-checkpointing", "DDP, 2 ranks, gradient checkpointing", builders.checkpointing(False), ranks=2),
    Setup("fsdp2", "FSDP2, 2 ranks", builders.sharded, ranks=2, missing=SHARDED),
    Setup("zero2", "DeepSpeed ZeRO-2, 2 ranks", builders.deepspeed(2), ranks=2, missing=DEEPSPEED, needs="deepspeed"),
    Setup("zero3", "DeepSpeed ZeRO-3, 2 ranks", builders.deepspeed(3), ranks=2, missing=ZERO_3, needs="deepspeed"),
    Setup("compile", "`torch.compile`", builders.compiled, alone=True, missing=COMPILED),
)
"""Tried by ``make test-matrix`` only."""
SETUPS: tuple[Setup, ...] = (*LOSSES, *MODELS, *TRL, *RANKS, *SLOW)


def find(name: str) -> Setup:
    """Returns the setup of that name."""
    return next(setup for setup in SETUPS if setup.name == name)
