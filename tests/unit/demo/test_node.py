"""The demo ends its nodes cleanly."""

from __future__ import annotations

from pathlib import Path

from demo.node import Node
from tests.support.waiting import wait_until

STOPS_SLOWLY = """
import signal, sys, time
def told(*_):
    print("told", flush=True)
    time.sleep(0.1)
    sys.exit(7)
signal.signal(signal.SIGTERM, told)
print("ready", flush=True)
time.sleep(600)
"""


def started(node: Node) -> None:
    before = node.log_file.read_text().count("ready") if node.log_file.exists() else 0
    node.start()
    wait_until(lambda: node.log_file.read_text().count("ready") > before)


def test_a_node_is_told_once_to_stop(tmp_path: Path) -> None:
    """All of a cluster are told before one is waited for; a second signal would end a node at once."""
    node = Node(tmp_path, program=("-c", STOPS_SLOWLY))
    for told in (1, 2):
        started(node)
        node.terminate()
        assert node.stop() == 7
        assert node.log_file.read_text().count("told") == told
