"""Requests that store messages, and about stored ones: one by one, page by page, and by jobs in the background."""

from __future__ import annotations

from typing import Any

from sandq.broker.replication.requests import Done
from sandq.protocol.requests import Produce
from sandq.protocol.requests_admin import DeadList, DeadPurge, DeadRedrive
from sandq.protocol.requests_log import Fetch, Measure
from sandq.protocol.requests_messages import Cancel, Forecast, Get, JobStart, JobStatus, JobStop, List, Move, Why
from sandq.server.handlers.routes import Context, Log, answered, framed, submitted


async def _fetch(at: Context, request: Fetch) -> Log:
    number, found = await at.messages.fetch(request, at.caller)
    return Log((found.next, found.closed_ms, found.trimmed, number), found.pieces)


async def _measure(at: Context, request: Measure) -> tuple[Any, ...]:
    number, found = await at.messages.measure(request, at.caller)
    *extent, clock_epoch = found
    return (*extent, number, clock_epoch)


def _move(at: Context, request: Move, done: Done) -> None:
    """Move and update messages. Raises QuotaExceeded if the owner of the topic has no room for that."""
    now_ms = at.broker.clock.now_ms()
    times = [move.at_ms - (0 if move.is_relative else now_ms) for move in request.read() if move.at_ms is not None]
    is_later = any([delay_ms > 0 for delay_ms in times])
    at.checks.check_stored(request.topic, len(request.cells) or None, lambda: 0 if is_later else None)
    at.messages.move(request, at.caller, done)


async def _start_job(at: Context, request: JobStart) -> dict[str, Any]:
    """Start a job. Raises QuotaExceeded for one that moves messages ahead while too many are not due."""
    told = request.arguments
    delay_ms = max((told.get("to_ms") or 0) - at.broker.clock.now_ms(), told.get("shift_ms") or 0)
    is_later = request.kind == "move" and not told["dry_run"] and delay_ms > 0
    at.checks.check_stored(request.topic, None, lambda: 0 if is_later else None)
    return await at.messages.start_job(request, at.caller)


ROUTES = (
    framed(Produce, lambda at, frame: at.produces.add(frame)),
    submitted(Cancel, lambda at, request, done: at.messages.cancel(request, at.caller, done)),
    submitted(Move, _move),
    answered(Get, lambda at, request: at.messages.get(request, at.caller)),
    answered(Why, lambda at, request: at.messages.why(request, at.caller)),
    answered(List, lambda at, request: at.messages.page(request, at.caller)),
    answered(DeadRedrive, lambda at, request: at.messages.each_dead(request, at.caller)),
    answered(DeadPurge, lambda at, request: at.messages.each_dead(request, at.caller)),
    answered(DeadList, lambda at, request: at.messages.dead_page(request, at.caller)),
    answered(Forecast, lambda at, request: at.messages.forecast(request, at.caller)),
    answered(Fetch, _fetch),
    answered(Measure, _measure),
    answered(JobStart, _start_job),
    answered(JobStatus, lambda at, request: at.messages.job(request, at.caller)),
    answered(JobStop, lambda at, request: at.messages.stop_job(request, at.caller)),
)
