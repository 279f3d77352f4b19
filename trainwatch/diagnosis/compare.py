"""Two runs beside each other: in what they were started differently, and from which step on their curves part."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Final

import msgspec

if TYPE_CHECKING:
    from numpy.typing import NDArray

FEWEST: Final = 5
"""Common steps below which nothing is said."""
_NEAR: Final = 0.02
"""A relative difference that is none: caches, other batches of the same lengths."""
_WINDOW: Final = 5
_LASTING: Final = 0.9
"""Share of the steps behind a parting at which the curves must be apart."""


class Parting(msgspec.Struct, frozen=True, kw_only=True):
    """How two curves of the same quantity lie to each other.

    Attributes:
        common: How many steps both have.
        step: The first step from which on they stay apart; None when they don't part.
        ours: The first run's median from there on (over all common steps when they don't part); NaN and infinite
            values, if they are the more.
        theirs: The other run's.
    """

    common: int
    step: int | None
    ours: float
    theirs: float


def parting(
    steps: NDArray[Any], values: NDArray[Any], other_steps: NDArray[Any], other_values: NDArray[Any]
) -> Parting | None:
    """Finds where two curves part for good.

    Each curve is smoothed by a running median, and what it jumps from step to step is taken for its noise: they are
    apart where they differ by more than twice that, and by more than 2 %.

    Args:
        steps: Of the first curve, ascending, each once.
        values: Its values; NaN and infinite ones are apart from every finite one.
        other_steps: Of the second curve.
        other_values: Its values.

    Returns:
        None for fewer than :data:`FEWEST` common steps.
    """
    import numpy as np

    common, here, there = np.intersect1d(steps, other_steps, assume_unique=False, return_indices=True)
    if len(common) < FEWEST:
        return None
    ours, theirs = (np.asarray(v, dtype=float) for v in (values[here], other_values[there]))
    apart = _apart(_smooth(ours), _smooth(theirs), max(_NEAR, 2 * _noise(ours), 2 * _noise(theirs)))
    behind = np.cumsum(apart[::-1])[::-1] / np.arange(len(apart), 0, -1)
    begins = np.flatnonzero(apart & (behind >= _LASTING))
    # One or two steps at the very end are no parting, unless one of the two is not even finite any more.
    broken = np.isfinite(ours) != np.isfinite(theirs)
    lasting = [int(begin) for begin in begins if len(apart) - begin >= FEWEST or broken[begin:].all()]
    first = lasting[0] if lasting else None
    with np.errstate(all="ignore"):
        # Where the curves don't part, a value that is not finite is an exception.
        median = np.nanmedian if first is None and np.isfinite(ours).any() and np.isfinite(theirs).any() else np.median
        medians = [float(median(side[first or 0 :])) for side in (ours, theirs)]
    return Parting(
        common=len(common), step=None if first is None else int(common[first]), ours=medians[0], theirs=medians[1]
    )


def _smooth(values: NDArray[Any]) -> NDArray[Any]:
    import numpy as np

    half = _WINDOW // 2
    # At the begin only what comes after counts, so that curves that part at the first step do so there.
    padded = np.concatenate([np.full(half, np.nan), values, np.full(half, np.nan)])
    windows = np.lib.stride_tricks.sliding_window_view(padded, _WINDOW)
    finite = np.isfinite(windows)
    filled = np.where(finite, windows, np.nan)
    known = finite.any(axis=1)
    smooth: NDArray[Any] = np.full(len(values), np.nan)
    with np.errstate(all="ignore"):
        smooth[known] = np.nanmedian(filled[known], axis=1)
    smooth[~np.isfinite(values)] = values[~np.isfinite(values)]
    return smooth


def _noise(values: NDArray[Any]) -> float:
    import numpy as np

    finite = values[np.isfinite(values)]
    if len(finite) < 2:
        return 0.0
    with np.errstate(all="ignore"):
        scale, jump = float(np.median(np.abs(finite))), float(np.median(np.abs(np.diff(finite))))
    return jump / scale if scale > 0 and math.isfinite(jump / scale) else 0.0


def _apart(ours: NDArray[Any], theirs: NDArray[Any], tolerance: float) -> NDArray[Any]:
    import numpy as np

    finite, other_finite = np.isfinite(ours), np.isfinite(theirs)
    both = finite & other_finite
    result: NDArray[Any] = np.not_equal(finite, other_finite)
    scale = np.maximum(np.abs(ours[both]), np.abs(theirs[both]))
    with np.errstate(all="ignore"):
        difference = np.where(scale > 0, np.abs(ours[both] - theirs[both]) / scale, 0.0)
    result[both] = difference > tolerance
    return result
