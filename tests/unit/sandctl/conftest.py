"""A scripted server in a thread, and sandctl run against it, in this process or in one of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from sandctl.main import main
from tests.unit.client.fake_server import FakeServer
from tests.unit.client.threaded_server import ThreadedServer

ROOT = Path(__file__).parents[3]


@pytest.fixture
def server() -> Iterator[FakeServer]:
    fake = FakeServer(auto=True)
    fake.add_topic("t")
    with ThreadedServer(fake):
        yield fake


@pytest.fixture
def ctl(server: FakeServer) -> Callable[..., Result]:
    """`ctl("topic", "list")`: sandctl in this process, talking to the server."""

    def invoke(*args: str, input: bytes | None = None, env: dict[str, str] | None = None) -> Result:
        runner = CliRunner(env={"SANDCTL_SERVERS": server.address, **(env or {})})
        return runner.invoke(main, args, input=input)

    return invoke


@pytest.fixture
def spawn(server: FakeServer) -> Iterator[Callable[..., subprocess.Popen[bytes]]]:
    """`spawn("consume", ...)`: sandctl in a process of its own, with pipes."""
    running: list[subprocess.Popen[bytes]] = []

    def start(*args: str, **more: Any) -> subprocess.Popen[bytes]:
        pipe = subprocess.PIPE
        process = subprocess.Popen(
            [sys.executable, "-m", "sandctl", "--server", server.address, *args],
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
