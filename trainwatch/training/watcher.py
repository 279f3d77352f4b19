"""The watcher: one training from its begin to its end, whatever framework drives it.

It ties the signals, the guard and the recorder together. A framework's adapter (:mod:`trainwatch.training.callback`)
tells it what happens and carries out what it answers.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from trainwatch import events
from trainwatch.rules.halting import halt_sentence
from trainwatch.settings import Settings
from trainwatch.training import failures
from trainwatch.training.agreement import RECORD_INTERVAL, Agreement
from trainwatch.training.availability import Availability, find_setup
from trainwatch.training.control import Control
from trainwatch.training.coroner import Coroner
from trainwatch.training.facts import NOTHING, Facts, Wish
from trainwatch.training.guard import Guard
from trainwatch.training.hooks import ModelHook
from trainwatch.training.identity import Identity
from trainwatch.training.inspection import Inspection
from trainwatch.training.introduction import introduce
from trainwatch.training.recorder import Recorder, now
from trainwatch.training.redaction import redact, redact_trace
from trainwatch.training.resume import remember
from trainwatch.training.safety import Safety, harmless
from trainwatch.training.signals import exhaustion
from trainwatch.training.signals.flops import Flops
from trainwatch.training.signals.memory import Memory
from trainwatch.training.signals.phases import Left, PhaseSignal
from trainwatch.training.signals.samples import SampleTrail
from trainwatch.training.step import StepObserver
from trainwatch.training.stepping import Stepping
from trainwatch.training.tap import Tap
from trainwatch.training.upkeep import Upkeep

logger = logging.getLogger("trainwatch")


class Watcher:
    """Watches one training on one rank.

    Args:
        settings: Settings of this process.
        guard: What to do about non-finite steps.
        safety: Where failures of ours are counted.

    Every public method may be called at any time; none raises.
    """

    def __init__(self, settings: Settings, guard: Guard, safety: Safety) -> None:
        self.safety = safety
        self.running = False
        self._settings = settings
        self._guard = guard
        self._checkpoint = ""
        self._save_reason: events.CheckpointReason = "schedule"
        self._step = 0
        self._tap: Tap | None = None
        self._hook: ModelHook | None = None
        self._put_on: list[Callable[[], None]] = []

    # -- begin ---------------------------------------------------------------------------------------------------

    @harmless
    def start(self, model: Any, optimizer: Any, facts: Facts, identity: Identity) -> None:
        """The training begins.

        Args:
            model: The model, unwrapped.
            optimizer: The framework's optimizer.
            facts: What the framework knows.
            identity: Who this process is in the run.
        """
        for other in failures.running():
            if isinstance(other, Watcher) and other.watches(model):
                # Its training ended by an exception that the script caught: nobody told it.
                other.failed("another training of the same model began before this one had ended", "")
        try:
            self._begin(model, optimizer, facts, identity)
        finally:
            if not self.running:
                self._let_go()

    def _begin(self, model: Any, optimizer: Any, facts: Facts, identity: Identity) -> None:
        self._identity = identity
        self._recorder = Recorder(self._settings, identity)
        self._upkeep = Upkeep(self._settings, identity, self._recorder, self.safety)
        self._agreement = Agreement(model, RECORD_INTERVAL if self._guard.policy == "record" else 1)
        self._memory = Memory(model, self.safety)
        self._put_on.append(self._memory.close)
        self._phases = PhaseSignal(self._entered, self._memory)
        self._memory.on_exhaustion(self._exhausted)
        setup = find_setup(model, optimizer, facts.arguments, facts.devices)
        self._trail: SampleTrail | None = None
        if facts.dataloader is not None:
            self._trail = SampleTrail(facts.dataloader, self.safety, accumulation=facts.accumulation)
            self._put_on.append(self._trail.remove)
        self._observer = StepObserver(
            model,
            self.safety,
            is_last_micro_batch=facts.is_last_micro_batch,
            ranks=1 if self._agreement.alone else identity.world_size,
            gradients_stay=not setup.deepspeed,
            flat_shards=setup.flat_shards,
            accumulation=facts.accumulation,
            normalised_scale=facts.normalised_scale,
            evaluating=self.evaluation_began,
            trail=self._trail,
        )
        self._step = facts.first_step
        began = now()
        self._hook = ModelHook(model, self._observer)
        self._put_on.append(self._hook.remove)
        if facts.trainer is not None:
            with self.safety.guard("tap"):
                self._tap = Tap(facts.trainer, self._observer, self._hook, self.safety)
                self._put_on.append(self._tap.remove)
        self._recorder.record(
            introduce(
                self._settings,
                identity,
                facts,
                model,
                policy=self._guard.policy,
                tapped=self._tap is not None,
                device_uuids=self._memory.uuids,
                safety=self.safety,
            )
        )
        self._inspection = Inspection(
            safety=self.safety,
            guard=self._guard,
            observer=self._observer,
            hook=self._hook,
            agreement=self._agreement,
            control=Control(self._recorder.node_directory, began, identity),
            optimizer=optimizer,
            rank=identity.rank,
        )
        self._put_on.append(self._inspection.remove)
        self._stepping = Stepping(
            safety=self.safety,
            recorder=self._recorder,
            observer=self._observer,
            inspection=self._inspection,
            phases=self._phases,
            availability=Availability(setup, self._memory.sources, self._memory.missing),
            coroner=Coroner(
                model,
                self._observer.retention,
                None if self._tap is None else self._tap.compute_loss,
                facts.trainer,
                several_ranks=not self._agreement.alone,
            ),
            trail=self._trail,
            flops=Flops(model, half=facts.half, replicas=setup.replicas),
        )
        failures.watch(self)
        self.running = True
        self._upkeep.look(now())

    @harmless
    def settle(self, together: bool) -> None:
        """All ranks have started, or not.

        Args:
            together: TrainWatch runs on every rank. One that does not will not be there to agree on anything, and must
                not be waited for.
        """
        if self.running and not together:
            logger.warning(
                "TrainWatch does not run on every rank: it records, and does not interfere. Give the callback to all."
            )
            self._guard.policy = "record"
            self._agreement.leave()

    # -- a step --------------------------------------------------------------------------------------------------

    def epoch_began(self) -> None:
        """A pass over the training set begins."""
        if self.running and self._trail is not None:
            self._trail.epoch_began()

    def step_began(self) -> None:
        """The first micro-batch of a step is about to go through the model."""
        if self.running:
            self._stepping.begin(self._step + 1)

    def before_update(self, step: int, learning_rate: float) -> None:
        """The gradients are complete and the optimizer is about to use them.

        Args:
            step: Number of the step that this update ends.
            learning_rate: The rate it is made with.
        """
        if self.running:
            self._stepping.inspect(step, learning_rate)

    def step_ended(self, step: int, epoch: float | None = None) -> Wish:
        """The update is done, or was skipped.

        Args:
            step: The update's number.
            epoch: Passes over the training set so far.

        Returns:
            What the framework shall do now.
        """
        if not self.running:
            return NOTHING
        self._step = step
        self._stepping.end(step, epoch)
        self._upkeep.look(now())
        inspection = self._inspection
        if inspection.halt is not None:
            self._save_reason = "halt"
            return Wish(save=True, stop=True)
        if inspection.save is not None:
            if self._identity.rank == 0:
                logger.warning("TrainWatch saves a checkpoint after step %d: %s", step, inspection.save or "asked to")
            inspection.save = None
            self._save_reason = "command"
            return Wish(save=True)
        return NOTHING

    # -- beside the steps ----------------------------------------------------------------------------------------

    @harmless
    def logged(self, step: int, values: events.Values) -> None:
        """The framework logged values.

        Args:
            step: The present step.
            values: Under the catalogue's names.
        """
        if self.running and values:
            self._stepping.logged(values)
            self._recorder.record(events.Logged(time=now(), step=step, values=values))

    @harmless
    def evaluation_began(self) -> None:
        """An evaluation begins, or goes on."""
        if self.running:
            self._phases.enter("eval")

    @harmless
    def evaluated(self, step: int, values: events.Values) -> None:
        """An evaluation is over.

        Args:
            step: The present step.
            values: What the framework reports of it, under the catalogue's names.
        """
        if self.running:
            seen = self._observer.read_evaluation(values.get("eval/loss_reported"))
            self._recorder.record(events.Evaluated(time=now(), step=step, values={**values, **seen}))
            self._phases.enter("idle")
            self._stepping.interrupted()

    @harmless
    def predicted(self) -> None:
        """A prediction is over."""
        if self.running:
            self._observer.read_evaluation()
            self._phases.enter("idle")
            self._stepping.interrupted()

    @harmless
    def saving_began(self) -> None:
        """A checkpoint is about to be saved."""
        if self.running:
            self._phases.enter("save")

    @harmless
    def saved(self, step: int, path: str) -> None:
        """A checkpoint lies on disk.

        Args:
            step: The present step.
            path: Its folder.
        """
        if not self.running:
            return
        if self._inspection.halt is not None:
            self._checkpoint = redact(path)
        if self._identity.rank == 0:
            reason = self._save_reason
            self._recorder.record(events.CheckpointSaved(time=now(), step=step, path=redact(path), reason=reason))
            with self.safety.guard("checkpoint mark"):
                remember(path, self._identity.run, self._settings.project, step)
        self._save_reason = "schedule"
        self._phases.enter("idle")
        self._stepping.interrupted()

    @harmless
    def _exhausted(self, seen: exhaustion.Exhausted) -> None:
        """The allocator found no memory, in whichever thread asked for it; it is about to raise."""
        self._recorder.record(
            events.OutOfMemorySeen(
                time=now(),
                device=seen.device,
                requested=seen.requested,
                allocated=seen.allocated,
                free=seen.free,
                step=self._step,
                phase=self._phases.current,
                summary=seen.summary,
            )
        )

    def _entered(self, phase: events.Phase, left: Left) -> None:
        self._recorder.record(
            events.PhaseEntered(
                time=now(), phase=phase, step=self._step, left=left.phase, peak=left.peak, seconds=left.seconds
            )
        )

    @property
    def measures_gradients(self) -> bool:
        """The last step's gradient norm could be read (not, for one, in a compiled model)."""
        reading = self._inspection.reading if self.running else None
        return reading is not None and reading.norm is not None

    @property
    def halted(self) -> bool:
        """The run is to stop, or has."""
        return self.running and self._inspection.halt is not None

    # -- end -----------------------------------------------------------------------------------------------------

    @harmless
    def ended(self, step: int) -> None:
        """The training is over and the framework says so.

        Args:
            step: The last step.
        """
        if not self.running:
            return
        halt = self._inspection.halt
        if halt is None:
            self._end(events.RunEnded(time=now(), step=step, outcome="finished"))
            return
        parameters = {**halt.parameters, "checkpoint": self._checkpoint}
        self._end(events.RunEnded(time=now(), step=step, outcome="halted", reason=halt.rule, parameters=parameters))
        if self._identity.rank == 0:
            logger.warning("TrainWatch: %s", halt_sentence(halt.rule, parameters, step=halt.step))

    @harmless
    def failed(self, error: str, trace: str) -> None:
        """The training ended by an exception.

        Args:
            error: Its type and message.
            trace: Its traceback.
        """
        if self.running:
            with self.safety.guard("last phase"):
                self._phases.close()
            moment = now()
            self._end(
                events.RunEnded(
                    time=moment, step=self._step, outcome="failed", error=redact(error), traceback=redact_trace(trace)
                )
            )

    def _end(self, event: events.RunEnded) -> None:
        self.running = False
        failures.unwatch(self)
        self._upkeep.end(event.time)
        self._recorder.record(event)
        self._recorder.close()
        self._let_go()

    def watches(self, model: Any) -> bool:
        """Tells whether this is the training of a model.

        Args:
            model: The model, unwrapped.
        """
        return self._hook is not None and self._hook.is_on(model)

    def _let_go(self) -> None:
        """Takes everything off the training, as far as it was put on."""
        while self._put_on:
            with self.safety.guard("letting go"):
                self._put_on.pop()()
