"""Handle requests that produce messages, and requests about stored messages: by id, by page, and background jobs."""

from __future__ import annotations

from typing import Any

from sandq.broker.replication.requests import Done
from sandq.protocol.requests import Produce
from sandq.protocol.requests_admin import DeadList, DeadPurge, DeadRedrive
from sandq.protocol.requests_log import Fetch, Measure
from sandq.protocol.requests_messages import Cancel, Forecast, Get, JobStart, JobStatus, JobStop, List, Move, Why
from sandq.server.handlers.routes import Context, Log, answered, framed, submitted


async def _fetch(context: Context, request: Fetch) -> Log:
    """Return a page of a partition's log."""
    number, found = await context.messages.fetch(request, context.caller)
    return Log((found.next, found.closed_ms, found.trimmed, number), found.pieces)


async def _measure(context: Context, request: Measure) -> tuple[Any, ...]:
    """Return the size of a part of a partition's log."""
    number, found = await context.messages.measure(request, context.caller)
    *extent, clock_epoch = found
    return (*extent, number, clock_epoch)


def _move(context: Context, request: Move, done: Done) -> None:
    """Reschedule or update messages. Raise QuotaExceeded if the topic's owner would exceed its storage limits."""
    now_ms = context.broker.clock.now_ms()
    times = [move.at_ms - (0 if move.is_relative else now_ms) for move in request.read() if move.at_ms is not None]
    is_later = any([delay_ms > 0 for delay_ms in times])
    context.checks.check_stored(request.topic, len(request.cells) or None, lambda: 0 if is_later else None)
    context.messages.move(request, context.caller, done)


async def _start_job(context: Context, request: JobStart) -> dict[str, Any]:
    """Start a job. Raise QuotaExceeded if it delays messages while the topic's owner has too many delayed ones."""
    arguments = request.arguments
    delay_ms = max((arguments.get("to_ms") or 0) - context.broker.clock.now_ms(), arguments.get("shift_ms") or 0)
    is_later = request.kind == "move" and not arguments["dry_run"] and delay_ms > 0
    context.checks.check_stored(request.topic, None, lambda: 0 if is_later else None)
    return await context.messages.start_job(request, context.caller)


ROUTES = (
    framed(Produce, lambda context, frame: context.produces.add(frame)),
    submitted(Cancel, lambda context, request, done: context.messages.cancel(request, context.caller, done)),
    submitted(Move, _move),
    answered(Get, lambda context, request: context.messages.get(request, context.caller)),
    answered(Why, lambda context, request: context.messages.why(request, context.caller)),
    answered(List, lambda context, request: context.messages.page(request, context.caller)),
    answered(DeadRedrive, lambda context, request: context.messages.each_dead(request, context.caller)),
    answered(DeadPurge, lambda context, request: context.messages.each_dead(request, context.caller)),
    answered(DeadList, lambda context, request: context.messages.dead_page(request, context.caller)),
    answered(Forecast, lambda context, request: context.messages.forecast(request, context.caller)),
    answered(Fetch, _fetch),
    answered(Measure, _measure),
    answered(JobStart, _start_job),
    answered(JobStatus, lambda context, request: context.messages.job(request, context.caller)),
    answered(JobStop, lambda context, request: context.messages.stop_job(request, context.caller)),
)
