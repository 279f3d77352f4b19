"""What is marked on a chart besides its lines: phases, checkpoints, non-finite steps and the end of the run.

Times are Unix seconds, steps are optimizer steps; None where one is not known.
"""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class PhaseSpan:
    """A rank was in one phase.

    Attributes:
        phase: One of :data:`trainwatch.events.Phase`; ``train`` and ``idle`` are not drawn.
        end: When it left the phase; None while it is in it.
        end_step: The last finished step at the end; None while in it.
        rank: The rank, or None when all were in it.
    """

    phase: str
    start: float | None
    end: float | None
    start_step: int | None
    end_step: int | None
    rank: int | None = None


@dataclass(frozen=True)
class CheckpointMark:
    """A checkpoint lies on disk. `reason` is ``schedule``, ``halt`` or ``command``."""

    step: int | None
    time: float | None
    reason: str = "schedule"


@dataclass(frozen=True)
class NonFiniteMark:
    """A step had a NaN or an Inf in its loss or in its gradients.

    Attributes:
        where: ``"loss"`` or ``"gradient"``.
        value: NaN, Inf or -Inf.
        action: What was done about it: ``recorded``, ``skipped``, ``scaler`` or ``halt``.
    """

    step: int | None
    time: float | None
    rank: int | None
    where: str
    value: float
    action: str


@dataclass(frozen=True)
class EndMark:
    """The run is over. `state` is the run's state: ``finished``, ``halted``, ``failed``, ``died`` or ``lost``."""

    step: int | None
    time: float | None
    state: str


@dataclass(frozen=True)
class Marks:
    """All marks of a run; of any length, in any order."""

    phases: list[PhaseSpan] = field(default_factory=list)
    checkpoints: list[CheckpointMark] = field(default_factory=list)
    nonfinite: list[NonFiniteMark] = field(default_factory=list)
    end: EndMark | None = None
