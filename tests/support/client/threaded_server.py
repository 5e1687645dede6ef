"""Provide the fake server for tests that are not async, such as the tests of sandctl."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import anyio
import anyio.from_thread

from tests.support.client.fake_server import FakeServer
from tests.support.waiting import PATIENCE_S


class ThreadedServer:
    """A `FakeServer` with an event loop in a thread of its own."""

    def __init__(self, server: FakeServer) -> None:
        self.server = server
        self._ready = threading.Event()
        self._stop: anyio.Event
        self._thread = threading.Thread(target=lambda: anyio.run(self._main, backend="trio"), daemon=True)
        self._portal: Any = None

    async def _main(self) -> None:
        async with anyio.from_thread.BlockingPortal() as self._portal, anyio.create_task_group() as tasks:
            self._stop = anyio.Event()
            await self.server.start(tasks)
            self._ready.set()
            await self._stop.wait()
            tasks.cancel_scope.cancel()

    def __enter__(self) -> FakeServer:
        self._thread.start()
        assert self._ready.wait(PATIENCE_S)
        return self.server

    def soon(self, function: Callable[[], object]) -> None:
        """Run a function in the event loop of the server."""
        self._portal.call(function)

    def __exit__(self, *details: object) -> None:
        self._portal.call(self._stop.set)
        self._thread.join(PATIENCE_S)
