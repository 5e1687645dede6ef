"""Resolve names with the machine's resolver, in threads that can be abandoned.

A name server that hangs blocks a thread for half a minute, even if no request waits for it any more. So look-ups have
their own limit on threads, separate from the node's other work. For each name only one look-up runs at a time, and its
result is shared by all callers that wait for it.

Half of the threads are for names whose last look-up succeeded. So producers that name many hosts whose name servers
hang do not delay the requests to other hosts.
"""

from __future__ import annotations

import socket
from collections import OrderedDict
from functools import partial
from ipaddress import ip_address
from typing import Final
from weakref import WeakValueDictionary

import trio

LOOKUPS_MOST: Final = 64
"""Maximum number of threads, including abandoned ones."""
FOUND_MOST: Final = 10_000
"""Maximum number of names that count as found. The least recently found name is forgotten."""
SHARED_S: Final = 1.0
"""A caller that waited during a look-up uses its result if the result is at most this old, in seconds."""


class _Name:
    def __init__(self) -> None:
        self.lock = trio.Lock()
        self.found: list[str] = []
        self.failure: tuple[object, ...] | None = None
        """Arguments of the OSError with which the look-up failed."""
        self.until_s = -1.0


class Lookups:
    """The look-ups of one node."""

    def __init__(self) -> None:
        self._threads = trio.CapacityLimiter(LOOKUPS_MOST // 2)
        self._found_threads = trio.CapacityLimiter(LOOKUPS_MOST // 2)
        self._found: OrderedDict[str, None] = OrderedDict()
        """Names whose last look-up succeeded. The most recently found name is last."""
        self._names: WeakValueDictionary[str, _Name] = WeakValueDictionary()
        """The names that are being looked up."""

    async def find(self, host: str, port: int) -> list[str]:
        """Return the addresses of a name. Raises OSError."""
        try:
            return [str(ip_address(host))]
        except ValueError:
            pass
        name = self._names.get(host)
        if name is None:
            name = self._names[host] = _Name()
        async with name.lock:
            if trio.current_time() >= name.until_s:
                # Pass bytes: the name is ASCII, but may have characters that IDNA rejects (`my_service`).
                resolve = partial(socket.getaddrinfo, host.encode("ascii"), port, type=socket.SOCK_STREAM)
                threads = self._found_threads if host in self._found else self._threads
                self._found.pop(host, None)  # until it is found again: the look-up may be cancelled
                try:
                    rows = await trio.to_thread.run_sync(resolve, abandon_on_cancel=True, limiter=threads)
                    name.found, name.failure = [str(row[4][0]) for row in rows], None
                except OSError as error:
                    name.failure = error.args
                else:
                    self._note_found(host)
                name.until_s = trio.current_time() + SHARED_S
            if name.failure is not None:
                raise OSError(*name.failure)
            return list(name.found)

    def _note_found(self, host: str) -> None:
        self._found[host] = None
        if len(self._found) > FOUND_MOST:
            self._found.popitem(last=False)
