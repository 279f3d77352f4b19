"""Channels, what they were told, and what nobody wants to hear of."""

from __future__ import annotations

import math
from typing import Annotated, Any, Final

from fastapi import APIRouter, HTTPException, Query
from sqlalchemy import Row

from trainwatch.server.access import Principal, PrincipalDep
from trainwatch.server.delivery.registry import KINDS
from trainwatch.server.schemas import delivery as schemas
from trainwatch.server.services import NO_SUCH_RUN, Id, Services, ServicesDep, known_run
from trainwatch.server.store import channels as store
from trainwatch.server.store import delivery_record
from trainwatch.server.store.outbox import JOB
from trainwatch.settings import is_name

router = APIRouter(tags=["alerts"])
_ALL: Final = ""
"""The project of channels that are told of all projects."""
Limit = Annotated[int, Query(ge=1, le=500)]


@router.get("/projects/{project}/channels")
def channels(services: ServicesDep, project: str) -> schemas.ChannelList:
    """Returns the project's own channels."""
    return _list(services, _named(project))


@router.post("/projects/{project}/channels", status_code=201)
def add_channel(services: ServicesDep, project: str, wanted: schemas.ChannelRequest) -> schemas.Channel:
    """Adds a channel that is told of the project's alerts from now on."""
    return _add(services, _named(project), wanted)


@router.put("/projects/{project}/channels/{channel}")
def change_channel(services: ServicesDep, project: str, channel: Id, wanted: schemas.ChannelRequest) -> schemas.Channel:
    """Changes a channel, and enables one that the server disabled."""
    return _change(services, _named(project), channel, wanted)


@router.delete("/projects/{project}/channels/{channel}", status_code=204)
def remove_channel(services: ServicesDep, project: str, channel: Id) -> None:
    """Removes a channel with the record of what it was told."""
    _remove(services, _named(project), channel)


@router.post("/projects/{project}/channels/{channel}/test")
def test_channel(services: ServicesDep, project: str, channel: Id) -> schemas.ChannelTest:
    """Sends a test message now, and answers with what happened."""
    return _test(services, _named(project), channel)


@router.get("/projects/{project}/channels/{channel}/deliveries")
def channel_deliveries(services: ServicesDep, project: str, channel: Id, limit: Limit = 50) -> schemas.DeliveryList:
    """Returns what the channel was told or is to be told, the newest first."""
    return _deliveries(services, _named(project), channel, limit)


@router.get("/admin/channels")
def channels_for_all(services: ServicesDep) -> schemas.ChannelList:
    """Returns the channels that are told of all projects."""
    return _list(services, _ALL)


@router.post("/admin/channels", status_code=201)
def add_channel_for_all(services: ServicesDep, wanted: schemas.ChannelRequest) -> schemas.Channel:
    """Adds a channel that is told of the alerts of all projects from now on."""
    return _add(services, _ALL, wanted)


@router.put("/admin/channels/{channel}")
def change_channel_for_all(services: ServicesDep, channel: Id, wanted: schemas.ChannelRequest) -> schemas.Channel:
    """Changes a channel, and enables one that the server disabled."""
    return _change(services, _ALL, channel, wanted)


@router.delete("/admin/channels/{channel}", status_code=204)
def remove_channel_for_all(services: ServicesDep, channel: Id) -> None:
    """Removes a channel with the record of what it was told."""
    _remove(services, _ALL, channel)


@router.post("/admin/channels/{channel}/test")
def test_channel_for_all(services: ServicesDep, channel: Id) -> schemas.ChannelTest:
    """Sends a test message now, and answers with what happened."""
    return _test(services, _ALL, channel)


@router.get("/admin/channels/{channel}/deliveries")
def channel_for_all_deliveries(services: ServicesDep, channel: Id, limit: Limit = 50) -> schemas.DeliveryList:
    """Returns what the channel was told or is to be told, the newest first."""
    return _deliveries(services, _ALL, channel, limit)


