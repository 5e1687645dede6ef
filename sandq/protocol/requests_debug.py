"""Requests for who has to find out what is wrong with a node: each is about the node that is asked."""

from __future__ import annotations

from typing import Annotated, Final

from sandq.protocol.frames import Type
from sandq.protocol.request import Bounds, Request, choice

LEVELS: Final = ("debug", "info", "warning", "error")
"""What is logged, from everything on."""
LOG_LEVEL_MS_MOST: Final = 86_400_000
"""For so long another level holds at most, then the configured one again."""


class LogLevel(Request, type=Type.LOG_LEVEL):
    """Say at which level the node logs, or have it log at another one: `level` nil, only say; `for_ms` nil, until it
    stops."""

    level: Annotated[str, choice(*LEVELS)] | None
    for_ms: Annotated[int, Bounds(1, LOG_LEVEL_MS_MOST)] | None


class DebugDump(Request, type=Type.DEBUG_DUMP):
    """What the node does now: stacks, stalls, queues; its configuration, and its last log lines."""
