"""One step after the other: begin, inspection, end, and what is recorded of each."""

from __future__ import annotations

import logging
import math
from typing import Final

from trainwatch import events
from trainwatch.rules import wording
from trainwatch.rules.autopsy import autopsy_sentence
from trainwatch.rules.nonfinite import NONFINITE_GRADIENT, NONFINITE_LOSS, evidence
from trainwatch.training.availability import Availability
from trainwatch.training.coroner import Coroner
from trainwatch.training.inspection import Inspection
from trainwatch.training.recorder import Recorder, now
from trainwatch.training.safety import Safety, harmless
from trainwatch.training.signals.flops import Flops
from trainwatch.training.signals.pacing import Pace, StepClock
from trainwatch.training.signals.phases import PhaseSignal
from trainwatch.training.signals.samples import SampleTrail
from trainwatch.training.step import StepObserver

logger = logging.getLogger("trainwatch")

_WARNINGS: Final = 3
"""Skipped steps that are logged; the others are on the run's page."""


class Stepping:
    """Records the steps of one rank.

    Args:
        safety: Where failures of ours are counted.
        recorder: Writes to the journal.
        observer: Has seen the step's forward and backward passes.
        inspection: Looks at each update before it is made.
        phases: Knows the phase, and the memory of the step.
        availability: Keeps what can be read in this setup.
        flops: Knows what a token costs.
        coroner: Looks into non-finite steps.
        trail: Follows the samples, where there is a data loader.
    """

    def __init__(
        self,
        *,
        safety: Safety,
        recorder: Recorder,
        observer: StepObserver,
        inspection: Inspection,
        phases: PhaseSignal,
        availability: Availability,
        flops: Flops,
        coroner: Coroner,
        trail: SampleTrail | None,
    ) -> None:
        self.safety = safety
        self._recorder = recorder
        self._observer = observer
        self._inspection = inspection
        self._phases = phases
        self._availability = availability
        self._flops = flops
        self._coroner = coroner
        self._trail = trail
        self._clock = StepClock()
        self._layers_pace = Pace()
        self._rate = math.nan
        self._loss_sum, self._loss_count = 0.0, 0
        self._warned = 0

    @harmless
    def begin(self, step: int) -> None:
        """A step begins.

        Args:
            step: Its number.
        """
        self._inspection.begin()
        self._phases.enter("train")
        self._observer.look_at_layers = self._layers_pace.due(step)
        self._observer.in_step = True
        self._observer.retention.clear()
        if self._trail is not None:
            self._trail.step_began()
        self._clock.begin()

    def inspect(self, step: int, learning_rate: float) -> None:
        """The optimizer is about to use the gradients. With several ranks this is a collective call.

        Args:
            step: The step's number.
            learning_rate: The rate of the update.
        """
        self._rate = learning_rate
        seen = self._inspection.inspect(step)
        if seen is not None:
            self._report_nonfinite(seen)
            self._look_into(seen)

    @harmless
    def _report_nonfinite(self, seen: events.NonFiniteSeen) -> None:
        self._recorder.record(seen)
        if seen.local and seen.action != "halt" and self._warned < _WARNINGS:
            self._warned += 1
            rule = NONFINITE_LOSS if seen.where == "loss" else NONFINITE_GRADIENT
            logger.warning("TrainWatch: %s", wording.sentence(rule, evidence(seen), step=seen.step))

    @harmless
    def _look_into(self, seen: events.NonFiniteSeen) -> None:
        with self._phases.aside():
            report = self._coroner.examine(seen, self._inspection.reading, self._rate)
        if report is None:
            return
        self._recorder.record(report)
        logger.warning("TrainWatch: %s", autopsy_sentence(report))

    @harmless
    def end(self, step: int, epoch: float | None) -> None:
        """A step is over.

        Args:
            step: Its number.
            epoch: Passes over the training set so far.
        """
        self._observer.in_step = False
        self._observer.retention.clear()
        values = self._inspection.read().values
        self._clock.end(values, self._observer.backward_ended_at)
        self._flops.add(values)
        moment = now()
        devices = self._phases.step()
        values["train/learning_rate"] = self._rate
        if epoch is not None:
            values["train/epoch"] = epoch
        verdict = self._inspection.verdict
        if verdict.skip or verdict.action == "scaler":
            values["train/skipped"] = 1.0
        if "train/loss" in values:
            self._loss_sum += values["train/loss"]
            self._loss_count += 1
        if self._observer.layers.measured:
            self._record_layers(moment, step, values)
        elif self._observer.look_at_layers:
            self._layers_pace.took(step, 0.0, values["train/step_seconds"])  # not to be had: not at every step again
        self._recorder.record(events.StepEnded(time=moment, step=step, values=values, devices=devices))
        self._record_availability(moment, step)

    def logged(self, values: events.Values) -> None:
        """The framework has logged values.

        Args:
            values: Under the catalogue's names.
        """
        self._availability.norm_is_logged |= "train/grad_norm" in values
        logged = values.get("train/loss_logged")
        if logged is not None:
            self._check_loss(logged)
            self._loss_sum, self._loss_count = 0.0, 0

    def _check_loss(self, logged: float) -> None:
        """Compares the model's own losses with what the framework has trained on since it last logged."""
        observer = self._observer
        if observer.tapped or observer.several_ranks or not self._loss_count or not math.isfinite(self._loss_sum):
            return
        # The Trainer rounds, and may add up in half precision.
        if not math.isclose(self._loss_sum / self._loss_count, logged, rel_tol=0.02, abs_tol=1e-3):
            observer.distrusted, observer.loss_is_exact = True, False

    def interrupted(self) -> None:
        """Something beside the steps is over, and is no waiting for data."""
        self._clock.ready()

    @harmless
    def _record_layers(self, moment: float, step: int, values: events.Values) -> None:
        layers, verdict = self._observer.layers, self._inspection.verdict
        event, more = layers.report(moment, step, updated=not (verdict.skip or verdict.action == "scaler"))
        self._recorder.record(event)
        values.update(more)
        if self._observer.look_at_layers:
            self._layers_pace.took(step, layers.seconds, values["train/step_seconds"])

    def _record_availability(self, moment: float, step: int) -> None:
        reading = self._inspection.reading
        if reading is None:
            return
        news = self._availability.saw(
            tapped=self._observer.tapped,
            loss="train/loss" in reading.values,
            gradients=reading.norm is not None,
            layers=self._observer.layers.known,
            samples=None if self._trail is None else self._trail.missing,
            passes="train/samples" in reading.values,
        )
        if news is not None:
            self._recorder.record(events.SignalsFound(time=moment, step=step, sources=news[0], missing=news[1]))
