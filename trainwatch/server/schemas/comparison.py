"""What the API says of one run beside another."""

from __future__ import annotations

from pydantic import Field

from trainwatch.events import Severity
from trainwatch.server.http.spelling import Model, Number


class SetupDifference(Model):
    """Something with which one run was started and the other was not."""

    key: str = Field(description="Where it stands: arguments.per_device_train_batch_size.")
    severity: Severity = Field(description="warning for what changes trainings; info for the rest.")
    ours: str | None = Field(description="As text, shortened; null where the run has none.")
    theirs: str | None


class CurveDifference(Model):
    """How the two runs' curves of one quantity lie to each other."""

    metric: str
    title: str
    unit: str
    device: str = Field(description="Empty for what belongs to no device.")
    common: int = Field(description="How many steps both runs have.")
    step: int | None = Field(description="The first step from which on they stay apart; null when they don't part.")
    ours: Number = Field(description="The run's median from there on; over all common steps when they don't part.")
    theirs: Number


class Comparison(Model):
    """What differs between a run and another one."""

    other: str
    other_name: str
    setup: list[SetupDifference]
    curves: list[CurveDifference]
