"""Nodes of this process that serve HTTP in a thread: a process of its own would take more time than most tests."""

from __future__ import annotations

from functools import partial
from typing import Final

from sandq import node
from sandq.server.http.serve import RunningApp
from sandq.server.http.thread import ThreadLaunch

_launch: Final = ThreadLaunch()
run_node: Final = partial(node.run_node, launch=_launch)
"""`sandq.node.run_node`, with HTTP in a thread."""


def serving() -> RunningApp:
    """Return the application of the thread that was launched last."""
    assert _launch.thread is not None and _launch.thread.running is not None
    return _launch.thread.running
