"""Fixtures of the tests of the blocking client: a fake server in a separate thread, with topic "t"."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from functools import partial

import pytest

import sandq
from sandq.client.options import Options
from tests.support.client.fake_server import FakeServer
from tests.support.client.threaded_server import ThreadedServer


@pytest.fixture(autouse=True)
def _patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pauses of the machine must not cause timeouts."""
    for name in ("_EXIT_S", "_LEAVE_S", "_CLOSE_S"):
        monkeypatch.setattr(f"sandq.sync.client.{name}", 1000.0)
    options = partial(Options, close_timeout_s=1000.0, cancel_timeout_s=1000.0)
    monkeypatch.setattr("sandq.client.client.Options", options)


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
    assert not [thread for thread in threading.enumerate() if thread.name == "sandq-client"], (
        "the thread of the client has ended"
    )
