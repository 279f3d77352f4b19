"""What the API says of how long data is kept."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, model_validator

from trainwatch.server.http.spelling import Model

_Days = Annotated[float | None, Field(default=None, gt=0, le=36_500, allow_inf_nan=False)]


class RetentionRequest(Model):
    """Days after a run was heard last; absent or null: for ever. Runs that somebody still ships for lose nothing."""

    raw: _Days = Field(default=None, description="Every single point; after that curves with all their extremes.")
    rollups: _Days = Field(default=None, description="Curves at all; after that a run's summary and alerts.")
    runs: _Days = Field(default=None, description="Runs at all.")

    @model_validator(mode="after")
    def _in_order(self) -> RetentionRequest:
        given = [days for days in (self.raw, self.rollups, self.runs) if days is not None]
        if given != sorted(given):
            raise ValueError("points go before curves, and curves before runs: raw ≤ rollups ≤ runs")
        return self


class Retention(RetentionRequest):
    """How long a project keeps its data."""

    project: str
    changed_at: float | None = Field(description="Unix seconds; null when it was never set.")
