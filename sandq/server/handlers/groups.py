"""Requests about the groups of a topic."""

from __future__ import annotations

from sandq.protocol.requests_admin import GroupDelete, GroupList, GroupPause, GroupSeek, GroupUpdate
from sandq.server.handlers.routes import answered

ROUTES = (
    answered(GroupList, lambda at, request: at.queries.groups(request, at.caller)),
    answered(GroupSeek, lambda at, request: at.queries.seek(request, at.caller)),
    answered(GroupDelete, lambda at, request: at.queries.delete_group(request, at.caller)),
    answered(GroupUpdate, lambda at, request: at.queries.update_group(request, at.caller)),
    answered(GroupPause, lambda at, request: at.queries.pause_group(request, at.caller)),
)
