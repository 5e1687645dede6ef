"""Requests about the groups of a topic."""

from __future__ import annotations

from sandq.protocol.frames import PackedArray
from sandq.protocol.requests_admin import GroupDelete, GroupList, GroupPause, GroupSeek, GroupUpdate
from sandq.server.handlers.routes import Context, Packed, answered


async def _list(at: Context, request: GroupList) -> Packed:
    count, rows = await at.queries.groups(request, at.caller)
    return Packed((PackedArray(count, rows),))


ROUTES = (
    answered(GroupList, _list),
    answered(GroupSeek, lambda at, request: at.queries.seek(request, at.caller)),
    answered(GroupDelete, lambda at, request: at.queries.delete_group(request, at.caller)),
    answered(GroupUpdate, lambda at, request: at.queries.update_group(request, at.caller)),
    answered(GroupPause, lambda at, request: at.queries.pause_group(request, at.caller)),
)
