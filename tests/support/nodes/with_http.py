"""Run nodes in this process that serve HTTP in a thread. Starting an HTTP process would take longer than most tests."""

from __future__ import annotations

from functools import partial
from typing import Final

from sandq import node
from sandq.server.http.serve import RunningApp
from sandq.server.http.thread import ThreadLaunch

_launch: Final = ThreadLaunch()
run_node: Final = partial(node.run_node, launch=_launch)
"""Run a node as `sandq.node.run_node` does, with HTTP in a thread."""


def serving() -> RunningApp:
    """Return the HTTP application of the thread that started last."""
    assert _launch.thread is not None and _launch.thread.running is not None
    return _launch.thread.running
