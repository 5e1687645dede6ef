"""Requests about jobs: bulk work in the background of a partition."""

from __future__ import annotations

from sandq.protocol.requests_messages import JobStart, JobStatus, JobStop
from sandq.server.handlers.routes import answered

ROUTES = (
    answered(JobStart, lambda at, request: at.queries.start_job(request, at.caller)),
    answered(JobStatus, lambda at, request: at.queries.job(request, at.caller)),
    answered(JobStop, lambda at, request: at.queries.stop_job(request, at.caller)),
)
