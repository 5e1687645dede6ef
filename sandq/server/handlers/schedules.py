"""Requests about schedules."""

from __future__ import annotations

from sandq.protocol.requests_schedules import (
    ScheduleChange,
    ScheduleGet,
    ScheduleList,
    SchedulePreview,
    SchedulePut,
)
from sandq.server.handlers.routes import answered

ROUTES = (
    answered(SchedulePut, lambda at, request: at.schedules.put(request, at.caller)),
    answered(ScheduleChange, lambda at, request: at.schedules.change(request, at.caller)),
    answered(ScheduleGet, lambda at, request: at.schedules.get(request, at.caller)),
    answered(ScheduleList, lambda at, request: at.schedules.page(request, at.caller)),
    answered(SchedulePreview, lambda at, request: at.schedules.preview(request, at.caller)),
)
