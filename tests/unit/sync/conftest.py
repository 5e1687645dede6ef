"""Fixtures of the blocking face's tests: a fake server in a thread of its own, with topic "t"."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

import sandq
from tests.support.client.fake_server import FakeServer
from tests.support.client.threaded_server import ThreadedServer


@pytest.fixture
def threaded() -> Iterator[ThreadedServer]:
    server = FakeServer(auto=True)
    server.add_topic("t")
    threaded = ThreadedServer(server)
    with threaded:
        yield threaded


@pytest.fixture
def server(threaded: ThreadedServer) -> FakeServer:
    return threaded.server


@pytest.fixture
def client(server: FakeServer) -> Iterator[sandq.sync.Client]:
    with sandq.sync.connect(server.address) as client:
        yield client
    assert not [thread for thread in threading.enumerate() if thread.name == "sandq-client"], "its thread has ended"
