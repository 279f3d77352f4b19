"""All rules there are."""

from __future__ import annotations

from typing import Any, Final

from trainwatch.rules.allocator import AllocatorRetries, Fragmentation, OutOfMemory
from trainwatch.rules.base import Rule
from trainwatch.rules.disk import DiskSpace
from trainwatch.rules.divergence import Divergence
from trainwatch.rules.ended import ProcessVanished, TrainingFailed
from trainwatch.rules.gradients import ExplodingGradient, VanishingGradient
from trainwatch.rules.growth import MemoryGrowth, OomForecast
from trainwatch.rules.hang import Hang
from trainwatch.rules.headroom import HostMemory, MemoryHeadroom
from trainwatch.rules.idle_device import IdleDevice
from trainwatch.rules.known_versions import KnownVersions
from trainwatch.rules.learning_rate import LearningRate
from trainwatch.rules.loss_scale import LossScale
from trainwatch.rules.loss_spike import LossSpike
from trainwatch.rules.memory_verdict import MemoryVerdict
from trainwatch.rules.nonfinite import NonFiniteEvalLoss, NonFiniteGradient, NonFiniteLoss
from trainwatch.rules.overfitting import Overfitting
from trainwatch.rules.padding import PaddingWaste
from trainwatch.rules.peak_forecast import PeakForecast
from trainwatch.rules.phase_forecast import EvalAccumulation, PhaseForecast
from trainwatch.rules.plateau import Plateau
from trainwatch.rules.straggler import Straggler
from trainwatch.rules.tenants import MemoryImbalance, OtherProcesses
from trainwatch.rules.throughput import DataBound, ThroughputDrop
from trainwatch.rules.zero_loss import ZeroLoss

RULES: Final[tuple[type[Rule[Any]], ...]] = (
    NonFiniteLoss,
    NonFiniteGradient,
    NonFiniteEvalLoss,
    ZeroLoss,
    LossSpike,
    Divergence,
    Plateau,
    ExplodingGradient,
    VanishingGradient,
    Overfitting,
    LearningRate,
    LossScale,
    ProcessVanished,
    TrainingFailed,
    KnownVersions,
    PaddingWaste,
    ThroughputDrop,
    DataBound,
    Straggler,
    Hang,
    DiskSpace,
    IdleDevice,
    MemoryGrowth,
    OomForecast,
    MemoryHeadroom,
    HostMemory,
    Fragmentation,
    AllocatorRetries,
    MemoryImbalance,
    OtherProcesses,
    OutOfMemory,
    PeakForecast,
    PhaseForecast,
    EvalAccumulation,
    MemoryVerdict,
)
"""All rules; adding one means its file, this tuple, its wording, its cases and its page in docs/rules."""
