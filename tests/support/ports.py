"""Reserve ports for nodes that must know each other's ports before they listen, and hosts with all ports free."""

from __future__ import annotations

import atexit
import contextlib
import random
import socket
from collections.abc import Iterator

FIRST, END, SLICE = 12_000, 32_000, 100
"""Range of the ports, and number of ports per slice.

The range is below the ports that the kernel chooses for outgoing connections. If a client repeatedly connected to a
free port of that higher range, the kernel could choose the same port for the client, and connect it to itself. The
range is above the ports of `demo.node`, which demos and benchmarks use."""

_held = contextlib.ExitStack()
"""Abstract socket names that this process holds as locks: each reserves `SLICE` ports or one host.

The kernel releases them when the process ends."""
atexit.register(_held.close)


def _take_slice() -> range:
    """Reserve a slice of ports, and return it. No other process of this machine reserves it, in any run of tests."""
    firsts = list(range(FIRST, END, SLICE))
    random.shuffle(firsts)
    for first in firsts:
        if _take(f"ports-{first}"):
            return range(first, first + SLICE)
    raise AssertionError("no ports are left: too many runs of tests at once")


def _take(what: str) -> bool:
    """Return whether this process could reserve the name."""
    name = socket.socket(socket.AF_UNIX)
    try:
        name.bind(f"\0sandq-test-{what}")
    except OSError:
        name.close()
        return False
    _held.enter_context(name)
    return True


def _ports() -> Iterator[int]:
    while True:
        for port in _take_slice():
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", port)) != 0:
                    yield port


_free = _ports()


def free_port() -> int:
    """Return an unused port that no other call has returned, in this test or in a test that runs at the same time."""
    return next(_free)


def free_host() -> str:
    """Return a loopback address that no other test uses, in any run of tests: all of its ports are free."""
    hosts = [f"127.0.77.{number}" for number in range(1, 255)]
    random.shuffle(hosts)
    return next(host for host in hosts if _take(f"host-{host}"))
