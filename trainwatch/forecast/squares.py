"""Least squares without a library: small matrices, and the distribution of their errors."""

from __future__ import annotations

import math
from typing import Final

_SINGULAR: Final = 1e-9


def student(freedom: int) -> float:
    """Returns about the 97.5th percentile of Student's distribution."""
    return 1.96 + 2.4 / freedom + 2.8 / freedom**2 if freedom > 1 else 12.7


def inverse_of(matrix: tuple[tuple[float, ...], ...]) -> tuple[tuple[float, ...], ...] | None:
    """Inverts a symmetric positive matrix of two or three rows; None when it is as good as singular."""
    size = len(matrix)
    # By Gauss and Jordan, on a matrix scaled to ones on its diagonal.
    if any(matrix[i][i] <= 0 for i in range(size)):
        return None
    scale = [1.0 / math.sqrt(matrix[i][i]) for i in range(size)]
    rows = [
        [matrix[i][j] * scale[i] * scale[j] for j in range(size)] + [float(i == j) for j in range(size)]
        for i in range(size)
    ]
    for column in range(size):
        pivot = max(range(column, size), key=lambda line: abs(rows[line][column]))
        if abs(rows[pivot][column]) < _SINGULAR:
            return None
        rows[column], rows[pivot] = rows[pivot], rows[column]
        factor = rows[column][column]
        rows[column] = [value / factor for value in rows[column]]
        for line in range(size):
            if line != column and rows[line][column]:
                factor = rows[line][column]
                rows[line] = [a - factor * b for a, b in zip(rows[line], rows[column], strict=True)]
    return tuple(tuple(rows[i][size + j] * scale[i] * scale[j] for j in range(size)) for i in range(size))
