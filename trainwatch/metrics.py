"""The metric catalogue: name, unit, meaning and origin of everything that TrainWatch measures.

The server hands it to the UI and the charts take their titles and units from it. Names follow the ecosystem
(``train/loss``), units are base units (bytes, seconds). A metric that is not listed here (the user's own
``eval/accuracy``) is kept and shown under its name, without a unit.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Literal

import msgspec

Unit = Literal["", "bytes", "seconds", "tokens", "samples", "ratio", "1/s"]


class Metric(msgspec.Struct, frozen=True):
    """One entry of the catalogue.

    Attributes:
        name: The name under which it is recorded.
        unit: Base unit; empty for plain numbers.
        title: Short label for people.
        meaning: What the number says, in a sentence.
        source: Where it is read.
    """

    name: str
    unit: Unit
    title: str
    meaning: str
    source: str


_ENTRIES: Final = (
    Metric(
        "train/loss",
        "",
        "Loss",
        "Loss of the step as the model returned it, over all its micro-batches; NaN and Inf are not filtered.",
        "forward hook on the model",
    ),
    Metric(
        "train/loss_logged",
        "",
        "Loss (Trainer's log)",
        "The average that the Trainer logs; by default it hides NaN and Inf.",
        "on_log",
    ),
    Metric(
        "train/loss_average",
        "",
        "Loss (Trainer's average)",
        "The mean loss over the whole training, logged by the Trainer at its end.",
        "on_log",
    ),
    Metric(
        "train/grad_norm",
        "",
        "Gradient norm",
        "2-norm over all gradients of the step before clipping; under DDP after the all-reduce.",
        "end of backward",
    ),
    Metric(
        "train/grad_norm_local",
        "",
        "Gradient norm (own data)",
        "2-norm over this rank's own gradients, before the all-reduce: it shows whose data is odd.",
        "end of backward",
    ),
    Metric(
        "train/zero_gradients",
        "ratio",
        "Zero gradients",
        "Share of exact zeros in the step's gradients; measured every few steps.",
        "end of backward",
    ),
    Metric(
        "train/update_ratio",
        "ratio",
        "Update to weight",
        "Norm of an optimizer update over the norm of the weights; measured every few steps.",
        "weights before and after the optimizer",
    ),
    Metric("train/learning_rate", "", "Learning rate", "Learning rate of the first parameter group.", "optimizer"),
    Metric("train/epoch", "", "Epoch", "Passes over the training set so far.", "Trainer state"),
    Metric(
        "train/step_seconds",
        "seconds",
        "Step time",
        "From the begin of the step's first micro-batch to its end.",
        "callback",
    ),
    Metric(
        "train/data_seconds",
        "seconds",
        "Waiting for data",
        "From the end of the step before (an evaluation or a save left out) to the begin of this one: loading data.",
        "callback",
    ),
    Metric(
        "train/compute_seconds",
        "seconds",
        "Forward and backward",
        "Forward and backward passes of the step's micro-batches, as the host sees them.",
        "hooks on the model",
    ),
    Metric(
        "train/optimizer_seconds",
        "seconds",
        "Optimizer",
        "From the last gradient to the end of the update, clipping included, as the host sees it.",
        "callback",
    ),
    Metric(
        "train/tokens_per_second",
        "1/s",
        "Tokens a second",
        "Real tokens of the step on this rank over the time of the step, waiting for data included.",
        "attention mask and clock",
    ),
    Metric(
        "train/padding_share",
        "ratio",
        "Padding",
        "Share of padding among the step's tokens.",
        "attention mask",
    ),
    Metric(
        "train/mfu",
        "ratio",
        "Model FLOPs utilisation",
        "FLOPs of the model for the step's tokens over what the device can do; only where its peak is known.",
        "the model's own FLOPs estimate and the device's data sheet",
    ),
    Metric(
        "train/loss_scale",
        "",
        "Loss scale",
        "Factor that the fp16 loss scaler puts on the loss; it halves at each overflow.",
        "gradient scaler",
    ),
    Metric("train/micro_batches", "", "Micro-batches", "Forward passes of the step on this rank.", "forward hook"),
    Metric(
        "train/nonfinite_micro_batches",
        "",
        "Non-finite micro-batches",
        "Micro-batches of the step whose loss was NaN or Inf.",
        "forward hook",
    ),
    Metric("train/samples", "samples", "Samples", "Samples of the step on this rank.", "batch shape"),
    Metric("train/tokens", "tokens", "Tokens", "Real (not padding) tokens of the step on this rank.", "attention mask"),
    Metric(
        "train/padded_tokens",
        "tokens",
        "Padded tokens",
        "Tokens of the step with padding: what memory and time are spent on.",
        "batch shape",
    ),
    Metric(
        "train/batch_length",
        "tokens",
        "Padded length",
        "Longest padded sequence among the step's micro-batches.",
        "batch shape",
    ),
    Metric(
        "train/supervised_tokens",
        "tokens",
        "Supervised tokens",
        "Tokens of the step that the loss is computed on (label not -100).",
        "labels",
    ),
    Metric(
        "train/skipped",
        "",
        "Skipped",
        "1 when the weights were not updated in this step (guard or loss scaler), else 0.",
        "guard",
    ),
    Metric(
        "eval/loss",
        "",
        "Eval loss",
        "Plain mean of the loss over all evaluation batches; NaN as soon as one of them is.",
        "forward hook on the model",
    ),
    Metric(
        "eval/loss_reported",
        "",
        "Eval loss (Trainer's)",
        "The eval_loss that the Trainer reports; by default it leaves NaN batches out.",
        "on_evaluate",
    ),
    Metric("eval/batches", "", "Eval batches", "Batches of the evaluation on this rank.", "forward hook"),
    Metric(
        "eval/nonfinite_batches",
        "",
        "Non-finite eval batches",
        "Evaluation batches whose loss was NaN or Inf.",
        "forward hook",
    ),
    Metric(
        "memory/allocated",
        "bytes",
        "Allocated",
        "Memory held by tensors at the end of the step.",
        "framework allocator",
    ),
    Metric(
        "memory/reserved",
        "bytes",
        "Reserved",
        "Memory that the caching allocator holds, used or not.",
        "framework allocator",
    ),
    Metric(
        "memory/peak",
        "bytes",
        "Peak of the step",
        "Highest use within the step: allocated on an accelerator, resident on a CPU.",
        "framework allocator; on a CPU the kernel's own high-water mark",
    ),
    Metric(
        "memory/peak_reserved",
        "bytes",
        "Peak reserved",
        "Most that the caching allocator held within the step.",
        "framework allocator",
    ),
    Metric(
        "memory/inactive_split",
        "bytes",
        "Fragmented",
        "Unused parts of split blocks: memory that is free and may still be of no use.",
        "framework allocator",
    ),
    Metric(
        "memory/alloc_retries",
        "",
        "Allocator retries",
        "How often the allocator had to give its cache back to serve a request, since the process began.",
        "framework allocator",
    ),
    Metric(
        "memory/ooms",
        "",
        "Out-of-memory errors",
        "How often the allocator could not serve a request, since the process began.",
        "framework allocator",
    ),
    Metric(
        "memory/outside",
        "bytes",
        "Outside the allocator",
        "Device memory of this process that the allocator does not hold: CUDA context, NCCL, libraries.",
        "NVML and the framework allocator",
    ),
    Metric(
        "memory/others_used",
        "bytes",
        "Other processes",
        "Device memory held by processes that do not belong to the run.",
        "NVML",
    ),
    Metric(
        "memory/tree_resident",
        "bytes",
        "Resident with workers",
        "Resident memory of the rank's process and its children (data loader workers); shared pages count for each.",
        "operating system",
    ),
    Metric(
        "memory/mapped",
        "bytes",
        "Mapped and shared",
        "Part of the resident memory that is pages of files or shared; those of files are given back when memory is"
        " short.",
        "operating system",
    ),
    Metric("memory/shared", "bytes", "Shared memory", "Memory in /dev/shm on the machine.", "kernel"),
    Metric("host/oom_kills", "", "OOM kills", "Processes that the kernel's OOM killer took in the cgroup.", "cgroup"),
    Metric("memory/resident", "bytes", "Resident", "Resident memory of the rank's process.", "operating system"),
    Metric(
        "memory/process_used",
        "bytes",
        "Used by this process",
        "Device memory of the rank's process, its CUDA context included.",
        "NVML",
    ),
    Metric(
        "memory/device_used",
        "bytes",
        "Used on the device",
        "Memory in use on the device or machine, by everybody.",
        "NVML; on a host the kernel or the cgroup",
    ),
    Metric(
        "memory/capacity",
        "bytes",
        "Capacity",
        "The limit: the device's memory; on a CPU the smaller of the cgroup's limit and the machine's memory.",
        "NVML, cgroup, kernel",
    ),
    Metric("disk/free", "bytes", "Free on disk", "Free space of the output folder's file system.", "operating system"),
    Metric("disk/capacity", "bytes", "Disk", "Size of the output folder's file system.", "operating system"),
    Metric(
        "checkpoint/size", "bytes", "Checkpoint", "Size of the newest checkpoint: the sum of its files.", "file system"
    ),
    Metric("device/utilization", "ratio", "Utilization", "Share of time in which the device was busy.", "NVML"),
    Metric("host/cpu", "ratio", "CPU", "Share of all cores in use.", "kernel"),
)

CATALOGUE: Final[dict[str, Metric]] = {metric.name: metric for metric in _ENTRIES}


def describe(name: str) -> Metric:
    """Returns the catalogue's entry, or one made up for a metric of the user's own."""
    return CATALOGUE.get(name) or Metric(name, "", name, "", "logged by the training script")


_LOG_KEYS: Final = {"loss": "train/loss_logged", "train_loss": "train/loss_average", "eval_loss": "eval/loss_reported"}


def logged_values(logs: Mapping[str, float], prefix: str) -> dict[str, float]:
    """Puts what a Trainer logs under the catalogue's names; the same for a live run and for one that is imported.

    Args:
        logs: The Trainer's keys (``loss``, ``eval_loss``, ``rewards/chosen`` …) and their values.
        prefix: ``"train/"`` or ``"eval/"``: for keys that have no name of their own here.
    """
    own = prefix.replace("/", "_")
    return {_LOG_KEYS.get(key) or prefix + key.removeprefix(own): value for key, value in logs.items()}
