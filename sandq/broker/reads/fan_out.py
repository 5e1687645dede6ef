"""Several groups at once: commands, and reads. Of thousands some hundred are asked in one turn of the loop."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from functools import partial
from typing import Any, Final

import trio

from sandq.broker.event_loop import Turn
from sandq.broker.replication.raft_group import RaftGroup
from sandq.model.errors import SandqError

GROUP_WORK: Final = 4


async def read_all(hosts: Sequence[RaftGroup]) -> None:
    """`RaftGroup.read` of all of them, at once."""
    turn, begun = Turn(), []
    for host in hosts:
        begun.append((host, host.begin_read()))
        await turn.spend(GROUP_WORK)
    for host, confirmation in begun:
        await host.finish_read(confirmation)


async def call_all(commands: Sequence[tuple[RaftGroup, Any]]) -> list[Any]:
    """Submit all at once, and wait for all results. Raises the first that is an error, after all have come."""
    results = await answers_of(commands)
    for result in results:
        if isinstance(result, SandqError):
            raise result
    return results


async def answers_of(commands: Sequence[tuple[RaftGroup, Any]], line: Hashable | None = None) -> list[Any]:
    """Submit all at once, in a line (see `RaftGroup.submit`), and wait for all results; a SandqError stands where one
    failed."""
    results: list[Any] = [None] * len(commands)
    left = len(commands)
    finished = trio.Event()

    def done(at: int, result: Any) -> None:
        nonlocal left
        results[at] = result
        left -= 1
        if not left:
            finished.set()

    turn = Turn()
    for at, (host, command) in enumerate(commands):
        await turn.spend(GROUP_WORK)
        try:
            host.submit(command, partial(done, at), line=line)
        except SandqError as error:
            done(at, error)
    if commands:
        await finished.wait()
    return results
