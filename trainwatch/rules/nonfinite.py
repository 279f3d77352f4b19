"""NaN and Inf: in the loss, in the gradients, in evaluation.

In published runs 13 of 14 with a non-finite gradient recovered, so a single one whose step was skipped is a note. What
lasts is a disaster, and so is one that reached the weights.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from typing import Any, ClassVar, Final

from trainwatch.events import Action, Evaluated, Event, FindingRaised, Logged, NonFiniteSeen, Severity, StepEnded
from trainwatch.rules.base import SEVERITIES, Options, Rule

NONFINITE_LOSS: Final = "nonfinite_loss"
NONFINITE_GRADIENT: Final = "nonfinite_gradient"
NONFINITE_EVAL_LOSS: Final = "nonfinite_eval_loss"

PERSISTENT_IN_A_ROW: Final = 3
PERSISTENT_SHARE: Final = 0.05
PERSISTENT_WINDOW: Final = 200
STARTUP_STEPS: Final = 20
_WINDOW_BITS: Final = (1 << PERSISTENT_WINDOW) - 1


def label(value: float) -> str:
    """Names a non-finite value."""
    return "NaN" if math.isnan(value) else "Inf" if value > 0 else "-Inf"


def _count(value: float) -> int:
    """Reads a number of things; what is none counts for none."""
    return int(value) if math.isfinite(value) else 0


def is_persistent(in_a_row: int, recent: int) -> bool:
    """Tells whether non-finite steps are more than an accident.

    Args:
        in_a_row: Non-finite steps in a row, up to now.
        recent: Non-finite steps among the last :data:`PERSISTENT_WINDOW`.
    """
    return in_a_row >= PERSISTENT_IN_A_ROW or recent > PERSISTENT_SHARE * PERSISTENT_WINDOW


def evidence(event: NonFiniteSeen) -> dict[str, Any]:
    """Returns what the wording needs of a non-finite step."""
    return {
        "value": label(event.value),
        "action": event.action,
        "in_a_row": event.in_a_row,
        "recent": event.recent,
        "culprit": event.culprit,
        "micro_batches": event.micro_batches,
        "parameters": event.parameters,
        "parameter_count": event.parameter_count,
    }


class GuardedOptions(Options, frozen=True, kw_only=True):
    """Options of rules whose action is taken before the weights are touched, in the training process.

    Attributes:
        action: ``"skip"`` the update, and halt when that does not help; ``"halt"`` at the first; or only ``"notify"``.
    """

    action: Action = "skip"


class LogReader:
    """Non-finite values in one rank's log, for runs of which nothing better is known: imports, other trainers.

    Args:
        metric: The metric that is read.
    """

    __slots__ = ("_bits", "_finite", "_metric", "in_a_row", "severity", "since")

    def __init__(self, metric: str) -> None:
        self._metric = metric
        self._bits = 0
        self._finite = False
        self.in_a_row = 0
        self.since = 0
        self.severity: Severity | None = None

    @property
    def recent(self) -> int:
        """Non-finite values among the last :data:`PERSISTENT_WINDOW` that were logged."""
        return self._bits.bit_count()

    def take(self, event: Logged) -> float | None:
        """Returns the logged value when it is not finite; None otherwise, also when there is none."""
        value = event.values.get(self._metric)
        if value is None:
            return None
        finite = math.isfinite(value)
        self._bits = (self._bits << 1 | (not finite)) & _WINDOW_BITS
        if finite:
            self._finite = True
            self.in_a_row = 0
            return None
        if not self.in_a_row:
            self.since = event.step
        self.in_a_row += 1
        return value

    def is_startup(self, event: Logged) -> bool:
        """Tells whether this may still be the search of an fp16 loss scaler for its first scale."""
        loss = event.values.get("train/loss_logged", math.nan)
        alive = math.isfinite(loss) and loss != 0.0
        return alive and not self._finite and event.step - self.since < STARTUP_STEPS

    def evidence(self, value: float) -> dict[str, Any]:
        """Returns what the wording needs."""
        return {
            "value": label(value),
            "action": "recorded",
            "in_a_row": self.in_a_row,
            "recent": self.recent,
            "since": self.since,
            "logged": True,
        }


class NonFiniteGradient(Rule[GuardedOptions]):
    """The gradients of a training step were not finite.

    The guard tells it. The log does where no step was ever reported: then a value is a note, and critical when it
    lasts. A loss scaler begins with a scale that is too high, so that the first steps of a run are given time.
    """

    id = NONFINITE_GRADIENT
    listens: ClassVar[tuple[type[Event], ...]] = (NonFiniteSeen, StepEnded, Logged)
    options_type = GuardedOptions
    actions = ("notify", "skip", "halt")
    where = "gradient"
    metric = "train/grad_norm"

    def __init__(self, options: GuardedOptions) -> None:
        super().__init__(options)
        self._live: set[int | None] = set()
        self._logs: dict[int | None, LogReader] = {}

    def observe(self, event: Any, rank: int | None) -> Iterable[FindingRaised]:
        """See :class:`~trainwatch.rules.base.Rule`."""
        if type(event) is Logged:
            return () if rank in self._live else self._logged(event, rank)
        if rank not in self._live:
            self._live.add(rank)
        return self._step(event, rank) if type(event) is StepEnded else self._seen(event, rank)

    def _step(self, event: StepEnded, rank: int | None) -> Iterable[FindingRaised]:
        return ()

    def _seen(self, event: NonFiniteSeen, rank: int | None) -> Iterator[FindingRaised]:
        if event.where != self.where or event.action == "scaler":
            return
        if not event.local:
            return  # the rank whose data it was speaks for it; an all-reduce has shown it to everybody
        severity: Severity
        if event.action in ("recorded", "halt") or is_persistent(event.in_a_row, event.recent):
            severity = "critical"
        else:
            # A non-finite loss is a fault of the data or the model; a gradient alone is often a passing overflow.
            severity = "warning" if event.where == "loss" else "info"
        yield self.finding(event, severity, rank=rank, evidence=evidence(event))

    def _logged(self, event: Logged, rank: int | None) -> Iterator[FindingRaised]:
        log = self._logs.get(rank)
        if log is None:
            log = self._logs[rank] = LogReader(self.metric)
        value = log.take(event)
        if value is None:
            if log.severity is not None and not log.in_a_row:
                log.severity = None
                yield self.cleared(event, rank=rank)
            return
        severity = self._grade(log, event)
        if log.severity is None or SEVERITIES[severity] > SEVERITIES[log.severity]:
            log.severity = severity
            yield self.finding(event, severity, rank=rank, evidence=log.evidence(value))

    def _grade(self, log: LogReader, event: Logged) -> Severity:
        return "critical" if is_persistent(log.in_a_row, log.recent) and not log.is_startup(event) else "info"


class NonFiniteLoss(NonFiniteGradient):
    """The loss of a training step was not finite.

    A finished step tells it too where nobody guards the run (another trainer), and so does the log of an import.
    """

    id = NONFINITE_LOSS
    where = "loss"
    metric = "train/loss_logged"

    def __init__(self, options: GuardedOptions) -> None:
        super().__init__(options)
        self._guarded: dict[int | None, int] = {}
        self._in_a_row: dict[int | None, int] = {}

    def _seen(self, event: NonFiniteSeen, rank: int | None) -> Iterator[FindingRaised]:
        # The guard's own event comes before the step's and says more.
        self._guarded[rank] = event.step
        return super()._seen(event, rank)

    def _step(self, event: StepEnded, rank: int | None) -> Iterable[FindingRaised]:
        loss = event.values.get("train/loss", 0.0)
        if math.isfinite(loss):
            if self._in_a_row:
                self._in_a_row.pop(rank, None)
            return ()
        if self._guarded.get(rank) == event.step:
            return ()
        count = self._in_a_row[rank] = self._in_a_row.get(rank, 0) + 1
        seen = NonFiniteSeen(
            time=event.time, step=event.step, where="loss", value=loss, action="recorded", in_a_row=count
        )
        return (self.finding(event, "critical", rank=rank, evidence=evidence(seen)),)

    def _grade(self, log: LogReader, event: Logged) -> Severity:
        return "critical"  # what the filter let through is in the weights


class NonFiniteEvalLoss(Rule[Options]):
    """Evaluation batches have a NaN or Inf loss, which the Trainer's eval_loss leaves out."""

    id = NONFINITE_EVAL_LOSS
    listens = (Evaluated,)

    def __init__(self, options: Options) -> None:
        super().__init__(options)
        self._since: dict[int | None, int] = {}

    def observe(self, event: Evaluated, rank: int | None) -> Iterator[FindingRaised]:
        """See :class:`~trainwatch.rules.base.Rule`."""
        values = event.values
        bad = _count(values.get("eval/nonfinite_batches", 0.0))
        reported = values.get("eval/loss_reported")
        # Older Trainers gather one rank's NaN into what every rank reports: where batches were counted, they decide.
        counted = "eval/nonfinite_batches" in values
        if not bad and (counted or reported is None or math.isfinite(reported)):
            if self._since.pop(rank, None) is not None:
                yield self.cleared(event, rank=rank)
            return
        since = self._since.setdefault(rank, event.step)
        batches = _count(values.get("eval/batches", 0.0))
        shown = values.get("eval/loss", math.nan)
        yield self.finding(
            event,
            "critical" if bad >= batches else "warning",
            rank=rank,
            evidence={
                "value": label(shown) if not math.isfinite(shown) else "NaN",
                "nonfinite": bad,
                "batches": batches,
                "since": since,
                "reported": None if reported is None else f"{reported:.4g}",
            },
        )
