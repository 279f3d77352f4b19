"""Series of a run and their points."""

from __future__ import annotations

from pydantic import Field

from trainwatch.server.http.spelling import Model, Number


class SeriesInfo(Model):
    """A series of a run: a metric, on a rank and a device."""

    metric: str
    rank: int | None
    device: str
    unit: str
    points: int
    nonfinite: int
    last: Number
    last_step: int | None


class SeriesData(Model):
    """Points of a series, as columns; thinned so that minima, maxima and non-finite points survive."""

    metric: str
    rank: int | None
    device: str
    step: list[int] = Field(description="-1 where the step is not known.")
    time: list[float]
    value: list[Number]


class RawPoints(Model):
    """A page of a series' points at full resolution, as columns, in the order of their arrival."""

    metric: str
    rank: int | None
    device: str
    total: int = Field(description="How many points the series has.")
    first: int = Field(description="Position of this page's first point in the series.")
    next: int | None = Field(description="Position of the next page's first point; null: this is the last page.")
    step: list[int] = Field(description="-1 where the step is not known.")
    time: list[float]
    value: list[Number]
