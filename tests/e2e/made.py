"""Events of a training that never was, with everything in it that a run's page can show."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from typing import Any

from trainwatch import events
from trainwatch.events import Event, TensorSummary

GIB = 2**30


def layer_names(count: int) -> list[str]:
    """Names as a decoder has them: the embeddings, the blocks, the last norm."""
    return ["model.embed_tokens", *(f"model.layers.{n}" for n in range(count - 2)), "model.norm"]


def started(
    time: float,
    rank: int = 0,
    *,
    ranks: int = 1,
    first_step: int = 0,
    environment: dict[str, Any] | None = None,
    **changes: Any,
) -> events.RunStarted:
    """A rank begins; its environment differs from the others' only where the test says so."""
    packages = {"torch": "2.9.0", "transformers": "5.23.0", "accelerate": "1.12.0"}
    fields: dict[str, Any] = {
        "time": time,
        "name": "llama-sft-lora",
        "world_size": ranks,
        "local_rank": rank,
        "pid": 4000 + rank,
        "first_step": first_step,
        "max_steps": 2000,
        "policy": "protect",
        "loss_source": "loss function",
        "output_dir": "/data/out/llama-sft-lora",
        "arguments": {"learning_rate": 2e-4, "bf16": True, "per_device_train_batch_size": 4, "max_grad_norm": 1.0},
        "environment": {"python": "3.12.4", "packages": packages, "device": f"cuda:{rank}"} | (environment or {}),
        "model": {"class": "LlamaForCausalLM", "parameters": 1_235_814_400, "trainable_parameters": 11_272_192},
        "dataset": {},
    }
    return events.RunStarted(**fields | changes)


def steps(
    time: float, first: int, last: int, rank: int = 0, *, base: float = 2.0, seed: int = 7
) -> Iterator[events.StepEnded]:
    """Steps with everything that is measured in them on a GPU."""
    noise = random.Random(f"{seed}/{rank}")
    retries = 0
    for step in range(first, last + 1):
        padded = noise.choice((2048, 4096, 4096, 8192))
        tokens = int(padded * noise.uniform(0.5, 1.0))
        data = 0.02 + (0.35 if step % 97 == 0 else 0.0) + 0.01 * noise.random()
        compute = 0.22 + padded / 40_000
        retries += step % 151 == 0
        allocated = 14 * GIB + padded * 600_000
        yield events.StepEnded(
            time=time + 0.5 * (step - first + 1),
            step=step,
            values={
                "train/loss": base * math.exp(-step / 900) + 0.05 * noise.random(),
                "train/grad_norm": 0.8 + 0.3 * noise.random(),
                "train/grad_norm_local": 0.9 + 0.4 * noise.random(),
                "train/learning_rate": 2e-4 * (1 - step / 2000),
                "train/step_seconds": compute + 0.04,
                "train/data_seconds": data,
                "train/compute_seconds": compute,
                "train/optimizer_seconds": 0.03,
                "train/padded_tokens": padded,
                "train/tokens": tokens,
                "train/supervised_tokens": tokens // 2,
                "train/padding_share": 1 - tokens / padded,
                "train/tokens_per_second": tokens / (compute + data + 0.04),
                "train/mfu": 0.38 + 0.04 * noise.random(),
            },
            devices={
                f"cuda:{rank}": {
                    "memory/peak": allocated + 5.5 * GIB,
                    "memory/allocated": allocated,
                    "memory/reserved": 23 * GIB,
                    "memory/peak_reserved": 24 * GIB,
                    "memory/inactive_split": (0.4 + 0.002 * step) * GIB,
                    "memory/alloc_retries": retries,
                    "memory/ooms": 0,
                    "memory/process_used": 25.1 * GIB,
                    "memory/outside": 1.1 * GIB,
                    "memory/others_used": 3.5 * GIB,
                    "memory/device_used": 28.7 * GIB,
                    "memory/capacity": 80 * GIB,
                },
                "cpu": {"memory/resident": 5 * GIB, "memory/tree_resident": 11 * GIB},
            },
        )


def layers(
    time: float,
    first: int,
    last: int,
    rank: int = 0,
    *,
    names: list[str],
    every: int = 10,
    bad: dict[int, tuple[int, float]] | None = None,
) -> Iterator[events.LayersMeasured]:
    """Measurements of layers; the second is frozen, and `bad` is step to (first bad layer, value)."""
    noise = random.Random(rank)
    bad = bad or {}
    for step in sorted({*range(first, last + 1, every), *bad}):
        norms: list[float | None] = []
        for place in range(len(names)):
            size = 0.5 * math.exp(-3.0 * place / len(names)) * (1 + 0.3 * noise.random()) * (1.5 if rank == 1 else 1.0)
            norms.append(None if place == 1 else size * (1 + 4 * math.exp(-step / 80)))
        if step in bad:
            place, value = bad[step]
            norms[: place + 1] = [None if n == 1 else value for n in range(place + 1)]
        closely = step % (5 * every) == first % (5 * every)
        yield events.LayersMeasured(
            time=time + 0.5 * (step - first + 1),
            step=step,
            layers=names,
            norms=norms,
            zeros=[None if n is None else 0.02 * noise.random() for n in norms] if closely else [],
            updates=[None if n is None else 1e-3 * (1 + noise.random()) for n in norms] if closely else [],
        )


