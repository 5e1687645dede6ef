"""Sockets and files come out of one number: what connections may take of it, so that the log can always be written."""

from __future__ import annotations

import dataclasses
import resource
from contextlib import suppress

import structlog

from sandq.model.limits import Limits

log = structlog.get_logger("sandq.server")

RESERVED = 192
"""Files that are for no such connections: the log, the lock, listeners, other nodes, spare places ..."""
STORE_PART = 5
"""... and a fifth of all, which LevelDB may hold open."""


def raise_limit() -> None:
    """Let this process open as many files as it may allow itself."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def within(limits: Limits) -> Limits:
    """The limits, with fewer connections where the process may not open so many files: three quarters of what there is
    are for clients, one for HTTP."""
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if files == resource.RLIM_INFINITY:
        return limits
    room = max(files - RESERVED - files // STORE_PART, 8)
    if limits.connections + limits.http_connections <= room:
        return limits
    fitting = dataclasses.replace(
        limits,
        connections=min(limits.connections, max(room * 3 // 4, room - limits.http_connections)),
        http_connections=min(limits.http_connections, max(room // 4, room - limits.connections)),
    )
    log.warning(
        "so few files may be open here that connections are limited further",
        open_files=files,
        connections=fitting.connections,
        http_connections=fitting.http_connections,
        remedy="raise it (ulimit -n, LimitNOFILE= of systemd), or lower limits.connections and limits.http_connections",
    )
    return fitting
