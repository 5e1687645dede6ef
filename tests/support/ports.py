"""Ports for nodes that must know each other's before they listen, and hosts on which all ports are free."""

from __future__ import annotations

import atexit
import contextlib
import random
import socket
from collections.abc import Iterator

FIRST, END, SLICE = 12_000, 32_000, 100
"""Below the ports of outgoing connections: a client that knocks at a free one of those again and again may be given it
as its own end, and is then connected to itself. And above those of `demo.node`, which demos and benchmarks take."""

_held = contextlib.ExitStack()
"""Names in the kernel that this process holds: each stands for `SLICE` ports, or for a host, and goes with the
process."""
atexit.register(_held.close)


def _take_slice() -> range:
    """Ports that no other process of this machine takes from here, whichever run of tests it belongs to."""
    firsts = list(range(FIRST, END, SLICE))
    random.shuffle(firsts)
    for first in firsts:
        if _take(f"ports-{first}"):
            return range(first, first + SLICE)
    raise AssertionError("no ports are left: too many runs of tests at once")


def _take(what: str) -> bool:
    """Whether it is this process's from now on."""
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
    """A port that nobody uses, and that no other call gave, here or in a test that runs beside."""
    return next(_free)


def free_host() -> str:
    """A loopback address that no other test uses, of whichever run of tests: every port is free there."""
    hosts = [f"127.0.77.{number}" for number in range(1, 255)]
    random.shuffle(hosts)
    return next(host for host in hosts if _take(f"host-{host}"))
