"""kombu's own integration tests for the transport. `python -m tests.support.suites` copies this file to them."""

from __future__ import annotations

import contextlib
import os
import socket
from typing import Any

import kombu
import pytest
import sandq_workers.kombu  # noqa: F401 registers the transport

from .common import (
    BaseEventLoop,
    BaseExchangeTypes,
    BaseFailover,
    BaseMessage,
    BasePriority,
    BaseTimeToLive,
    BasicFunctionality,
)

URL = os.environ["SANDQ_URL"]
AWAY = "sandq://127.0.0.1:1"
QUIET_S = 0.3


class Drained(kombu.Connection):
    """A connection whose `drain_events` delivers all messages, as that of AMQP does."""

    def drain_events(self, **options: Any) -> None:
        super().drain_events(**options)
        with contextlib.suppress(socket.timeout):
            while True:
                super().drain_events(timeout=QUIET_S)


@pytest.fixture
def connection() -> kombu.Connection:
    return kombu.Connection(URL)


@pytest.fixture
def invalid_connection() -> kombu.Connection:
    return kombu.Connection(AWAY)


@pytest.fixture
def failover_connection() -> kombu.Connection:
    return kombu.Connection(f"{AWAY};{URL}", connect_timeout=10)


class TestBasicFunctionality(BasicFunctionality):
    pass


class TestExchangeTypes(BaseExchangeTypes):
    pass


class TestTimeToLive(BaseTimeToLive):
    pass


class TestPriority(BasePriority):
    @pytest.fixture
    def connection(self) -> kombu.Connection:
        return Drained(URL)


class TestFailover(BaseFailover):
    test_failover_switches_to_alternate_url = None
    """Not applicable: it reads the attribute `port`, and a URL of sandq may have several hosts and ports."""


class TestMessage(BaseMessage):
    pass


class TestEventLoop(BaseEventLoop):
    pass
