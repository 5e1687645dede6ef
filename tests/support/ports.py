"""Ports for nodes that must know each other's before they listen."""

from __future__ import annotations

import random
import socket
from collections.abc import Iterator

FIRST, END, SLICE = 12_000, 32_000, 100
"""Below the ports of outgoing connections: a client that knocks at a free one of those again and again may be given it
as its own end, and is then connected to itself."""

_slices: list[socket.socket] = []
"""Names in the kernel that this process holds: each stands for `SLICE` ports, and goes with the process."""


def _take_slice() -> range:
    """Ports that no other process of this machine takes from here, whichever run of tests it belongs to."""
    firsts = list(range(FIRST, END, SLICE))
    random.shuffle(firsts)
    for first in firsts:
        name = socket.socket(socket.AF_UNIX)
        try:
            name.bind(f"\0sandq-test-ports-{first}")
        except OSError:
            name.close()
        else:
            _slices.append(name)
            return range(first, first + SLICE)
    raise AssertionError("no ports are left: too many runs of tests at once")


def _ports() -> Iterator[int]:
    while True:
        for port in _take_slice():
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", port)) != 0:
                    yield port


_free = _ports()


def free_port() -> int:
    """A port that nobody uses, and that no other call gave, here or in a test that runs beside."""
    return next(_free)
