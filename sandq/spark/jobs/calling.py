"""`called` runs the async part of a job for a blocking caller, with a new client."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Final, TypeVar

from sandq.client import Client
from sandq.sync import connect

T = TypeVar("T")

CLIENT_NAME: Final = "sandq-job"


def called(servers: Sequence[str], work: Callable[[Client], Awaitable[T]]) -> T:
    """Run `work` with a client that is connected to `servers` (by default the one on this machine); return its result.

    Raises ConnectionLost if no server can be reached. Ctrl-C ends it.
    """
    with connect(*servers, name=CLIENT_NAME) as client:
        return client.call(work)
