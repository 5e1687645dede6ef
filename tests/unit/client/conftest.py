"""Helpers of the client's tests: every test runs under trio and under asyncio, against a scripted server.

The tests are plain functions, so that pytest-trio and anyio's plugin do not compete to run them.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import anyio
import pytest

from sandq.client.client import Client, connect_with
from sandq.client.options import Options
from tests.support.client.fake_server import FakeServer
from tests.support.client.helpers import QUICK
from tests.support.stopped_time import run_with_stopped_time

Body = Callable[[FakeServer, Client], Awaitable[None]]

TEST_S = 60.0


@pytest.fixture(params=["trio", "asyncio"])
def backend(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def run(backend: str) -> Callable[[Callable[[], Awaitable[None]]], None]:
    """Return a function that runs an async function with a time limit."""

    def runner(body: Callable[[], Awaitable[None]]) -> None:
        async def main() -> None:
            with anyio.fail_after(TEST_S):
                await body()

        run_with_stopped_time(main, backend)

    return runner


@pytest.fixture
def with_client(run: Any) -> Callable[..., None]:
    """Run a body with a fake server (topic "t", one partition) and a client connected to it."""

    def runner(body: Body, *, partitions: int = 1, **options: Any) -> None:
        async def main() -> None:
            async with anyio.create_task_group() as tasks:
                server = FakeServer()
                server.add_topic("t", partitions)
                await server.start(tasks)
                async with connect_with(Options(**{**QUICK, **options}), (server.address,), "test") as client:
                    await body(server, client)
                tasks.cancel_scope.cancel()

        run(main)

    return runner
