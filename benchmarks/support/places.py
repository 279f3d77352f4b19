"""Where a training meets our code, and what is inside."""

from __future__ import annotations

from typing import Any

import torch

from benchmarks.support.inside import Place
from trainwatch import events, journal
from trainwatch.training import agreement, callback, control, guard, hooks, inspection, launch, recorder, step, watcher
from trainwatch.training.signals import allocators, batch, gradients, loss, memory, phases


def entrances() -> list[Place]:
    """Returns every function through which the training thread comes into our code."""
    kind = callback.TrainWatchCallback
    found: list[Place] = [(kind, name) for name in sorted(vars(kind)) if name.startswith("on_")]
    found += [(hooks.ModelHook, name) for name in ("__call__", "_begin_from_loss", "_end_backward", "_end_reduction")]
    return found


MEASURE: Place = (gradients.GradientSignal, "measure")
"""The gradients' norm: what depends on the size of the model."""


def parts() -> list[Place]:
    """Returns the functions inside, for a profile."""
    found: list[tuple[Any, str]] = [
        MEASURE,
        (gradients.GradientSignal, "_gradients"),
        (gradients, "_norm_on_cpu"),
        (gradients.GradientSignal, "reset"),
        (hooks, "find_loss"),
        (hooks, "_tensors"),
        (hooks, "_queue_callback"),
        (torch.Tensor, "register_hook"),
        (loss.LossSignal, "fold"),
        (loss.LossSignal, "reset"),
        (batch.BatchSignal, "fold"),
        (batch.BatchSignal, "reset"),
        (batch.BatchSignal, "scalars"),
        (batch, "_count"),
        (step.StepObserver, "begin"),
        (step.StepObserver, "saw_forward"),
        (step.StepObserver, "_read"),
        (step, "to_host"),
        (callback, "_synchronisation"),
        (callback, "_values"),
        (watcher.Watcher, "step_began"),
        (watcher.Watcher, "before_update"),
        (inspection.Inspection, "begin"),
        (inspection.Inspection, "_look"),
        (inspection.Inspection, "_agree"),
        (inspection.Inspection, "_act"),
        (guard.Guard, "judge"),
        (watcher.Watcher, "_record_step"),
        (watcher.Watcher, "_report_trouble"),
        (watcher.Watcher, "logged"),
        (control.Control, "newest"),
        (agreement.Agreement, "agree"),
        (memory.ProcessMemory, "begin"),
        (memory.ProcessMemory, "read"),
        (allocators.CachingAllocator, "read"),
        (memory.Memory, "step"),
        (memory.Memory, "phase"),
        (phases.PhaseSignal, "enter"),
        (phases.PhaseSignal, "step"),
        (launch.AgentProcess, "ensure"),
        (recorder.Recorder, "record"),
        (events, "encode"),
        (journal.Writer, "append"),
    ]
    return [(owner, name) for owner, name in found if name in vars(owner)]
