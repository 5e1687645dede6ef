"""Requests about the groups of a topic."""

from __future__ import annotations

from typing import Any

from sandq.protocol.frames import PackedArray
from sandq.protocol.requests_admin import (
    ConsumerList,
    GroupDelete,
    GroupList,
    GroupPause,
    GroupPush,
    GroupSeek,
    GroupUpdate,
    PushList,
)
from sandq.server.handlers.routes import Context, Packed, answered, told


async def _list(at: Context, request: GroupList) -> Packed:
    count, rows = await at.messages.groups(request, at.caller)
    return Packed((PackedArray(count, rows),))


async def _push(at: Context, request: GroupPush) -> tuple[dict[str, Any] | None]:
    return (await at.broker.administration.topics.push_group(request, at.caller),)


def _pushes(at: Context, request: PushList) -> list[dict[str, Any]]:
    at.broker.topic(request.topic)  # raises UnknownTopic
    return at.info.pushes(request.topic)


ROUTES = (
    answered(GroupList, _list),
    answered(ConsumerList, lambda at, request: at.messages.consumers(request, at.caller)),
    answered(GroupSeek, lambda at, request: at.messages.seek(request, at.caller)),
    answered(GroupDelete, lambda at, request: at.messages.delete_group(request, at.caller)),
    answered(GroupUpdate, lambda at, request: at.messages.update_group(request, at.caller)),
    answered(GroupPause, lambda at, request: at.messages.pause_group(request, at.caller)),
    answered(GroupPush, _push),
    told(PushList, _pushes),
)
