"""Send commands to several Raft groups at once, or confirm reads of several groups at once.

If there are thousands of groups, each iteration of the event loop serves about a hundred of them.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from functools import partial
from typing import Any, Final

import trio

from sandq.broker.event_loop import TimeSlice
from sandq.broker.replication.raft_group import RaftGroup
from sandq.model.errors import SandqError

GROUP_WORK: Final = 4
"""Units of work that one group costs in a time slice."""


async def read_all(hosts: Sequence[RaftGroup]) -> None:
    """Run `RaftGroup.read` for all groups at once: wait until each has applied all entries acknowledged before.

    Raise the errors of `RaftGroup.read`."""
    time_slice, begun = TimeSlice(), []
    for host in hosts:
        begun.append((host, host.begin_read()))
        await time_slice.spend(GROUP_WORK)
    for host, confirmation in begun:
        await host.finish_read(confirmation)


async def call_all(commands: Sequence[tuple[RaftGroup, Any]]) -> list[Any]:
    """Submit all commands at once, wait for all results, and return them. If a command failed, raise the first
    error."""
    results = await answers_of(commands)
    for result in results:
        if isinstance(result, SandqError):
            raise result
    return results


async def answers_of(commands: Sequence[tuple[RaftGroup, Any]], line: Hashable | None = None) -> list[Any]:
    """Submit all commands at once, and return their results. The result of a failed command is its SandqError.

    `line`: see `RaftGroup.submit`."""
    results: list[Any] = [None] * len(commands)
    left = len(commands)
    finished = trio.Event()

    def done(at: int, result: Any) -> None:
        nonlocal left
        results[at] = result
        left -= 1
        if not left:
            finished.set()

    time_slice = TimeSlice()
    for at, (host, command) in enumerate(commands):
        await time_slice.spend(GROUP_WORK)
        try:
            host.submit(command, partial(done, at), line=line)
        except SandqError as error:
            done(at, error)
    if commands:
        await finished.wait()
    return results
