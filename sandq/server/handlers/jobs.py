"""Requests about jobs: bulk work in the background of a partition."""

from __future__ import annotations

from typing import Any

from sandq.protocol.requests_messages import JobStart, JobStatus, JobStop
from sandq.server.handlers.routes import Context, answered


async def _start(at: Context, request: JobStart) -> dict[str, Any]:
    """Start a job. Raises QuotaExceeded for one that moves messages ahead while too many are not due."""
    told = request.arguments
    delay_ms = max((told.get("to_ms") or 0) - at.broker.clock.now_ms(), told.get("shift_ms") or 0)
    is_later = request.kind == "move" and not told["dry_run"] and delay_ms > 0
    at.check_stored(request.topic, None, lambda: 0 if is_later else None)
    return await at.messages.start_job(request, at.caller)


ROUTES = (
    answered(JobStart, _start),
    answered(JobStatus, lambda at, request: at.messages.job(request, at.caller)),
    answered(JobStop, lambda at, request: at.messages.stop_job(request, at.caller)),
)
