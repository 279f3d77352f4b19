"""What all events share, and the words that their fields take."""

from __future__ import annotations

from typing import Any, Final, Literal

import msgspec

SCHEMA_VERSION: Final = 1

Phase = Literal["load", "train", "eval", "save", "idle"]
Severity = Literal["info", "warning", "critical"]
AlertState = Literal["pending", "firing", "resolved"]
Action = Literal["notify", "checkpoint", "halt", "skip"]
RuleSettings = dict[str, dict[str, Any]]
"""Rule id to its options, by their names in ``trainwatch.toml``; see :mod:`trainwatch.rules.base`."""
Outcome = Literal["finished", "halted", "failed"]
Policy = Literal["protect", "halt", "record"]
CheckpointReason = Literal["schedule", "halt", "command"]
Cause = Literal[
    "no_supervised_tokens",
    "label_out_of_range",
    "input_out_of_range",
    "nonfinite_input",
    "nonfinite_weights",
    "half_overflow",
    "module_forward",
    "loss_function",
    "module_backward",
    "not_reproduced",
    "not_examined",
]
"""What an autopsy names; :mod:`trainwatch.rules.wording` has the sentence of each."""

Values = dict[str, float]
"""Metric name (see :mod:`trainwatch.metrics`) to value; NaN and ±Inf are legal and kept."""

DeviceValues = dict[str, Values]
"""Device name (``"cuda:0"``, ``"cpu"``, ``"host"``) to the values read on it."""


class Event(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="type"):
    """Base of all events.

    Attributes:
        time: When it happened, in Unix seconds.
    """

    time: float
