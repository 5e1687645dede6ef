"""Looks names up, by the machine's resolver, in threads that nobody else waits for.

A name server that hangs holds a thread for half a minute, whoever has stopped waiting. So there are places for a number
of look-ups, apart from those of the node's other work; and of one name one goes on at a time, whose result is for all
who ask just then.
"""

from __future__ import annotations

import socket
from functools import partial
from ipaddress import ip_address
from typing import Final
from weakref import WeakValueDictionary

import trio

LOOKUPS_MOST: Final = 64
"""Threads at once, those that nobody waits for any more included."""
SHARED_S: Final = 1.0
"""So old a result may be for somebody who waited while another one looked."""


class _Name:
    def __init__(self) -> None:
        self.turn = trio.Lock()
        self.found: list[str] = []
        self.failure: tuple[object, ...] | None = None
        """Of the OSError that it ended with."""
        self.until_s = -1.0


class Lookups:
    """Of one node."""

    def __init__(self) -> None:
        self._threads = trio.CapacityLimiter(LOOKUPS_MOST)
        self._names: WeakValueDictionary[str, _Name] = WeakValueDictionary()
        """Those that somebody asks for at present."""

    async def find(self, host: str, port: int) -> list[str]:
        """The addresses of a name. Raises OSError."""
        try:
            return [str(ip_address(host))]
        except ValueError:
            pass
        name = self._names.get(host)
        if name is None:
            name = self._names[host] = _Name()
        async with name.turn:
            if trio.current_time() >= name.until_s:
                # As bytes: a name comes in ASCII, and has the letters that it has (`my_service`).
                look = partial(socket.getaddrinfo, host.encode("ascii"), port, type=socket.SOCK_STREAM)
                try:
                    places = await trio.to_thread.run_sync(look, abandon_on_cancel=True, limiter=self._threads)
                    name.found, name.failure = [str(place[4][0]) for place in places], None
                except OSError as error:
                    name.failure = error.args
                name.until_s = trio.current_time() + SHARED_S
            if name.failure is not None:
                raise OSError(*name.failure)
            return list(name.found)
