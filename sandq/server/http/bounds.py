"""How much a connection of HTTP may take, and for how long, whichever server has it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

SEND_BYTES = 262_144
SEND_STALL_S = 30.0
"""A client that does not take a piece of `SEND_BYTES` for so long is cut off ..."""
CROWDED_STALL_S = 2.0
"""... and for so long, while others wait because there is too much that is not taken."""
HEAD_S = 10.0
"""The rest of a request's head has so long to come after its first bytes."""
HEAD_BYTES: Final = 16_384
"""Of a head."""
HEADERS_MOST: Final = 100
"""Of a request."""
SPARE_PLACES: Final = 16
"""Beyond the limit, for who asks for health and metrics."""
GRACE_S = 3.0
"""Requests under way when the node stops have so long, and their answers as long again to be taken."""
IDLE_S = 75
"""A connection without a request for so long is closed."""
GATEWAY_S: Final = 10.0
"""What the cluster does not answer for so long is answered as TIMED_OUT or UNAVAILABLE."""
REFUSED_S: Final = 1.0
"""Who finds no place, or is not understood, has so long to take the answer."""
REFUSED_MOST: Final = 64
"""So many that find no place have that time at once; further ones are told what they take at once, and closed."""
FULL: Final = (
    b"HTTP/1.1 503 Service Unavailable\r\nRetry-After: 1\r\nConnection: close\r\nContent-Type: text/plain\r\n"
    b"Content-Length: 45\r\n\r\nthis node has no room for another connection\n"
)
"""What a connection is told for which there is no place."""
PLAIN: Final = (
    b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\nContent-Type: text/plain\r\n"
    b"Content-Length: 72\r\n\r\nthis port requires TLS: ask by https://, and trust the node's authority\n"
)
"""What a connection is told that is plain where TLS is required."""


@dataclass(frozen=True, slots=True)
class Deadlines:
    """Those of one server, in seconds."""

    head_s: float = HEAD_S
    idle_s: float = IDLE_S
    refused_s: float = REFUSED_S
    crowded_stall_s: float = CROWDED_STALL_S
    send_stall_s: float = SEND_STALL_S
    grace_s: float = GRACE_S
    """For requests under way when the server stops."""
    leave_s: float = GRACE_S
    """For the answer to a client that says nothing more, and for those that are half taken when the server stops."""
