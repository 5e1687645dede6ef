"""The demo ends its nodes cleanly."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from demo.node import ROOT, Node, free_port
from tests.support.waiting import PATIENCE_S, wait_until

STOPS_SLOWLY = """
import os, signal, sys, time
def told(*_):
    os.write(1, b"told\\n")  # it may come within another write: print() is not to be entered twice
    time.sleep(0.1)
    sys.exit(7)
signal.signal(signal.SIGTERM, told)
os.write(1, b"ready\\n")
time.sleep(600)
"""


def started(node: Node) -> None:
    before = node.log_file.read_text().count("ready") if node.log_file.exists() else 0
    node.start()
    wait_until(lambda: node.log_file.read_text().count("ready") > before)


def test_node_gets_one_stop_signal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All nodes of a cluster get the signal before the first one is awaited. A second signal would kill a node."""
    monkeypatch.setattr("demo.node.STOP_S", PATIENCE_S)
    node = Node(tmp_path, program=("-c", STOPS_SLOWLY))
    for told in (1, 2):
        started(node)
        node.terminate()
        assert node.stop() == 7
        assert node.log_file.read_text().count("told") == told


def test_a_port_that_was_named_is_no_other_process_s() -> None:
    """A port that another process has reserved is not returned, even if nothing listens there yet."""
    port = free_port()
    program = f"import random; random.randrange = lambda *_: {port}\nfrom demo.node import free_port\nfree_port()"
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False)
    assert "NodeFailed: no port is free" in done.stderr
