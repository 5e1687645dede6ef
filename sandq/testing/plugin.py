"""Fixtures for pytest. In a `conftest.py`: `pytest_plugins = ["sandq.testing.plugin"]`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from sandq.testing.brokers import AsyncBroker, Broker


@pytest.fixture
def sandq_broker() -> Iterator[Broker]:
    """Start a broker for one test without an event loop."""
    from sandq.testing.brokers import broker

    with broker() as started:
        yield started


@pytest.fixture
def async_sandq_broker() -> Iterator[AsyncBroker]:
    """Start a broker for one test under trio or asyncio. Works with any plugin that runs async tests."""
    from sandq.testing.brokers import broker

    with broker() as started:
        yield started.for_async()
