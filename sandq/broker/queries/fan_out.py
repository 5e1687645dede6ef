"""Several groups at once: commands, and reads."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import trio

from sandq.broker.replication.raft_group import RaftGroup
from sandq.model.errors import SandqError


async def read_all(hosts: Sequence[RaftGroup]) -> None:
    """`RaftGroup.read` of all of them, at once."""
    for host, confirmation in [(host, host.begin_read()) for host in hosts]:
        await host.finish_read(confirmation)


async def call_all(commands: Sequence[tuple[RaftGroup, Any]]) -> list[Any]:
    """Submit all at once, and wait for all results. Raises the first that is an error, after all have come."""
    results = await answers_of(commands)
    for result in results:
        if isinstance(result, SandqError):
            raise result
    return results


async def answers_of(commands: Sequence[tuple[RaftGroup, Any]]) -> list[Any]:
    """Submit all at once, and wait for all results; a SandqError stands where one failed."""
    results: list[Any] = [None] * len(commands)
    left = len(commands)
    finished = trio.Event()

    def done(at: int, result: Any) -> None:
        nonlocal left
        results[at] = result
        left -= 1
        if not left:
            finished.set()

    for at, (host, command) in enumerate(commands):
        try:
            host.submit(command, partial(done, at))
        except SandqError as error:
            done(at, error)
    if commands:
        await finished.wait()
    return results
