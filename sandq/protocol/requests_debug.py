"""Requests to diagnose a node. Each concerns the node that receives it."""

from __future__ import annotations

from typing import Annotated, Final

from sandq.protocol.frames import Type
from sandq.protocol.request import Bounds, Request, choice

LEVELS: Final = ("debug", "info", "warning", "error")
"""Log levels. A node logs all events from its level on."""
LOG_LEVEL_MS_MOST: Final = 86_400_000
"""Maximum time in ms for which a changed log level applies. Afterwards, the configured level applies again."""


class LogLevel(Request, type=Type.LOG_LEVEL):
    """Return the log level of the node, or change it. `level` nil: only return it. `for_ms` nil: until the node
    stops."""

    level: Annotated[str, choice(*LEVELS)] | None
    for_ms: Annotated[int, Bounds(1, LOG_LEVEL_MS_MOST)] | None


class DebugDump(Request, type=Type.DEBUG_DUMP):
    """Return the current activity of the node (stacks, stalls, queues), its configuration, and its last log lines."""
