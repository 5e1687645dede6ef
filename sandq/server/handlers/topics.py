"""Requests about topics as a whole, their groups, and holds on their logs."""

from __future__ import annotations

from typing import Any

from sandq.broker.event_loop import Turn
from sandq.metadata.records import Topic
from sandq.protocol.frames import PackedArray
from sandq.protocol.requests_admin import (
    ClockReset,
    ConsumerList,
    GroupDelete,
    GroupLimit,
    GroupList,
    GroupPause,
    GroupPush,
    GroupSeek,
    GroupUpdate,
    Hold,
    PushList,
    TopicCreate,
    TopicDelete,
    TopicEnsure,
    TopicStats,
    TopicUpdate,
)
from sandq.protocol.requests_overview import Overview, TopicHistory
from sandq.server.handlers.routes import Context, Packed, answered, told


async def _create(at: Context, request: TopicCreate) -> Packed:
    # This node may not have opened it yet: it exists all the same, and must not be made a second time.
    return await _encoded(at, await at.broker.administration.topics.create_topic(request, at.caller))


async def _ensure(at: Context, request: TopicEnsure) -> Packed:
    return await _encoded(at, await at.broker.administration.topics.ensure_topic(request, at.caller))


async def _update(at: Context, request: TopicUpdate) -> Packed:
    return await _encoded(at, await at.broker.administration.topics.update_topic(request, at.caller))


async def _encoded(at: Context, record: Topic) -> Packed:
    return Packed((await at.info.topics.encoded(record, Turn()),))


async def _overview(at: Context, request: Overview) -> tuple[Any, ...]:
    return await at.info.overview.page(request.after, at.entrance.access)


def _history(at: Context, request: TopicHistory) -> Packed:
    return Packed(at.info.overview.history(request.topic))


async def _groups(at: Context, request: GroupList) -> Packed:
    count, rows = await at.messages.groups(request, at.caller)
    return Packed((PackedArray(count, rows),))


async def _push(at: Context, request: GroupPush) -> tuple[dict[str, Any] | None]:
    return (await at.broker.administration.topics.push_group(request, at.caller),)


def _pushes(at: Context, request: PushList) -> list[dict[str, Any]]:
    at.broker.catalog.topic(request.topic)  # raises UnknownTopic
    return at.info.pusher.rows(request.topic)


ROUTES = (
    answered(TopicCreate, _create),
    answered(TopicEnsure, _ensure),
    answered(TopicUpdate, _update),
    answered(TopicDelete, lambda at, request: at.broker.administration.topics.delete_topic(request, at.caller)),
    answered(GroupLimit, lambda at, request: at.broker.administration.topics.limit_group(request, at.caller)),
    answered(TopicStats, lambda at, request: at.messages.topic_stats(request, at.caller)),
    answered(Overview, _overview),
    told(TopicHistory, _history),
    answered(ClockReset, lambda at, request: at.messages.reset_clock(request, at.caller)),
    answered(Hold, lambda at, request: at.messages.hold(request, at.caller)),
    answered(GroupList, _groups),
    answered(ConsumerList, lambda at, request: at.messages.consumers(request, at.caller)),
    answered(GroupSeek, lambda at, request: at.messages.seek(request, at.caller)),
    answered(GroupDelete, lambda at, request: at.messages.delete_group(request, at.caller)),
    answered(GroupUpdate, lambda at, request: at.messages.update_group(request, at.caller)),
    answered(GroupPause, lambda at, request: at.messages.pause_group(request, at.caller)),
    answered(GroupPush, _push),
    told(PushList, _pushes),
)
