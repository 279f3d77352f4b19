"""Padding: tokens that cost time and memory and teach nothing."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Any, Final

from trainwatch.events import FindingRaised, RunStarted, Severity, StepEnded
from trainwatch.rules.base import Count, Options, Rule, Share, is_first

# A window that was found wasteful must become clearly better before that is over.
_BETTER: Final = 0.85
_MOST_TOKENS: Final = 1e15


class PaddingOptions(Options, frozen=True, kw_only=True):
    """Options of :class:`PaddingWaste`.

    Attributes:
        steps: How many steps count.
        share: From which share of padding on it is a note.
        bad: From which share on it is a warning.
    """

    steps: Count = 100
    share: Share = 0.3
    bad: Share = 0.75


class PaddingWaste(Rule[PaddingOptions]):
    """Much of what the model computes is padding."""

    id = "padding_waste"
    listens = (StepEnded, RunStarted)
    options_type = PaddingOptions
    actions = ("notify",)

    def __init__(self, options: PaddingOptions) -> None:
        super().__init__(options)
        self._steps: deque[tuple[float, float, float]] = deque()
        self._tokens = self._padded = 0.0
        self._same_length = 0
        self._grouped = False
        self._said: Severity | None = None

    def observe(self, event: Any, rank: int | None) -> Iterable[FindingRaised]:
        """See :class:`~trainwatch.rules.base.Rule`."""
        if not is_first(rank):
            return ()
        if type(event) is RunStarted:
            self._begin(event)
            return ()
        values = event.values
        padded = values.get("train/padded_tokens", 0.0)
        # An absurd size (NaN, Inf) would stay in the sums for ever.
        if not 0 < padded < _MOST_TOKENS:
            return ()
        tokens = values.get("train/tokens", padded)
        if not 0 <= tokens <= padded:
            return ()
        if not self._add(tokens, padded, values.get("train/batch_length", 0.0)):
            return ()
        return self._judge(event)

    def _begin(self, event: RunStarted) -> None:
        self._steps.clear()
        self._tokens = self._padded = 0.0
        self._same_length = 0
        arguments = event.arguments
        # transformers 5 renamed the argument.
        self._grouped = bool(
            arguments.get("group_by_length") or arguments.get("train_sampling_strategy") == "group_by_length"
        )

    def _add(self, tokens: float, padded: float, length: float) -> bool:
        steps = self._steps
        self._same_length = self._same_length + 1 if steps and steps[-1][2] == length else 1
        steps.append((tokens, padded, length))
        self._tokens += tokens
        self._padded += padded
        while len(steps) > self.options.steps:
            old_tokens, old_padded, _ = steps.popleft()
            self._tokens -= old_tokens
            self._padded -= old_padded
        return len(steps) == self.options.steps

    def _judge(self, event: StepEnded) -> Iterable[FindingRaised]:
        share = 1 - self._tokens / self._padded
        said, options = self._said, self.options
        if share < options.share:
            if said is not None and share < _BETTER * options.share:
                self._said = None
                return (self.cleared(event),)
            return ()
        severity: Severity = "warning" if share >= options.bad else "info"
        if said == severity or said == "warning":
            return ()
        self._said = severity
        evidence = {
            "share": share,
            "padding": self._padded - self._tokens,
            "tokens": self._padded,
            "steps": len(self._steps),
            "grouped": self._grouped,
            # Every batch of the window has one and the same length: padded to a fixed one.
            "fixed": self._same_length >= len(self._steps),
        }
        return (self.finding(event, severity, evidence=evidence),)
