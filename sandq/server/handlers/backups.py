"""Requests by which a cluster is backed up, and topics are made of a backup."""

from __future__ import annotations

from bisect import bisect_right
from typing import Any

from sandq.broker.event_loop import Turn
from sandq.metadata.records import IdentityRecord, Topic
from sandq.model.access import Right
from sandq.model.names import RESTORING
from sandq.protocol.requests_backup import (
    BackupAccess,
    BackupBegin,
    BackupEnd,
    BackupLog,
    BackupRead,
    BackupTopics,
    RestoreBegin,
    RestoreEnd,
    RestoreOpen,
    RestoreRows,
    RestoreTopic,
)
from sandq.server.handlers.routes import Context, Packed, answered, told

TOPIC_WORK = 8
TARGET_WORK = 1
"""Units of work to look at one topic, or at one pair of numbers, of a RESTORE_BEGIN."""


async def _topics(at: Context, request: BackupTopics) -> dict[str, Any]:
    """By name, those of which the caller sees something; and how many it sees nothing of lie between them."""
    await at.broker.backups.catch_up()
    view, access, turn = at.broker.metadata, at.entrance.access, Turn()
    names = sorted(view.topics)
    start = 0 if request.after is None else bisect_right(names, request.after)
    rows: list[dict[str, Any]] = []
    hidden = 0
    for name in names[start:]:
        await turn.spend(TOPIC_WORK)
        if len(rows) == request.limit:
            break
        if access is None or access.sees(name):
            rows.append(_topic(view.topics[name]))
        else:
            hidden += 1
    return {
        "cluster_uuid": at.info.cluster_uuid,
        "cluster": at.info.cluster_name,
        "version": at.info.version,
        "feature_level": view.feature_level,
        "time_ms": at.broker.clock.now_ms(),
        "topics": rows,
        "hidden": hidden,
    }


def _topic(topic: Topic) -> dict[str, Any]:
    return {
        "name": topic.name,
        "number": topic.number,
        "kind": topic.kind,
        "partitions": len(topic.partitions),
        "initial_partitions": topic.initial_partitions,
        "replicas": topic.replicas,
        "settings": topic.settings,
        "created_ms": topic.created_ms,
        "owner": topic.owner,
        "restored_by": topic.first_settings.get(RESTORING),
    }


def _access(at: Context, request: BackupAccess) -> dict[str, Any]:
    view = at.broker.metadata
    names = sorted(view.identities)
    start = 0 if request.after is None else bisect_right(names, request.after)
    found = [_identity(view.identities[name]) for name in names[start : start + request.limit]]
    return {"identities": found, "roles": {name: list(grants) for name, grants in view.roles.items()}}


def _identity(record: IdentityRecord) -> dict[str, Any]:
    return {
        "principal": record.principal,
        "grants": list(record.grants),
        "secret_hash": record.secret_hash,
        "expires_ms": record.expires_ms,
        "quota": dict(record.quota),
        "note": record.note,
    }


async def _restore_topic(at: Context, request: RestoreTopic) -> Packed:
    access = at.entrance.access
    if access is not None and not access.allows(Right.SECURITY):
        # As with TOPIC_CREATE: without `security` nobody has another one's quota charged.
        request = request._replace(owner=access.principal)
    return await _told(at, await at.broker.administration.restores.restore_topic(request, at.caller))


async def _restore_begin(at: Context, request: RestoreBegin) -> dict[str, Any]:
    """Bind a partition to a restore. Its rows may hold messages for other topics: they go only to those on which the
    caller has `produce`."""
    access = at.entrance.access
    if access is not None and request.targets:
        turn, names = Turn(), dict[int, str]()
        for topic in list(at.broker.metadata.topics.values()):
            await turn.spend(TARGET_WORK)
            names[topic.number] = topic.name
        allowed = []
        for old, new in request.targets:
            await turn.spend(TARGET_WORK)
            if new in names and access.allows(Right.PRODUCE, names[new]):
                allowed.append([old, new])
        request = request._replace(targets=allowed)
    return await at.broker.backups.restore_begin(request, at.caller)


async def _open(at: Context, request: RestoreOpen) -> Packed:
    return await _told(at, await at.broker.administration.restores.open_topic(request, at.caller))


async def _restore_rows(at: Context, request: RestoreRows) -> Any:
    """Store rows of a restore. Raises QuotaExceeded if the owner of the topic has no room for them."""
    at.checks.check_stored(request.topic, len(request.data), lambda: None)
    return await at.broker.backups.restore_rows(request, at.caller)


async def _told(at: Context, record: Topic) -> Packed:
    return Packed((await at.info.topics.encoded(record, Turn()),))


ROUTES = (
    answered(BackupTopics, _topics),
    told(BackupAccess, _access),
    answered(BackupBegin, lambda at, request: at.broker.backups.begin(request, at.caller)),
    answered(BackupRead, lambda at, request: at.broker.backups.read(request, at.caller)),
    answered(BackupEnd, lambda at, request: at.broker.backups.end(request, at.caller)),
    answered(BackupLog, lambda at, request: at.broker.backups.log(request, at.caller)),
    answered(RestoreTopic, _restore_topic),
    answered(RestoreBegin, _restore_begin),
    answered(RestoreRows, _restore_rows),
    answered(RestoreEnd, lambda at, request: at.broker.backups.restore_end(request, at.caller)),
    answered(RestoreOpen, _open),
)
