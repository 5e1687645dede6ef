"""Handle requests about topics, their groups, and holds on their logs."""

from __future__ import annotations

from typing import Any

from sandq.broker.delivery.limit_rows import limit_rows
from sandq.broker.event_loop import TimeSlice
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
    LimitList,
    PauseList,
    PushList,
    TopicCreate,
    TopicDelete,
    TopicEnsure,
    TopicStats,
    TopicUpdate,
)
from sandq.protocol.requests_overview import Overview, TopicHistory
from sandq.server.handlers.routes import Context, Packed, answered, immediate


async def _create(context: Context, request: TopicCreate) -> Packed:
    """Create a topic, and return its record."""
    # Reply even if this node has not opened the topic yet: otherwise the client would try to create it again.
    return await _encoded(context, await context.broker.administration.topics.create_topic(request, context.caller))


async def _ensure(context: Context, request: TopicEnsure) -> Packed:
    """Return the record of a topic; create the topic if it does not exist."""
    return await _encoded(context, await context.broker.administration.topics.ensure_topic(request, context.caller))


async def _update(context: Context, request: TopicUpdate) -> Packed:
    """Change a topic, and return its record."""
    return await _encoded(context, await context.broker.administration.topics.update_topic(request, context.caller))


async def _encoded(context: Context, record: Topic) -> Packed:
    """Return the record of a topic, encoded in time slices."""
    return Packed((await context.info.topics.encoded(record, TimeSlice()),))


async def _overview(context: Context, request: Overview) -> tuple[Any, ...]:
    """Return a page of the node's part of the overview, as far as the caller may see it."""
    return await context.info.overview.page(request.after, context.entrance.access)


def _history(context: Context, request: TopicHistory) -> Packed:
    """Return the history of a topic."""
    return Packed(context.info.overview.history(request.topic))


async def _groups(context: Context, request: GroupList) -> Packed:
    """Return the groups of a topic."""
    count, rows = await context.messages.groups(request, context.caller)
    return Packed((PackedArray(count, rows),))


async def _push(context: Context, request: GroupPush) -> tuple[dict[str, Any] | None]:
    """Change or delete the push of a group, and return its settings; None if it has no push."""
    return (await context.broker.administration.topics.push_group(request, context.caller),)


def _pushes(context: Context, request: PushList) -> list[dict[str, Any]]:
    """Return the state of all pushes of a topic on this node."""
    context.broker.catalog.topic(request.topic)  # raises UnknownTopic
    return context.info.pusher.rows(request.topic)


def _limits(context: Context, request: LimitList) -> list[dict[str, Any]]:
    """Return the state of the named limits that this node divides."""
    broker = context.broker
    shares, now_ms = broker.limit_pauses.shares, broker.clock.now_ms()
    return limit_rows(broker.catalog, shares, request.topic, name=request.name, now_ms=now_ms)


ROUTES = (
    answered(TopicCreate, _create),
    answered(TopicEnsure, _ensure),
    answered(TopicUpdate, _update),
    answered(
        TopicDelete, lambda context, request: context.broker.administration.topics.delete_topic(request, context.caller)
    ),
    answered(
        GroupLimit, lambda context, request: context.broker.administration.topics.limit_group(request, context.caller)
    ),
    answered(TopicStats, lambda context, request: context.messages.topic_stats(request, context.caller)),
    answered(Overview, _overview),
    immediate(TopicHistory, _history),
    answered(ClockReset, lambda context, request: context.messages.reset_clock(request, context.caller)),
    answered(Hold, lambda context, request: context.messages.hold(request, context.caller)),
    answered(GroupList, _groups),
    answered(ConsumerList, lambda context, request: context.messages.consumers(request, context.caller)),
    answered(PauseList, lambda context, request: context.messages.pauses(request, context.caller)),
    answered(GroupSeek, lambda context, request: context.messages.seek(request, context.caller)),
    answered(GroupDelete, lambda context, request: context.messages.delete_group(request, context.caller)),
    answered(GroupUpdate, lambda context, request: context.messages.update_group(request, context.caller)),
    answered(GroupPause, lambda context, request: context.messages.pause_group(request, context.caller)),
    answered(GroupPush, _push),
    immediate(PushList, _pushes),
    immediate(LimitList, _limits),
)
