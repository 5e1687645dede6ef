"""Fixtures: a scripted server in a thread, and sandctl with this server in this process or in a separate process."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from click.testing import CliRunner, Result

from sandctl.main import main
from sandq.protocol.frames import Frame
from sandq.protocol.requests import Lease, Subscribe
from tests.support.client.fake_server import FakeConnection, FakeServer, Subscribed
from tests.support.client.threaded_server import ThreadedServer
from tests.support.paths import ROOT
from tests.support.sandctl.fake_client import NOW_MS, Ctl, FakeClient, connected_to
from tests.support.sandctl.patient import LONG_S, patient


class LeasingServer(FakeServer):
    """A server that answers LEASE with one ready message and counts the requests."""

    leases = 0

    def do_lease(self, connection: FakeConnection, frame: Frame) -> Any:
        """Lease the first ready message of the topic."""
        request = Lease.parse(frame)
        self.record(request.topic)
        self.leases += 1
        for (topic, partition), rows in self.stored.items():
            for row in rows if topic == request.topic else ():
                if row.state == "ready":
                    row.state, row.token, row.attempt = "leased", self.index << 16, row.attempt + 1
                    taker = Subscribed(connection, Subscribe(frame[1], topic, "", "", 1, None, "earliest", []), 1)
                    self.deliver(taker, [row.value], token=row.token, partition=partition, base=row.offset)
                    return (1,)
        return (0,)


@pytest.fixture
def server() -> Iterator[FakeServer]:
    fake = LeasingServer(auto=True)
    fake.add_topic("t")
    with ThreadedServer(fake):
        yield fake


@pytest.fixture
def ctl(server: FakeServer, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Result]:
    """`ctl("topic", "list")`: sandctl in this process, talking to the server."""
    for name in ("CONNECT_S", "REQUEST_S", "DELIVERY_S"):
        monkeypatch.setattr(f"sandctl.settings.{name}", LONG_S)
    monkeypatch.setattr("sandctl.bench_loads.CLEAN_UP_S", LONG_S)
    # The server's groups always have ready messages, after any number of pushes.
    monkeypatch.setattr("sandctl.commands.consume.ASKED_AT_MOST", 2)

    def invoke(*args: str, input: bytes | None = None, env: dict[str, str] | None = None) -> Result:
        runner = CliRunner(env={"SANDCTL_SERVERS": server.address, **(env or {})})
        return runner.invoke(main, args, input=input)

    return invoke


@pytest.fixture
def spawn(server: FakeServer) -> Iterator[Callable[..., subprocess.Popen[bytes]]]:
    """`spawn("consume", ...)`: sandctl in a separate process with pipes. See `patient`."""
    running: list[subprocess.Popen[bytes]] = []

    def start(*args: str, change: str = "", **more: Any) -> subprocess.Popen[bytes]:
        pipe = subprocess.PIPE
        process = subprocess.Popen(
            patient("--server", server.address, *args, change=change),
            **{"stdin": pipe, "stdout": pipe, "stderr": pipe, "cwd": ROOT, "env": dict(os.environ), **more},
        )
        running.append(process)
        return process

    yield start
    for process in running:
        process.kill()
        process.wait()
        for pipe in (process.stdin, process.stdout, process.stderr):
            if pipe is not None:
                pipe.close()


@pytest.fixture
def client(monkeypatch: pytest.MonkeyPatch) -> FakeClient:
    """The client that sandctl uses in `offline`. Its clock does not advance."""
    made = FakeClient()
    monkeypatch.setattr("sandctl.options.common.connected", connected_to(made))
    for module in ("sandctl.options.times", "sandctl.commands.message_changes", "sandctl.commands.messages"):
        monkeypatch.setattr(f"{module}.now_ms", lambda: NOW_MS)
    return made


@pytest.fixture
def offline(client: FakeClient) -> Ctl:
    """`ctl` without a server."""
    return lambda *args, input=None: CliRunner().invoke(main, args, input=input)


@pytest.fixture
def answers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make sandctl ask for confirmation, as on a terminal. `input` is the typed text."""
    monkeypatch.setattr("sandctl.options.confirmation.can_ask", lambda: True)
