"""What can be read in this setup, and what can't and why: no number is better than a wrong one, with a reason."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import msgspec

_TAP: Final = "attach with trainwatch.watch(trainer)"


class Setup(msgspec.Struct, frozen=True):
    """What kind of training this is, as far as it decides what can be read.

    Attributes:
        compiled: The model runs under torch.compile.
        deepspeed: DeepSpeed takes the gradients away as they come.
        sharded: Each rank holds a part of the parameters (FSDP, tensor parallelism).
        flat_shards: They are sharded by FSDP's first version.
        replicas: The model is copied to several devices at each step (torch.nn.DataParallel).
    """

    compiled: bool = False
    deepspeed: bool = False
    sharded: bool = False
    flat_shards: bool = False
    replicas: bool = False

    @property
    def name(self) -> str:
        """What to blame, in a few words; empty for a plain training."""
        if self.deepspeed:
            return "DeepSpeed"
        if self.compiled:
            return "torch.compile"
        if self.replicas:
            return "torch.nn.DataParallel"
        return "FSDP" if self.sharded else ""


def find_setup(model: Any, optimizer: Any, arguments: dict[str, Any], devices: int = 1) -> Setup:
    """Finds out what kind of training this is.

    Args:
        model: The model, unwrapped as far as the framework does it.
        optimizer: The framework's optimizer.
        arguments: The framework's settings.
        devices: On how many this process computes by itself.
    """
    flat_shards = any(type(module).__name__ == "FullyShardedDataParallel" for module in model.modules())
    parameters = list(model.parameters())
    optimizer_kind = type(optimizer).__name__
    return Setup(
        compiled=bool(arguments.get("torch_compile")) or hasattr(model, "_orig_mod"),
        deepspeed="DeepSpeed" in optimizer_kind or any(hasattr(parameter, "ds_id") for parameter in parameters),
        sharded=flat_shards or any(hasattr(parameter, "to_local") for parameter in parameters),
        flat_shards=flat_shards,
        replicas=devices > 1,
    )


class _Seen(msgspec.Struct, frozen=True):
    """What could be read in a step.

    Attributes:
        tapped: The Trainer itself told the loss.
        loss: A loss was seen.
        gradients: Gradient norms were measured, all ranks' together.
        logged_norm: The Trainer's log has a gradient norm.
        layers: The norms of layers were measured.
        samples: The indices of the batches' samples are known.
        passes: A pass through the model was seen.
    """

    tapped: bool = False
    loss: bool = False
    gradients: bool = False
    logged_norm: bool = False
    layers: bool = False
    samples: bool = False
    passes: bool = False

    def sources(self) -> dict[str, str]:
        """Where each signal is read, for people."""
        found: dict[str, str] = {}
        if self.loss:
            found["loss"] = "what the Trainer trains on" if self.tapped else "the model's output"
        if self.gradients:
            found["gradients"] = "the gradients before clipping"
        elif self.logged_norm:
            found["gradients"] = "the Trainer's log"
        if self.layers:
            found["layers"] = "the gradients before clipping"
        if self.samples:
            found["samples"] = "the data loader's sampler"
        if self.passes:
            found["batch"] = "the model's inputs"
        return found

    def missing(self, setup: Setup) -> dict[str, str]:
        """Why each of the others can't be read.

        Args:
            setup: What kind of training this is.
        """
        under = f"not available under {setup.name}" if setup.name else "not available"
        found: dict[str, str] = {}
        if not self.loss:
            if setup.replicas and not self.tapped:
                found["loss"] = f"{under}: the passes of the replicas can't be seen; {_TAP}"
            elif setup.compiled and not self.tapped:
                found["loss"] = f"{under}: the passes of a compiled model can't be seen; {_TAP}"
            else:
                found["loss"] = f"not available: what is trained on is not the loss in the model's output; {_TAP}"
        if not self.gradients and not self.logged_norm:
            if setup.deepspeed:
                found["gradients"] = f"{under}: it takes each gradient away as it comes; {_TAP} for its own norm"
            elif setup.name and not self.tapped:
                found["gradients"] = f"{under}; {_TAP}"
            else:
                found["gradients"] = f"{under}: no gradient was there at the end of the backward pass"
        if not self.layers:
            if setup.sharded or setup.deepspeed:
                found["layers"] = f"{under}: each rank holds a part of each layer"
            else:
                found["layers"] = found.get("gradients", f"{under}: the gradients can't be seen before clipping")
        if not self.samples:
            found["samples"] = "not available: the data comes without a sampler that tells"
        if not self.passes:
            found["batch"] = f"{under}: the model's inputs can't be seen"
        return found


class Availability:
    """Keeps what could be read, and says when that is news.

    Args:
        setup: What kind of training this is.
        memory_sources: Where memory is read.
        memory_missing: What of it can't be, and why.

    Attributes:
        norm_is_logged: The Trainer's log has had a gradient norm that we could not read ourselves.
    """

    def __init__(self, setup: Setup, memory_sources: Sequence[str] = (), memory_missing: Sequence[str] = ()) -> None:
        self.norm_is_logged = False
        self._setup = setup
        self._sources = {"memory": "; ".join(memory_sources)} if memory_sources else {}
        self._missing = {"memory": "; ".join(memory_missing)} if memory_missing else {}
        self._said: tuple[bool, ...] | None = None
        self._last: tuple[bool, ...] | None = None

    def saw(
        self, *, tapped: bool, loss: bool, gradients: bool, layers: bool, samples: str | None, passes: bool
    ) -> tuple[dict[str, str], dict[str, str]] | None:
        """Takes what a step showed.

        Args:
            tapped: See :class:`_Seen`, as for the others.
            loss: A loss.
            gradients: A norm.
            layers: The layers' norms.
            passes: A pass.
            samples: Why the samples of a batch are not known; empty when they are, None when nobody says.

        Returns:
            The sources and what is missing, when that is different from what was said before; else None.
        """
        key = (tapped, loss, gradients, self.norm_is_logged, layers, samples == "", passes)
        # One step may be odd, the first above all: only what was seen twice in a row is said.
        news = key == self._last and key != self._said
        self._last = key
        if not news:
            return None
        self._said = key
        seen = _Seen(*key)
        missing = {**seen.missing(self._setup), **self._missing}
        if samples:
            missing["samples"] = samples
        return {**seen.sources(), **self._sources}, missing
