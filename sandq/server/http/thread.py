"""Serve HTTP in a thread with its own event loop, instead of a process: for `sandq.testing` and for tests."""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from contextlib import suppress

import structlog
import trio

from sandq.model.logger import get_logger
from sandq.server.http.node_link import Begin, NodeInput
from sandq.server.http.serve import RunningApp
from sandq.server.http.worker import run

log = get_logger("sandq.http")


class HttpThread:
    """A thread that serves HTTP, with the interface of a process for the supervisor."""

    def __init__(self, descriptors: Sequence[int]) -> None:
        """`descriptors`: listening sockets. The thread serves on copies of them."""
        self.pid = os.getpid()
        self.returncode: int | None = None
        self.running: RunningApp | None = None
        """The application; None until the thread serves."""
        self._descriptors = tuple(os.dup(descriptor) for descriptor in descriptors)
        to_thread, write_to_thread = os.pipe()
        read_from_thread, from_thread = os.pipe()
        self.stdin = trio.lowlevel.FdStream(write_to_thread)
        self.stdout = trio.lowlevel.FdStream(read_from_thread)
        self._from_thread = from_thread
        self._node = NodeInput(os.fdopen(to_thread, "rb"), ends_process=False)
        self._ended = trio.Event()
        self._token = trio.lowlevel.current_trio_token()
        threading.Thread(target=self._run, name="sandq-http", daemon=True).start()

    async def wait(self) -> int:
        """Wait until the thread has ended, and return its exit code."""
        await self._ended.wait()
        assert self.returncode is not None
        return self.returncode

    def kill(self) -> None:
        """Make the thread end without finishing its requests."""
        self._node.end()

    @property
    def requests_in_progress(self) -> int:
        """Number of requests in progress, without those that wait for an event."""
        return 0 if self.running is None else self.running.guard.in_progress

    def _run(self) -> None:
        """Serve HTTP in this thread as the first message of the node orders, and report the exit code at the end."""
        code = 0
        begin = self._node.first().get("begin")
        if begin is not None:
            # `begin` has the descriptors of the node's sockets: replace them by the descriptors of the copies.
            orders = Begin.of({**begin, "listeners": self._descriptors})
            structlog.contextvars.bind_contextvars(node=orders.node, process="http")
            code = run(orders, self._node, self._send, self._on_running)
        else:
            for descriptor in self._descriptors:
                os.close(descriptor)
        os.close(self._from_thread)
        with suppress(trio.RunFinishedError):
            self._token.run_sync_soon(self._on_end, code)

    def _send(self, data: bytes) -> None:
        """Send a message to the node."""
        with suppress(OSError):  # the node has stopped reading
            os.write(self._from_thread, data)

    def _on_running(self, running: RunningApp) -> None:
        """Note that the application runs."""
        self.running = running

    def _on_end(self, code: int) -> None:
        """Note that the thread has ended, with this exit code."""
        self.returncode = code
        self._ended.set()


class ThreadLaunch:
    """Launches HTTP in threads, and keeps the current one."""

    def __init__(self) -> None:
        self.thread: HttpThread | None = None

    async def __call__(self, descriptors: Sequence[int]) -> HttpThread:
        """Start a thread that serves on these sockets."""
        self.thread = HttpThread(descriptors)
        return self.thread

    @property
    def requests_in_progress(self) -> int:
        """Number of requests in progress, without those that wait for an event."""
        return 0 if self.thread is None else self.thread.requests_in_progress