@router.get("/runs/{run}/alerts/{alert}/deliveries", responses=NO_SUCH_RUN)
def alert_deliveries(
    services: ServicesDep, principal: PrincipalDep, run: str, alert: Id, limit: Limit = 50
) -> schemas.DeliveryList:
    """Returns where an alert was told, the newest first. What receivers answered, only their channel's admin sees."""
    with services.database.read() as connection:
        known_run(connection, run)
        found = delivery_record.listed(connection, run=run, alert=alert, limit=limit)
    return schemas.DeliveryList(deliveries=[_seen_by(principal, one) for one in found])


@router.get("/projects/{project}/silences")
def silences(services: ServicesDep, project: str) -> schemas.ProjectSilences:
    """Returns what nobody in the project wants to hear of just now."""
    with services.database.read() as connection:
        found = store.silences_of(connection, _named(project), services.clock())
    return schemas.ProjectSilences(silences=[_silence(row) for row in found])


@router.post("/projects/{project}/silences", status_code=201)
def add_silence(services: ServicesDep, project: str, wanted: schemas.ProjectSilenceRequest) -> schemas.ProjectSilence:
    """Silences the project's alerts of some rules or runs: they are shown, and nobody is told."""
    now = services.clock()
    values = {
        "project": _named(project),
        "rule": wanted.rule,
        "run": wanted.run,
        "reason": wanted.reason,
        "until": math.inf if wanted.hours is None else now + wanted.hours * 3600,
        "created_at": now,
    }
    with services.database.write() as connection:
        return _silence(store.add_silence(connection, values))


@router.delete("/projects/{project}/silences/{silence}", status_code=204)
def remove_silence(services: ServicesDep, project: str, silence: Id) -> None:
    """Ends a silence."""
    with services.database.write() as connection:
        if not store.remove_silence(connection, _named(project), silence):
            raise HTTPException(404, f"The project has no silence {silence}.")


def _named(project: str) -> str:
    if not is_name(project):
        raise HTTPException(404, f"There can be no project {project[:100]!r}.")
    return project


def _list(services: Services, project: str) -> schemas.ChannelList:
    with services.database.read() as connection:
        found = store.of_project(connection, project)
    return schemas.ChannelList(channels=[_channel(one.channel, one.waiting) for one in found])


def _add(services: Services, project: str, wanted: schemas.ChannelRequest) -> schemas.Channel:
    if wanted.url is None:
        raise HTTPException(422, "A new channel needs an address: url.")
    secret = _secret(wanted, {})
    with services.database.write() as connection:
        number = store.add(connection, {"project": project, **_columns(wanted, secret)}, services.clock())
        row = store.get(connection, project, number)
    assert row is not None
    return _channel(row, 0)


def _change(services: Services, project: str, channel: int, wanted: schemas.ChannelRequest) -> schemas.Channel:
    with services.database.write() as connection:
        before = _known(store.get(connection, project, channel), channel)
        if wanted.kind != before.kind and wanted.url is None:
            raise HTTPException(422, "A channel of another kind needs another address: url.")
        secret = _secret(wanted, before.secret if wanted.kind == before.kind else {})
        # Whoever changes a channel has seen why it was disabled, and says whether it is to work again.
        values = {**_columns(wanted, secret), "disabled_reason": "" if wanted.enabled else before.disabled_reason}
        store.change(connection, channel, values, services.clock())
        row = _known(store.get(connection, project, channel), channel)
        waiting = next(one.waiting for one in store.of_project(connection, project) if one.channel.id == channel)
    services.wake(JOB)
    return _channel(row, waiting)


def _remove(services: Services, project: str, channel: int) -> None:
    with services.database.write() as connection:
        if not store.remove(connection, project, channel):
            raise HTTPException(404, f"There is no channel {channel}.")


def _test(services: Services, project: str, channel: int) -> schemas.ChannelTest:
    tried = services.delivery.test(project, channel)
    if tried is None:
        raise HTTPException(404, f"There is no channel {channel}.")
    return schemas.ChannelTest(
        delivery=tried.delivery,
        sent=tried.answer.verdict == "sent",
        status=tried.answer.status,
        error=tried.answer.error,
        seconds=round(tried.seconds, 3),
    )


