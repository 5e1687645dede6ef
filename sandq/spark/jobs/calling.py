"""A job's async work done by a blocking caller, through a client of its own."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Final, TypeVar

from sandq.client import Client
from sandq.sync import connect

T = TypeVar("T")

CLIENT_NAME: Final = "sandq-job"


def called(servers: Sequence[str], work: Callable[[Client], Awaitable[T]]) -> T:
    """Wait for `work` with a client of these servers (none: the one on this machine). ConnectionLost when none can be
    reached; Ctrl-C ends it."""
    with connect(*servers, name=CLIENT_NAME) as client:
        return client.call(work)
