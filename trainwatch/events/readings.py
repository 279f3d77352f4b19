"""What is read step by step, phase by phase, and from outside."""

from __future__ import annotations

import msgspec

from trainwatch.events.base import DeviceValues, Event, Phase, Values


class StepEnded(Event, frozen=True, kw_only=True, tag="step_ended"):
    """One optimizer update is over (also one that the guard or the loss scaler skipped).

    Attributes:
        step: ``global_step`` after the update; the first step of a fresh run is 1.
        values: The step's values that belong to no device: loss, gradient norm, tokens …
        devices: The step's memory per device.
    """

    step: int
    values: Values = {}
    devices: DeviceValues = {}


class LayersMeasured(Event, frozen=True, kw_only=True, tag="layers_measured"):
    """The gradients of one step, layer by layer, in the model's order; measured every few steps and at a bad one.

    Attributes:
        step: The step.
        layers: Names of the layers: prefixes of parameter names (``"transformer.h.3"``).
        norms: 2-norm of each layer's gradient before clipping, this rank's own before any all-reduce; None where the
            layer had no gradient.
        zeros: Share of exact zeros in each layer's gradient, from 0 to 1; empty when not measured in this step.
        updates: Norm of the optimizer's last update over the norm of the weights, of each layer; empty likewise.
    """

    step: int
    layers: list[str]
    norms: list[float | None]
    zeros: list[float | None] = []
    updates: list[float | None] = []


class Logged(Event, frozen=True, kw_only=True, tag="logged"):
    """What the Trainer itself logged, under the catalogue's names."""

    step: int
    values: Values


class Evaluated(Event, frozen=True, kw_only=True, tag="evaluated"):
    """An evaluation is over.

    Attributes:
        values: ``eval/loss`` is the plain mean over all batches, NaN when one of them was;
            ``eval/loss_reported`` is what the Trainer made of it; also ``eval/batches``, ``eval/nonfinite_batches``
            and the user's own metrics.
    """

    step: int
    values: Values


class PhaseEntered(Event, frozen=True, kw_only=True, tag="phase_entered"):
    """The rank left one phase and entered another; a phase lasts until the next of these.

    Attributes:
        left: The phase that was left; None at the first one.
        peak: ``memory/peak`` of each device within the phase that was left (and ``memory/peak_reserved``).
        seconds: How long the phase that was left took.
    """

    phase: Phase
    step: int
    left: Phase | None = None
    peak: DeviceValues = {}
    seconds: float = 0.0


class OtherProcess(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A process that uses a rank's device and does not belong to the run.

    Attributes:
        device: The device, as the rank calls it.
        pid: Its number: the node's, or the machine's where the node is a container.
        name: Its name without path and arguments; empty when it may not be seen.
        user: Who runs it; empty likewise.
        used: Bytes that it uses on the device.
    """

    device: str
    pid: int
    name: str = ""
    user: str = ""
    used: int = 0


class Sampled(Event, frozen=True, kw_only=True, tag="sampled"):
    """Readings that an agent took from outside, several a second.

    Attributes:
        rank: Whose process or devices were read; None for what belongs to the whole node.
        step: The rank's last finished step when the sample was taken; None when not known.
        phase: The phase the rank was in.
        others: All that use the rank's devices and do not belong to the run; None when that has not changed much
            since it was last recorded, or is not known.
    """

    devices: DeviceValues
    rank: int | None = None
    step: int | None = None
    phase: Phase | None = None
    others: list[OtherProcess] | None = None
