"""Where a training meets our code, and what is inside."""

from __future__ import annotations

from typing import Any

from benchmarks.support.inside import Place
from trainwatch import events, journal
from trainwatch.training import (
    availability,
    callback,
    control,
    guard,
    hooks,
    inspection,
    recorder,
    retention,
    step,
    stepping,
    watcher,
)
from trainwatch.training.signals import allocators, batch, gradients, loss, memory, pacing, phases, samples


def entrances() -> list[Place]:
    """Returns every function through which the training thread comes into our code."""
    kind = callback.TrainWatchCallback
    found: list[Place] = [(kind, name) for name in sorted(vars(kind)) if name.startswith("on_")]
    found += [(hooks.ModelHook, name) for name in ("__call__", "_begin_from_node", "_end_backward", "_end_reduction")]
    found.append((samples.SampleTrail, "_keep"))
    return found


MEASURE: Place = (gradients.GradientSignal, "measure")
"""The gradients' norm: what depends on the size of the model."""


def parts() -> list[Place]:
    """Returns the functions inside, for a profile."""
    methods: dict[Any, str] = {
        gradients.GradientSignal: "measure reset",
        loss.LossSignal: "fold reset",
        batch.BatchSignal: "fold fold_labels reset scalars",
        samples.SampleTrail: "step_began micro_batch_ended",
        retention.Retention: "keep keep_loss clear",
        step.StepObserver: "begin saw_forward loss_was_used backward_ended _read",
        inspection.Inspection: "begin _look _commanded _act",
        control.Control: "next _look",
        guard.Guard: "judge",
        memory.ProcessMemory: "read",
        allocators.CachingAllocator: "read",
        memory.Memory: "step phase",
        phases.PhaseSignal: "enter step",
        pacing.StepClock: "end",
        availability.Availability: "saw",
        stepping.Stepping: "begin inspect end logged",
        watcher.Watcher: "step_began before_update step_ended logged",
        recorder.Recorder: "record",
        journal.Writer: "append",
    }
    functions: dict[Any, str] = {
        hooks: "find_loss _queue_callback",
        batch: "_count",
        step: "to_host value_of",
        callback: "_values",
        events: "encode",
    }
    return [(owner, name) for owner, names in {**methods, **functions}.items() for name in names.split()]
