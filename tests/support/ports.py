"""Ports for nodes that must know each other's before they listen."""

from __future__ import annotations

import os
import random
import socket
from itertools import count

FIRST, SLICE, WORKERS = 20_000, 1_200, 8
"""Below the ports of outgoing connections: a client that knocks at a free one of those again and again may be given it
as its own end, and is then connected to itself."""

_worker = int((os.environ.get("PYTEST_XDIST_WORKER") or "gw0")[2:]) % WORKERS
_next = count(random.randrange(SLICE))


def free_port() -> int:
    """A port that nobody uses, and that no other call gave, here or in a test that runs beside: each worker has a slice
    of its own, and goes through it in order."""
    for _ in range(SLICE):
        port = FIRST + _worker * SLICE + next(_next) % SLICE
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) != 0:
                return port
    raise AssertionError("no port is free")
