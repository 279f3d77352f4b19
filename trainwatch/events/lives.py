"""How a run begins and ends, and what is known of it besides its curves."""

from __future__ import annotations

from typing import Any

from trainwatch.events.base import CheckpointReason, DeviceValues, Event, Outcome, Phase, Policy, RuleSettings


class RunStarted(Event, frozen=True, kw_only=True, tag="run_started"):
    """A rank began to train. Every rank writes one, as the first event of its journal.

    Attributes:
        name: The run's name for people; not unique.
        world_size: Number of ranks in the run.
        local_rank: The rank's number on its node.
        pid: Process id on the node.
        process_started: The process's creation time, which together with `pid` names it safely.
        first_step: ``global_step`` at the start; greater than 0 when resumed from a checkpoint.
        max_steps: The step at which training is to end; 0 when unknown.
        policy: What the guard does about non-finite values.
        loss_source: Where the raw loss is read: ``"model output"`` (the callback alone: what the model returned) or
            ``"loss function"`` (:func:`trainwatch.watch`: what ``compute_loss`` returned, which is trained on).
        arguments: The Trainer's arguments as plain values.
        environment: Versions, devices and settings of this process.
        model: Class name, parameter counts and the like.
        dataset: Sizes of the data sets and, where it could be read cheaply, the distribution of sample lengths; and
            ``order``, when the longest batches come, where that is known before.
        rules: Options of rules that the training script or its ``trainwatch.toml`` sets.
    """

    name: str
    world_size: int = 1
    local_rank: int = 0
    pid: int = 0
    process_started: float = 0.0
    first_step: int = 0
    max_steps: int = 0
    policy: Policy = "record"
    loss_source: str = ""
    output_dir: str = ""
    arguments: dict[str, Any] = {}
    environment: dict[str, Any] = {}
    model: dict[str, Any] = {}
    dataset: dict[str, Any] = {}
    rules: RuleSettings = {}


class SignalsFound(Event, frozen=True, kw_only=True, tag="signals_found"):
    """Which signals can be read in this setup, known after the first steps; written again when it changes.

    Attributes:
        step: The step after which it is known.
        sources: Signal (``"loss"``, ``"gradients"``, ``"layers"``, ``"memory"``, ``"samples"`` …) to where it is read,
            for people.
        missing: Signal to why it cannot be read: ``"not available under torch.compile: …"``.
    """

    step: int
    sources: dict[str, str] = {}
    missing: dict[str, str] = {}


class CheckpointSaved(Event, frozen=True, kw_only=True, tag="checkpoint_saved"):
    """A checkpoint lies on disk, complete."""

    step: int
    path: str
    reason: CheckpointReason = "schedule"


class RunEnded(Event, frozen=True, kw_only=True, tag="run_ended"):
    """The rank's training ended and could say so.

    Attributes:
        reason: The rule that halted the run, for outcome ``"halted"``.
        parameters: The evidence behind `reason`, as in :class:`FindingRaised`; with ``checkpoint``, the path to
            resume from, when one was saved.
        error: Type and message of the exception, for outcome ``"failed"``.
        traceback: The exception's traceback as text.
    """

    step: int
    outcome: Outcome
    reason: str = ""
    parameters: dict[str, Any] = {}
    error: str = ""
    traceback: str = ""


class ProcessGone(Event, frozen=True, kw_only=True, tag="process_gone"):
    """An agent saw that a rank's process no longer exists although its journal has no :class:`RunEnded`.

    Attributes:
        step: The last step that the rank finished; None when it finished none.
        phase: The phase it was in.
        devices: The last readings taken of it.
        oom_kills: How many processes the kernel's OOM killer took in the rank's cgroup while the agent watched.
    """

    rank: int
    pid: int
    step: int | None = None
    phase: Phase | None = None
    devices: DeviceValues = {}
    oom_kills: int = 0


class TroubleCounted(Event, frozen=True, kw_only=True, tag="trouble_counted"):
    """Something of TrainWatch itself failed or was lost. Totals since the source began, so that the last one counts.

    Attributes:
        errors: Place in our code to how often an exception was swallowed there.
        lost: Reason to how many events could not be kept.
        message: The newest error, as text.
    """

    errors: dict[str, int] = {}
    lost: dict[str, int] = {}
    message: str = ""
