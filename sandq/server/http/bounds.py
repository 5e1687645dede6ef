"""Limits of HTTP connections: sizes, deadlines and numbers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

SEND_BYTES = 262_144
"""Size of a piece of a response, in bytes, that a client must accept in time."""
SEND_STALL_S = 30.0
"""A client that does not accept a piece of `SEND_BYTES` within this time is disconnected, in seconds."""
CROWDED_STALL_S = 2.0
"""Replaces `SEND_STALL_S` while other requests wait for memory because clients do not accept their responses."""
HEAD_S = 10.0
"""Maximum time from the first bytes of a request's head to its end, in seconds."""
HEAD_BYTES: Final = 16_384
"""Maximum size of a request's head, in bytes."""
HEADERS_MOST: Final = 100
"""Maximum number of headers of a request."""
SPARE_SLOTS: Final = 16
"""Number of spare connections beyond the limit. These connections are served only health checks and metrics."""
GRACE_S = 3.0
"""Time that requests in progress have when the node stops, in seconds. Then their responses have the same time."""
IDLE_S = 75
"""A connection without a request is closed after this time, in seconds."""
GATEWAY_S: Final = 10.0
"""If the cluster does not answer within this time, the response is TIMED_OUT or UNAVAILABLE, in seconds."""
REFUSED_S: Final = 1.0
"""Time for a refused client to read the response, in seconds."""
REFUSED_MOST: Final = 64
"""Maximum number of refused connections that have this time at once. Further connections are closed immediately."""
FULL: Final = (
    b"HTTP/1.1 503 Service Unavailable\r\nRetry-After: 1\r\nConnection: close\r\nContent-Type: text/plain\r\n"
    b"Content-Length: 43\r\n\r\nthis node has reached its connection limit\n"
)
"""The response to a connection beyond all limits."""
PLAIN: Final = (
    b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\nContent-Type: text/plain\r\n"
    b"Content-Length: 70\r\n\r\nthis port requires TLS: use https://, and trust the node's authority.\n"
)
"""The response to a connection without TLS if TLS is required."""


@dataclass(frozen=True, slots=True)
class Deadlines:
    """The deadlines of one server, in seconds."""

    head_s: float = HEAD_S
    idle_s: float = IDLE_S
    refused_s: float = REFUSED_S
    crowded_stall_s: float = CROWDED_STALL_S
    send_stall_s: float = SEND_STALL_S
    grace_s: float = GRACE_S
    """Time for requests in progress when the server stops."""
    leave_s: float = GRACE_S
    """Time to send the response to a client that has closed its side, or the rest of a response when the server
    stops."""
