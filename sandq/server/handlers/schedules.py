"""Handle requests about schedules."""

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


async def _put(context: Context, request: SchedulePut) -> list[dict[str, Any]]:
    """Create or change schedules. Raise QuotaExceeded if the topic's owner would exceed its storage limits."""
    batches = [item[3] for item in request.items]
    context.checks.check_stored(request.topic, sum(map(stored_bytes_of, batches)), lambda: 0)
    return await context.schedules.put(request, context.caller)


async def _change(context: Context, request: ScheduleChange) -> list[dict[str, Any]]:
    """Change schedules. Raise QuotaExceeded for a trigger, which stores a message, if the owner's quota is used up."""
    if request.action == TRIGGER:
        context.checks.check_stored(request.topic, 0, lambda: None)
    return await context.schedules.change(request, context.caller)


ROUTES = (
    answered(SchedulePut, _put),
    answered(ScheduleChange, _change),
    answered(ScheduleGet, lambda context, request: context.schedules.get(request, context.caller)),
    answered(ScheduleList, lambda context, request: context.schedules.page(request, context.caller)),
    answered(SchedulePreview, lambda context, request: context.schedules.preview(request, context.caller)),
)
