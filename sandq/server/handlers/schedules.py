"""Requests about schedules."""

from __future__ import annotations

from typing import Any

from sandq.model.batch_format import stored_bytes_of
from sandq.protocol.requests_schedules import (
    TRIGGER,
    ScheduleChange,
    ScheduleGet,
    ScheduleList,
    SchedulePreview,
    SchedulePut,
)
from sandq.server.handlers.routes import Context, answered


async def _put(at: Context, request: SchedulePut) -> list[dict[str, Any]]:
    """Make or change schedules. Raises QuotaExceeded if the owner of the topic has no room for that."""
    batches = [item[3] for item in request.items]
    at.checks.check_stored(request.topic, sum(map(stored_bytes_of, batches)), lambda: 0)
    return await at.schedules.put(request, at.caller)


async def _change(at: Context, request: ScheduleChange) -> list[dict[str, Any]]:
    """Change schedules. Raises QuotaExceeded for a trigger, which stores a message, if the owner's quota is full."""
    if request.action == TRIGGER:
        at.checks.check_stored(request.topic, 0, lambda: None)
    return await at.schedules.change(request, at.caller)


ROUTES = (
    answered(SchedulePut, _put),
    answered(ScheduleChange, _change),
    answered(ScheduleGet, lambda at, request: at.schedules.get(request, at.caller)),
    answered(ScheduleList, lambda at, request: at.schedules.page(request, at.caller)),
    answered(SchedulePreview, lambda at, request: at.schedules.preview(request, at.caller)),
)