def _deliveries(services: Services, project: str, channel: int, limit: int) -> schemas.DeliveryList:
    with services.database.read() as connection:
        _known(store.get(connection, project, channel), channel)
        found = delivery_record.listed(connection, channel=channel, limit=limit)
    return schemas.DeliveryList(deliveries=[_delivery(one) for one in found])


def _known(row: Row[Any] | None, channel: int) -> Row[Any]:
    if row is None:
        raise HTTPException(404, f"There is no channel {channel}.")
    return row


def _secret(wanted: schemas.ChannelRequest, before: dict[str, Any]) -> dict[str, Any]:
    """Returns what is kept secret of a channel: what is new, and the rest as it was.

    Raises:
        HTTPException: 422; it cannot work.
    """
    secret = dict(before)
    if wanted.url is not None:
        secret["url"] = wanted.url.get_secret_value().strip()
    if wanted.key is not None:
        secret["key"] = wanted.key.get_secret_value()
    if wanted.kind != "webhook":
        secret.pop("key", None)
    try:
        KINDS[wanted.kind].check(secret)
    except ValueError as error:
        raise HTTPException(422, str(error)) from None
    return secret


def _columns(wanted: schemas.ChannelRequest, secret: dict[str, Any]) -> dict[str, Any]:
    return {
        "name": wanted.name,
        "kind": wanted.kind,
        "secret": secret,
        "least": wanted.least,
        "rules": " ".join(wanted.rules),
        "send_resolved": wanted.send_resolved,
        "language": wanted.language,
        "quiet": {} if wanted.quiet is None else wanted.quiet.model_dump(),
        "digest_most": wanted.digest.most,
        "digest_seconds": wanted.digest.seconds,
        "enabled": wanted.enabled,
    }


def _channel(row: Row[Any], waiting: int) -> schemas.Channel:
    kind = KINDS.get(row.kind)
    return schemas.Channel(
        id=row.id,
        project=row.project,
        name=row.name,
        kind=row.kind,
        target="…" if kind is None else kind.mask(row.secret),
        has_key=bool(row.secret.get("key")),
        least=row.least,
        rules=row.rules.split(),
        send_resolved=row.send_resolved,
        language=row.language,
        quiet=schemas.QuietHours(**row.quiet) if row.quiet else None,
        digest=schemas.Digest(most=row.digest_most, seconds=row.digest_seconds),
        enabled=row.enabled,
        disabled_reason=row.disabled_reason,
        waiting=waiting,
        created_at=row.created_at,
        changed_at=row.changed_at,
    )


def _seen_by(principal: Principal, found: delivery_record.Recorded) -> schemas.Delivery:
    """Returns a delivery as it is shown with the run: its channel may be another project's, and that of all."""
    delivery = _delivery(found)
    if principal.may("admin") and principal.sees(found.project):
        return delivery
    hidden = [one.model_copy(update={"error": ""}) for one in delivery.attempts]
    name = delivery.channel_name if principal.sees(found.project) else ""
    return delivery.model_copy(update={"attempts": hidden, "channel_name": name, "reason": ""})


def _delivery(found: delivery_record.Recorded) -> schemas.Delivery:
    row = found.delivery
    return schemas.Delivery(
        id=row.uuid,
        channel=row.channel,
        channel_name=found.channel,
        kind=found.kind,
        change=row.change,
        severity=row.severity,
        rule=row.content.get("rule", ""),
        run=row.run,
        alert=row.alert,
        state=row.state,
        reason=row.reason,
        digest=found.digest,
        created_at=row.created_at,
        due_at=row.due_at,
        done_at=row.done_at,
        attempts=[
            schemas.Attempt(at=one.at, seconds=one.seconds, status=one.status, error=one.error)
            for one in found.attempts
        ],
    )


def _silence(row: Row[Any]) -> schemas.ProjectSilence:
    return schemas.ProjectSilence(
        id=row.id, rule=row.rule, run=row.run, reason=row.reason, until=row.until, created_at=row.created_at
    )
