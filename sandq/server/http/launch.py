"""The listening sockets of HTTP and the process that serves on them, from the first moment of a node.

A node binds its ports and launches the process before it loads its own modules: both load at the same time. This module
therefore imports little.
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
    """What is used of `trio.Process`. `thread.HttpThread` is the other implementation."""

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
    # Modules are found where this process finds them, whatever lies where it was started.
    environ = os.environ | {"PYTHONPATH": os.pathsep.join([path or os.getcwd() for path in sys.path])}
    return await trio.lowlevel.open_process(
        [sys.executable, "-P", "-m", MODULE], stdin=PIPE, stdout=PIPE, pass_fds=descriptors, env=environ
    )


class HttpPort:
    """The sockets that listen for HTTP, and the way to launch a process for them."""

    def __init__(self, host: str, listeners: Sequence[trio.SocketListener], launch: Launch) -> None:
        """`host`: the configured one, which may stand for several addresses."""
        self.address = Address(*listeners[0].socket.getsockname()[:2])
        self._host = host
        self._listeners = list(listeners)
        self._launch = launch
        self._launched: Process | None = None
        """The process that `launch_early` started and nobody has taken yet."""

    @property
    def descriptors(self) -> tuple[int, ...]:
        """Descriptors of the sockets, under which the process inherits them."""
        return tuple(listener.socket.fileno() for listener in self._listeners)

    async def launch_early(self) -> None:
        """Launch the first process; `launch` returns it later. Raises OSError."""
        self._launched = await self._launch(self.descriptors)

    async def launch(self) -> Process:
        """Return a process that has just been launched; open the sockets first if they are closed.

        Raises OSError, and StartupError if another process has taken the port.
        """
        launched, self._launched = self._launched, None
        if launched is not None:
            return launched
        if not self._listeners:
            self._listeners = await listen(self._host, self.address.port, "http")
        return await self._launch(self.descriptors)

    def close(self) -> None:
        """Close the sockets: clients are refused instead of waiting."""
        listeners, self._listeners = self._listeners, []
        for listener in listeners:
            listener.socket.close()

    async def end(self) -> None:
        """Close the sockets, and kill the process that nobody has taken."""
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
