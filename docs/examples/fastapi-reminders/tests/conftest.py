"""Fixtures: a broker with a movable clock, and the application in the event loop of the test."""

from __future__ import annotations

from collections.abc import AsyncIterator

import httpx
import pytest
from sandq.testing import AsyncBroker

from reminders.app import app

pytest_plugins = ["sandq.testing.plugin"]


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
async def web(async_sandq_broker: AsyncBroker, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[httpx.AsyncClient]:
    """Start the application against an empty broker."""
    monkeypatch.setenv("BROKER", async_sandq_broker.address)
    async with (
        app.router.lifespan_context(app),
        httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://app") as client,
    ):
        yield client
