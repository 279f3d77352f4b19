"""The first event of a rank: who it is, what it trains, with what, and where."""

from __future__ import annotations

from functools import partial
from typing import Any

import msgspec
import psutil

from trainwatch import events
from trainwatch.probes.visible import UUIDS
from trainwatch.settings import Settings
from trainwatch.training.describe import describe_datasets, describe_environment, describe_model
from trainwatch.training.describe.order import Plan, order_of
from trainwatch.training.facts import Facts
from trainwatch.training.identity import Identity
from trainwatch.training.recorder import now
from trainwatch.training.redaction import redact
from trainwatch.training.safety import Safety


def introduce(
    settings: Settings,
    identity: Identity,
    facts: Facts,
    model: Any,
    *,
    policy: events.Policy,
    tapped: bool,
    device_uuids: dict[str, str],
    safety: Safety,
) -> events.RunStarted:
    """Describes a rank at the begin of its training, without its secrets.

    Args:
        settings: Settings of this process.
        identity: Who it is in the run.
        facts: What the framework knows.
        model: The model, unwrapped.
        policy: What the guard does.
        tapped: The loss is read where it is trained on.
        device_uuids: Its devices, as the driver names them.
        safety: Where failures of ours are counted.
    """
    process = psutil.Process()
    environment = {**describe_environment(model, safety), UUIDS: device_uuids}
    if facts.origin is not None:
        environment["resumed"] = redact(msgspec.to_builtins(facts.origin))
    schedule = partial(order_of, Plan(facts.dataloader, facts.first_step, facts.max_steps, facts.accumulation))
    return events.RunStarted(
        time=now(),
        name=redact(settings.run_name or facts.name or identity.run),
        world_size=identity.world_size,
        local_rank=identity.local_rank,
        pid=process.pid,
        process_started=process.create_time(),
        first_step=facts.first_step,
        max_steps=facts.max_steps,
        policy=policy,
        rules=facts.rules,
        loss_source="loss function" if tapped else "model output",
        output_dir=redact(facts.output_dir),
        arguments=redact(facts.arguments),
        environment=environment,
        model=describe_model(model),
        dataset=describe_datasets(facts.training_set, facts.evaluation_set, safety, schedule),
    )
