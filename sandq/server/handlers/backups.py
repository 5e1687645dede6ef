"""Handle requests that back up a cluster, and requests that restore topics from a backup."""

from __future__ import annotations

from bisect import bisect_right
from typing import Any

from sandq.broker.event_loop import TimeSlice
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
from sandq.server.handlers.routes import Context, Packed, answered, immediate

TOPIC_WORK = 8
TARGET_WORK = 1
"""Units of work to visit one topic, or one pair of numbers in a RESTORE_BEGIN."""


async def _topics(context: Context, request: BackupTopics) -> dict[str, Any]:
    """Return a page of topics, by name, that the caller may see, and the number of others in the same range."""
    await context.broker.backups.catch_up()
    view, access, time_slice = context.broker.metadata, context.entrance.access, TimeSlice()
    names = sorted(view.topics)
    start = 0 if request.after is None else bisect_right(names, request.after)
    rows: list[dict[str, Any]] = []
    hidden = 0
    for name in names[start:]:
        await time_slice.spend(TOPIC_WORK)
        if len(rows) == request.limit:
            break
        if access is None or access.sees(name):
            rows.append(_topic(view.topics[name]))
        else:
            hidden += 1
    return {
        "cluster_uuid": context.info.cluster_uuid,
        "cluster": context.info.cluster_name,
        "version": context.info.version,
        "feature_level": view.feature_level,
        "time_ms": context.broker.clock.now_ms(),
        "topics": rows,
        "hidden": hidden,
    }


def _topic(topic: Topic) -> dict[str, Any]:
    """Return the row of a topic."""
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


def _access(context: Context, request: BackupAccess) -> dict[str, Any]:
    """Return a page of identities with their secret hashes, and all roles."""
    view = context.broker.metadata
    names = sorted(view.identities)
    start = 0 if request.after is None else bisect_right(names, request.after)
    found = [_identity(view.identities[name]) for name in names[start : start + request.limit]]
    return {"identities": found, "roles": {name: list(grants) for name, grants in view.roles.items()}}


def _identity(record: IdentityRecord) -> dict[str, Any]:
    """Return the row of an identity."""
    return {
        "principal": record.principal,
        "grants": list(record.grants),
        "secret_hash": record.secret_hash,
        "expires_ms": record.expires_ms,
        "quota": dict(record.quota),
        "note": record.note,
    }


async def _restore_topic(context: Context, request: RestoreTopic) -> Packed:
    """Create a topic for a restore. Callers without the right `security` own the topics that they restore."""
    access = context.entrance.access
    if access is not None and not access.allows(Right.SECURITY):
        # As with TOPIC_CREATE: without `security`, a caller can charge its own quota only.
        request = request._replace(owner=access.principal)
    return await _encoded(context, await context.broker.administration.restores.restore_topic(request, context.caller))


async def _restore_begin(context: Context, request: RestoreBegin) -> dict[str, Any]:
    """Bind a partition to a restore.

    The rows may hold messages for other topics. `request.targets`: pairs of the number of such a topic in the backup,
    and its number here. Pairs are left out if the topic does not exist here, or if the caller lacks `produce` on it."""
    access = context.entrance.access
    if access is not None and request.targets:
        time_slice, names = TimeSlice(), dict[int, str]()
        for topic in list(context.broker.metadata.topics.values()):
            await time_slice.spend(TARGET_WORK)
            names[topic.number] = topic.name
        allowed = []
        for old, new in request.targets:
            await time_slice.spend(TARGET_WORK)
            if new in names and access.allows(Right.PRODUCE, names[new]):
                allowed.append([old, new])
        request = request._replace(targets=allowed)
    return await context.broker.backups.restore_begin(request, context.caller)


async def _open(context: Context, request: RestoreOpen) -> Packed:
    """Open a restored topic for all requests."""
    return await _encoded(context, await context.broker.administration.restores.open_topic(request, context.caller))


async def _restore_rows(context: Context, request: RestoreRows) -> Any:
    """Store rows of a restore. Raise QuotaExceeded if the topic's owner would exceed its storage limits."""
    context.checks.check_stored(request.topic, len(request.data), lambda: None)
    return await context.broker.backups.restore_rows(request, context.caller)


async def _encoded(context: Context, record: Topic) -> Packed:
    """Return the record of a topic, encoded in time slices."""
    return Packed((await context.info.topics.encoded(record, TimeSlice()),))


ROUTES = (
    answered(BackupTopics, _topics),
    immediate(BackupAccess, _access),
    answered(BackupBegin, lambda context, request: context.broker.backups.begin(request, context.caller)),
    answered(BackupRead, lambda context, request: context.broker.backups.read(request, context.caller)),
    answered(BackupEnd, lambda context, request: context.broker.backups.end(request, context.caller)),
    answered(BackupLog, lambda context, request: context.broker.backups.log(request, context.caller)),
    answered(RestoreTopic, _restore_topic),
    answered(RestoreBegin, _restore_begin),
    answered(RestoreRows, _restore_rows),
    answered(RestoreEnd, lambda context, request: context.broker.backups.restore_end(request, context.caller)),
    answered(RestoreOpen, _open),
)
