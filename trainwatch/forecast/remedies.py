"""What would help, and how much: only what follows from the fit, nothing from hearsay.

A remedy whose saving cannot be computed from what was measured is proposed without a figure.
"""

from __future__ import annotations

from typing import Final, Literal

import msgspec

from trainwatch.forecast.length import Batch, LengthFit

RemedyKind = Literal[
    "length_cap",
    "group_by_length",
    "smaller_batch",
    "gradient_checkpointing",
    "eval_accumulation_steps",
    "expandable_segments",
    "free_device",
    "find_leak",
]

_STEPS_OF_SEARCH: Final = 40


class Remedy(msgspec.Struct, frozen=True):
    """One thing to do.

    Attributes:
        kind: Which.
        saves: Bytes of the highest peak that it saves; None where nothing measured tells.
        value: What to set it to, where that is a number: a length, a batch size.
        share: What else it does, as a share: of samples that a cap cuts, of tokens that are padding.
    """

    kind: RemedyKind
    saves: float | None = None
    value: int | None = None
    share: float | None = None


def longest_that_fits(fit: LengthFit, samples: int, length: float, limit: float) -> int | None:
    """Returns the length up to which a batch fits with its whole interval.

    Args:
        fit: What batches need.
        samples: How many samples a batch has.
        length: A length that does not fit.
        limit: Bytes.

    Returns:
        None where not even the batches seen would.
    """
    low, high = 0.0, float(length)
    for _ in range(_STEPS_OF_SEARCH):
        if high - low < 1:
            break
        middle = 0.5 * (low + high)
        prediction = fit.predict(Batch(samples * middle, middle))
        if prediction is None:
            return None
        low, high = (middle, high) if prediction.high <= limit else (low, middle)
    return int(low) if low >= 1 else None


def length_cap(fit: LengthFit, samples: int, longest: float, cap: int, share: float) -> Remedy | None:
    """Cuts, or leaves out, what is longer than a cap.

    Args:
        fit: What batches need.
        samples: How many samples a batch has.
        longest: The longest length that comes.
        cap: The cap.
        share: Share of the samples that it cuts.
    """
    saves = _difference(fit, Batch(samples * longest, longest), Batch(samples * float(cap), float(cap)))
    return None if saves is None else Remedy("length_cap", saves, cap, share)


def smaller_batch(fit: LengthFit, samples: int, longest: float) -> Remedy | None:
    """Half the batch, with twice the accumulation: the same mathematics, half the activations.

    Args:
        fit: What batches need.
        samples: How many samples a batch has.
        longest: The longest length that comes.
    """
    if samples < 2:
        return None
    half = samples // 2
    saves = _difference(fit, Batch(samples * longest, longest), Batch(half * longest, longest))
    return None if saves is None else Remedy("smaller_batch", saves, half)


def _difference(fit: LengthFit, now: Batch, then: Batch) -> float | None:
    before, after = fit.predict(now), fit.predict(then)
    if before is None or after is None or after.peak >= before.peak:
        return None
    return before.peak - after.peak