def phases(time: float, rank: int = 0) -> list[Event]:
    """Loading, training with two evaluations and a save between; 120 s in all."""
    device = f"cuda:{rank}"

    def entered(at: float, phase: events.Phase, left: events.Phase | None, seconds: float, gib: float) -> Event:
        peak = {device: {"memory/peak": gib * GIB, "memory/peak_reserved": (gib + 1) * GIB}}
        return events.PhaseEntered(
            time=time + at, phase=phase, step=int(at), left=left, peak=peak if left else {}, seconds=seconds
        )

    return [
        entered(0, "load", None, 0, 0),
        entered(10, "train", "load", 10, 3.1),
        entered(50, "eval", "train", 40, 21.4),
        entered(58, "train", "eval", 8, 30.6),
        entered(100, "eval", "train", 42, 21.9),
        entered(107, "save", "eval", 7, 30.2),
        entered(110, "train", "save", 3, 24.0),
    ]


def signals(time: float, rank: int = 0) -> events.SignalsFound:
    """What can be read in this setup, and what cannot."""
    return events.SignalsFound(
        time=time,
        step=3,
        sources={
            "loss": "what compute_loss returned",
            "gradients": "each parameter, at the end of backward",
            "layers": "26 layers, every 10 steps and at a bad one",
            "memory": "CUDA caching allocator and NVML",
        },
        missing={"samples": "not available with an IterableDataset: its samples have no indices"} if rank == 0 else {},
    )


def autopsy(time: float, step: int, **changes: Any) -> events.Autopsied:
    """A batch whose labels are all -100."""
    fields: dict[str, Any] = {
        "time": time,
        "step": step,
        "cause": "no_supervised_tokens",
        "parameters": {"labels": 512},
        "micro_batch": 2,
        "samples": [18_204, 911, 52_007, 33],
        "reproduced": True,
        "inputs": [
            TensorSummary(name="input_ids", shape=[4, 128], dtype="int64", device="cuda:0", low=0, high=128_255),
            TensorSummary(name="attention_mask", shape=[4, 128], dtype="int64", device="cuda:0", low=0, high=1),
            TensorSummary(name="labels", shape=[4, 128], dtype="int64", device="cuda:0", low=-100, high=-100),
        ],
        "tokens": 371,
        "padded_tokens": 512,
        "supervised_tokens": 0,
        "loss": math.nan,
        "loss_scale": None,
        "learning_rate": 1.83e-4,
        "seconds": 0.41,
    }
    return events.Autopsied(**fields | changes)


def overflow(time: float, step: int) -> events.Autopsied:
    """An activation that does not fit into fp16."""
    return autopsy(
        time,
        step,
        cause="half_overflow",
        parameters={"dtype": "float16", "limit": 65504.0, "value": 81_250.0, "nan": 3, "inf": 217, "size": 1_048_576},
        micro_batch=0,
        module="model.layers.11.mlp.down_proj",
        module_kind="Linear",
        outputs=[
            TensorSummary(
                name="model.layers.11.mlp.gate_proj",
                shape=[4, 128, 5632],
                dtype="float16",
                device="cuda:0",
                low=-412.5,
                high=9_340.0,
            ),
            TensorSummary(
                name="model.layers.11.mlp.act_fn",
                shape=[4, 128, 5632],
                dtype="float16",
                device="cuda:0",
                low=-0.278,
                high=61_824.0,
            ),
            TensorSummary(
                name="model.layers.11.mlp.down_proj",
                shape=[4, 128, 2048],
                dtype="float16",
                device="cuda:0",
                low=-64_992.0,
                high=65_504.0,
                nan=3,
                inf=217,
            ),
        ],
        weights=[
            TensorSummary(
                name="model.layers.11.mlp.up_proj.weight",
                shape=[5632, 2048],
                dtype="float16",
                device="cuda:0",
                low=-3.94,
                high=211.0,
            ),
        ],
        supervised_tokens=402,
        tokens=498,
        loss_scale=65536.0,
        note="The hidden states of the first four layers were not looked at: the time allowed was over.",
    )


def out_of_memory(time: float, step: int, rank: int = 0) -> events.OutOfMemorySeen:
    """CUDA had too little, with its allocator's summary."""
    line = "|===========================================================================|\n"
    title = "|                  PyTorch CUDA memory summary, device ID 0                 |\n"
    row = "| Allocated memory      |  21.37 GiB  |  22.91 GiB  |   8.12 TiB  |   8.10 TiB  |\n"
    return events.OutOfMemorySeen(
        time=time,
        device=f"cuda:{rank}",
        requested=2 * GIB,
        allocated=int(21.37 * GIB),
        free=int(1.1 * GIB),
        step=step,
        phase="eval",
        summary=line + title + line + row + line,
    )
