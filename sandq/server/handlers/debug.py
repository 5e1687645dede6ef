"""Requests for who has to find out what is wrong with a node."""

from __future__ import annotations

from typing import Any

from sandq.protocol.requests_debug import DebugDump, LogLevel
from sandq.server.handlers.routes import Context, told


def _log_level(at: Context, request: LogLevel) -> dict[str, Any]:
    return at.info.log_level.change(request.level, request.for_ms, at.caller)


def _dump(at: Context, request: DebugDump) -> dict[str, Any]:
    return at.info.dump()


ROUTES = (told(LogLevel, _log_level), told(DebugDump, _dump))
