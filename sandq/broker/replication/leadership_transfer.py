"""Leadership given to others: before this node stops, when its clock is wrong, or because another one is to lead."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from typing import Final

import trio

from sandq.broker.replication.raft_group import RaftGroup
from sandq.model.members import node_of

HAND_OVER_S: Final = 3.0
PAUSE_S: Final = 0.05
AGAIN_S: Final = 10.0
"""After a hand-over that did not come about: meanwhile nothing is taken."""


async def hand_over(
    hosts: Callable[[], Iterable[RaftGroup]], nodes: Collection[str], within_s: float = HAND_OVER_S
) -> list[int]:
    """Let one of these nodes lead each of the groups that this one leads, where it has a vote. Meanwhile they take no
    commands. Returns the numbers of those that this node goes on leading after that time: nobody has taken over."""
    try:
        with trio.move_on_after(within_s):
            while led := [host for host in hosts() if can_leave(host, nodes)]:
                for host in led:
                    host.hand_over(nodes)
                await trio.sleep(PAUSE_S)
        return [host.number for host in hosts() if can_leave(host, nodes)]
    finally:
        for host in hosts():
            host.stay()


def can_leave(host: RaftGroup, nodes: Collection[str]) -> bool:
    """Whether this node leads the group, and one of these has a vote in it."""
    group = host.group
    return group.is_leader and any(node_of(m) in nodes and m != group.member for m in group.members.voters)
