"""The demo ends its nodes cleanly."""

from __future__ import annotations

import time
from pathlib import Path

from demo.node import Node

STOPS_SLOWLY = """
import signal, sys, time
def told(*_):
    print("told", flush=True)
    time.sleep(0.3)
    sys.exit(7)
signal.signal(signal.SIGTERM, told)
print("ready", flush=True)
time.sleep(60)
"""


def started(node: Node) -> None:
    before = node.log_file.read_text().count("ready") if node.log_file.exists() else 0
    node.start()
    while node.log_file.read_text().count("ready") == before:
        time.sleep(0.01)


def test_a_node_is_told_once_to_stop(tmp_path: Path) -> None:
    """All of a cluster are told before one is waited for; a second signal would end a node at once."""
    node = Node(tmp_path, program=("-c", STOPS_SLOWLY))
    for told in (1, 2):
        started(node)
        node.terminate()
        assert node.stop() == 7
        assert node.log_file.read_text().count("told") == told
