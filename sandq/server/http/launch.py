"""Open the listening sockets of HTTP and launch the process that serves on them, as the first step of a node.

A node binds its ports and launches the process before it loads its own modules, so that both load at the same time.
This module therefore imports little.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Awaitable, Callable, Sequence
from subprocess import PIPE
from typing import Final, Protocol

import trio

from sandq.model.config_types import Address
from sandq.server.listening import listen

MODULE: Final = "sandq.server.http"


class Process(Protocol):
    """The part of `trio.Process` that is used. `thread.HttpThread` is the other implementation."""

    @property
    def pid(self) -> int: ...

    @property
    def stdin(self) -> trio.abc.SendStream | None: ...

    @property
    def stdout(self) -> trio.abc.ReceiveStream | None: ...

    @property
    def returncode(self) -> int | None: ...

    async def wait(self) -> int: ...

    def kill(self) -> None: ...


Launch = Callable[[Sequence[int]], Awaitable[Process]]
"""Start a process that inherits these descriptors of listening sockets. Raises OSError."""


async def launch_process(descriptors: Sequence[int]) -> Process:
    """Start `python -m sandq.server.http`, which waits for its first message. Raises OSError."""
    # The process must find modules where this one finds them, whatever the current directory contains.
    environ = os.environ | {"PYTHONPATH": os.pathsep.join([path or os.getcwd() for path in sys.path])}
    return await trio.lowlevel.open_process(
        [sys.executable, "-P", "-m", MODULE], stdin=PIPE, stdout=PIPE, pass_fds=descriptors, env=environ
    )


class HttpPort:
    """The listening sockets of HTTP, with a function that launches a process for them."""

    def __init__(self, host: str, listeners: Sequence[trio.SocketListener], launch: Launch) -> None:
        """`host`: as configured; it may resolve to several addresses."""
        self.address = Address(*listeners[0].socket.getsockname()[:2])
        self._host = host
        self._listeners = list(listeners)
        self._launch = launch
        self._launched: Process | None = None
        """The process that `launch_early` has started, until `launch` returns it."""

    @property
    def descriptors(self) -> tuple[int, ...]:
        """Descriptors of the sockets. The process inherits them under the same numbers."""
        return tuple(listener.socket.fileno() for listener in self._listeners)

    async def launch_early(self) -> None:
        """Launch the first process; `launch` returns it later. Raises OSError."""
        self._launched = await self._launch(self.descriptors)

    async def launch(self) -> Process:
        """Return a new process. If the sockets are closed, open them first.

        Raise OSError, or StartupError if another process has taken the port.
        """
        launched, self._launched = self._launched, None
        if launched is not None:
            return launched
        if not self._listeners:
            self._listeners = await listen(self._host, self.address.port, "http")
        return await self._launch(self.descriptors)

    def close(self) -> None:
        """Close the sockets, so that clients are refused at once instead of waiting."""
        listeners, self._listeners = self._listeners, []
        for listener in listeners:
            listener.socket.close()

    async def end(self) -> None:
        """Close the sockets, and kill the process if `launch` has not returned it."""
        self.close()
        launched, self._launched = self._launched, None
        if launched is not None:
            await end(launched)


async def end(process: Process) -> None:
    """Kill a process unless it has ended, and close its streams."""
    with trio.CancelScope(shield=True):
        if process.returncode is None:
            process.kill()
            await process.wait()
        for stream in (process.stdin, process.stdout):
            if stream is not None:
                await trio.aclose_forcefully(stream)
