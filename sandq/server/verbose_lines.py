"""Lines of single requests, at level debug."""

from __future__ import annotations

from collections.abc import Sequence

from sandq.server.caller_requests import CallerRequests
from sandq.server.client_stats import Mark


def tell_answered(own: CallerRequests, request_ids: Sequence[int], marks: Sequence[Mark | None]) -> None:
    """Log requests that were answered; `marks`, of each, says which kind it was."""
    for request_id, mark in zip(request_ids, marks, strict=True):
        if mark is not None:
            own.log.debug("a request is answered", request=mark.request, request_id=request_id)
