"""The Hugging Face callback: translates Trainer events, nothing else."""

from __future__ import annotations

import copy
import json
import logging
import math
import os
import weakref
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from trainwatch import settings
from trainwatch.events import Policy, RuleSettings, Values
from trainwatch.metrics import logged_values
from trainwatch.training import failures
from trainwatch.training.facts import Facts
from trainwatch.training.guard import Guard
from trainwatch.training.identity import identify, meet, proposal
from trainwatch.training.resume import Origin, run_to_continue
from trainwatch.training.rule_settings import collect, policy_for
from trainwatch.training.safety import Safety, harmless
from trainwatch.training.watcher import Watcher

logger = logging.getLogger("trainwatch")

_OURS_IS_BETTER = frozenset({"grad_norm", "learning_rate", "epoch", "step"})
_NUMBERS = (int, float)


class TrainWatchCallback(TrainerCallback):
    """Watches a Trainer run: ``Trainer(..., callbacks=[TrainWatchCallback()])``.

    It records loss, gradient norms, memory and phases of every rank to a journal on disk, from which a separate process
    ships them to the server (``trainwatch serve``), and keeps non-finite gradients away from the weights.

    Args:
        on_nonfinite: What to do when the loss or a gradient is NaN or Inf. ``"protect"``: skip that update, and halt
            when it happens 3 steps in a row or in more than 5 % of the last 200. ``"halt"``: halt at the first.
            ``"record"``: only record it. To halt is to skip the update, save a checkpoint and stop on all ranks. By
            default what `rules` or ``trainwatch.toml`` say, else ``"protect"``.
        rules: Options of rules, by the rule's id: ``{"loss_spike": {"action": "halt"}}``. They go before those in
            ``trainwatch.toml``. What is wrong with them is said in the log when training begins; the rest holds.

    Raises:
        ValueError: `on_nonfinite` is none of these.

    Attributes:
        policy: What it was told to do about non-finite values; None for nothing.
        rules: The options of rules that it was given.
        resumed_from: What ``Trainer.train`` was told to resume from, where that is known.
    """

    def __init__(
        self, on_nonfinite: Policy | None = None, rules: Mapping[str, Mapping[str, Any]] | None = None
    ) -> None:
        Guard(on_nonfinite or "protect")  # says now, and not when training begins, that a policy does not exist
        self.safety = Safety()
        self.policy = on_nonfinite
        self.rules = rules
        self._watcher: Watcher | None = None
        self._trainer: weakref.ref[Any] | None = None
        self.resumed_from: Any = None

    def attach(self, trainer: Any) -> None:
        """Hands the Trainer over, so that the loss is read where it is trained on; see :func:`trainwatch.watch`.

        Args:
            trainer: The Trainer that this callback belongs to.
        """
        self._trainer = weakref.ref(trainer)

    @harmless
    def failed(self, error: BaseException) -> None:
        """The training ended by an exception; called by :func:`trainwatch.watch`, since the Trainer does not tell.

        Args:
            error: What was raised.
        """
        if self._watcher is not None and self._watcher.running:
            failures.tell([self._watcher], error)

    def __reduce__(self) -> tuple[type[TrainWatchCallback], tuple[Any, ...]]:
        return TrainWatchCallback, (self.policy, self.rules)

    def __deepcopy__(self, memo: dict[int, Any]) -> TrainWatchCallback:
        return TrainWatchCallback(self.policy, copy.deepcopy(self.rules, memo))

    @harmless
    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Begins to watch; with several ranks, where they agree on the run's id."""
        if self._watcher is not None and self._watcher.running:
            self._watcher.failed("the training was begun anew before it had ended", "")
        self._watcher = None
        configuration = self._configuration()
        # Every rank meets the others, also one that is disabled or that fails: nobody may wait for it in vain.
        origin = self._origin(configuration, args, state) if configuration is not None else None
        continued = origin.run if origin is not None and origin.continued else ""
        proposals = meet(None if configuration is None else self._proposal(configuration, continued))
        agreed = next((proposed for proposed in proposals if proposed), None)
        watcher = self._start(configuration, agreed, origin, args, state, kwargs) if configuration and agreed else None
        running = watcher is not None and watcher.running
        together = all(proposals) and all(meet("running" if running else None))
        if watcher is not None:
            watcher.settle(together)
            self._watcher = watcher

    @harmless
    def _start(
        self,
        configuration: settings.Settings,
        agreed: str,
        origin: Origin | None,
        args: TrainingArguments,
        state: TrainerState,
        kwargs: dict[str, Any],
    ) -> Watcher:
        run, rules = json.loads(agreed)
        policy, rules = policy_for(self.policy, rules)
        watcher = Watcher(configuration, Guard(policy), self.safety)
        trainer = self._trainer() if self._trainer is not None else None
        identity = identify(configuration, run)
        dataloader = kwargs.get("train_dataloader")
        facts = msgspec.structs.replace(
            _facts(args, state),
            origin=origin,
            rules=rules,
            trainer=trainer,
            dataloader=dataloader,
            training_set=getattr(dataloader, "dataset", None),
            evaluation_set=getattr(trainer, "eval_dataset", None),
        )
        watcher.start(kwargs["model"], kwargs.get("optimizer"), facts, identity)
        return watcher

    @harmless
    def _origin(self, configuration: settings.Settings, args: TrainingArguments, state: TrainerState) -> Origin | None:
        checkpoint = self.resumed_from or args.resume_from_checkpoint
        return run_to_continue(configuration, state.global_step, args.output_dir or ".", checkpoint)

    @harmless
    def _configuration(self) -> settings.Settings | None:
        configuration = settings.load()
        return None if configuration.disabled else configuration

    @harmless
    def _proposal(self, configuration: settings.Settings, continued: str) -> str:
        # One rank's settings of rules hold for all: ranks that judge differently would not stop together.
        return json.dumps([proposal(configuration, continued), self._rules(configuration) or {}])

    @harmless
    def _rules(self, configuration: settings.Settings) -> RuleSettings:
        rules, problems = collect(self.rules, configuration, Path.cwd())
        for problem in problems:
            logger.warning("TrainWatch: %s", problem)
        return rules

    @harmless
    def on_epoch_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Begins a pass over the training set."""
        if self._watcher is not None:
            self._watcher.epoch_began()

    @harmless
    def on_step_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Begins a step."""
        if self._watcher is not None:
            self._watcher.step_began()

    @harmless
    def on_pre_optimizer_step(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Lets the guard look before the weights are touched."""
        if self._watcher is not None:
            optimizer = kwargs.get("optimizer")
            rate = optimizer.param_groups[0]["lr"] if optimizer is not None else math.nan
            self._watcher.before_update(state.global_step + 1, float(rate))

    @harmless
    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Records the step, and halts the run when that was decided."""
        if self._watcher is None:
            return
        wish = self._watcher.step_ended(state.global_step, state.epoch)
        if wish.save:
            control.should_save = True
        if wish.stop:
            control.should_training_stop = True
            control.should_evaluate = False  # an evaluation can take an hour, and nothing is learned from it now
        self._next_phase(control)

    @harmless
    def on_epoch_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Sees whether an evaluation or a checkpoint comes now; none does after a halt, which has saved its own."""
        if self._watcher is not None and self._watcher.halted:
            control.should_evaluate = control.should_save = False
        self._next_phase(control)

    @harmless
    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        """Records what the Trainer logs."""
        if self._watcher is not None and logs:
            values = _values(logs, "train/", without="eval_")
            norm = logs.get("grad_norm")
            if isinstance(norm, _NUMBERS) and not self._watcher.measures_gradients:
                values["train/grad_norm"] = float(norm)
            self._watcher.logged(state.global_step, values)

    @harmless
    def on_evaluate(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        metrics: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        """Records an evaluation."""
        if self._watcher is not None:
            self._watcher.evaluated(state.global_step, _values(metrics or {}, "eval/"))
            if control.should_save:
                self._watcher.saving_began()

    @harmless
    def on_predict(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, metrics: Any = None, **kwargs: Any
    ) -> None:
        """Forgets what a prediction let through the model: it is no evaluation."""
        if self._watcher is not None:
            self._watcher.predicted()

    @harmless
    def on_save(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Records a checkpoint."""
        if self._watcher is not None:
            folder = os.path.join(os.path.abspath(args.output_dir or "."), f"checkpoint-{state.global_step}")
            self._watcher.saved(state.global_step, folder)

    @harmless
    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Ends."""
        if self._watcher is not None:
            self._watcher.ended(state.global_step)

    def _next_phase(self, control: TrainerControl) -> None:
        # The Trainer has no event before an evaluation or a save, but by now it is decided.
        if self._watcher is None:
            return
        if control.should_evaluate:
            self._watcher.evaluation_began()
        elif control.should_save:
            self._watcher.saving_began()


def _facts(args: TrainingArguments, state: TrainerState) -> Facts:
    several = getattr(args, "average_tokens_across_devices", False) and args.world_size > 1
    return Facts(
        name=args.run_name or os.path.basename(os.path.normpath(args.output_dir or "")),
        first_step=state.global_step,
        max_steps=state.max_steps,
        is_last_micro_batch=_synchronisation(),
        devices=args.n_gpu,
        half=bool(args.bf16 or args.fp16),
        accumulation=args.gradient_accumulation_steps,
        normalised_scale=float(args.world_size) if several else 1.0,
        arguments=args.to_dict(),  # type: ignore[no-untyped-call]
        output_dir=os.path.abspath(args.output_dir or "."),
    )


def _synchronisation() -> Callable[[], bool]:
    """Returns what tells whether the running backward pass is the step's last; the Trainer lets accelerate know."""
    from accelerate.state import GradientState

    state = GradientState()
    return lambda: bool(state.sync_gradients)


def _values(logs: dict[str, Any], prefix: str, without: str | None = None) -> Values:
    """Puts the Trainer's values under the catalogue's names.

    Args:
        logs: What the Trainer logs; of it the numbers count, but for those that TrainWatch measures itself.
        prefix: See :func:`~trainwatch.metrics.logged_values`.
        without: Keys that begin like this are left out.
    """
    known = {
        key: float(value)
        for key, value in logs.items()
        if isinstance(value, _NUMBERS)
        and key not in _OURS_IS_BETTER
        and not (without is not None and key.startswith(without))
    }
    return logged_values(known, prefix)
