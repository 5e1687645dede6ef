"""Each program of docs/examples/ is run against a real node, with the command in its header."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import sandq
from tests.support.documents import document
from tests.support.paths import ROOT
from tests.support.processes.node import NodeProcess
from tests.support.waiting import PATIENCE_S, wait_until

EXAMPLES = ROOT / "docs" / "examples"


@pytest.fixture
def node(tmp_path: Path) -> Iterator[NodeProcess]:
    process = NodeProcess(tmp_path)
    process.start()
    yield process
    process.close()


@pytest.fixture
def start() -> Iterator[Callable[..., subprocess.Popen[str]]]:
    begun: list[subprocess.Popen[str]] = []

    def run(*arguments: str, **environ: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, *arguments],
            cwd=EXAMPLES,
            env=os.environ | {"PYTHONPATH": str(ROOT)} | environ,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        begun.append(process)
        return process

    yield run
    for process in begun:
        process.kill()
        process.communicate()


def output(process: subprocess.Popen[str]) -> str:
    out, err = process.communicate()
    assert (process.returncode, err) == (0, "")
    return out


def test_every_example_is_tested_and_documented() -> None:
    assert {path.name for path in EXAMPLES.iterdir() if path.suffix == ".py"} == {
        "plain_script.py", "push_receiver.py", "worker.py"
    }  # fmt: skip
    page = document("client")
    assert all(f"(examples/{path.name})" in page for path in EXAMPLES.glob("*.py"))


def test_plain_script_runs(node: NodeProcess, start: Callable[..., subprocess.Popen[str]]) -> None:
    begun = time.monotonic()
    first, *rest = output(start("plain_script.py", node.address)).splitlines()
    assert first.startswith("tea is message 0")
    assert rest == ["tea is ready", "eggs are ready", "cake is ready"]
    assert time.monotonic() - begun >= 3


def test_worker_runs(node: NodeProcess, start: Callable[..., subprocess.Popen[str]]) -> None:
    worker = start("worker.py", "--server", node.address, "--concurrency", "2")
    with sandq.sync.connect(node.address, timeout=PATIENCE_S) as client:
        wait_until(lambda: [topic.name for topic in client.admin.list_topics()] == ["tasks"])
        for word, delay in (("hello", "0s"), ("later", "1s"), ("boom", "0s")):
            output(start("worker.py", "--server", node.address, "--say", word, "--in", delay))
        failing = [client.produce("tasks", b'{"args": [], "kwargs": {}}', headers={"task": "nobody's"})]
        failing += [message.id for message in client.messages("tasks").list(values=True) if b"boom" in message.value]

        def errors() -> set[str | None]:
            # Look up the messages by their ids, because dead and long waiting messages leave the log.
            found = [client.messages("tasks").why(message_id) for message_id in failing]
            groups = [group for why in found for group in why["groups"]]
            return {attempt[5] for group in groups for attempt in group["history"]}

        wait_until(lambda: errors() == {"RuntimeError: it went boom", 'unknown task "nobody\'s"'})
        assert worker.stdout is not None
        assert {worker.stdout.readline() for _ in range(2)} == {"hello\n", "later\n"}
    worker.send_signal(signal.SIGTERM)
    _, err = worker.communicate()
    assert worker.returncode == 0
    assert "RuntimeError: it went boom" in err, "each failure is logged with its traceback"
