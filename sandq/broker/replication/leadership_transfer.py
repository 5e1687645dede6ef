"""Transfer leadership to other nodes: before this node stops, while its clock is wrong, or to balance the load."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from typing import Final

import trio

from sandq.broker.replication.raft_group import RaftGroup
from sandq.model.members import node_of

HAND_OVER_S: Final = 3.0
PAUSE_S: Final = 0.05
RETRY_S: Final = 10.0
"""Pause in s after a failed transfer before the next attempt. During an attempt, the group accepts no commands."""


async def hand_over(
    hosts: Callable[[], Iterable[RaftGroup]], nodes: Collection[str], within_s: float = HAND_OVER_S
) -> list[int]:
    """For each group that this node leads, transfer leadership to a voter on one of `nodes`. Stop after `within_s`
    seconds.

    During that time, the groups accept no commands. Return the numbers of the groups that should have been transferred,
    but are still led by this node."""
    try:
        with trio.move_on_after(within_s):
            while led := [host for host in hosts() if can_leave(host, nodes)]:
                for host in led:
                    host.hand_over(nodes)
                await trio.sleep(PAUSE_S)
        return [host.number for host in hosts() if can_leave(host, nodes)]
    finally:
        for host in hosts():
            host.stop_leaving()


def can_leave(host: RaftGroup, nodes: Collection[str]) -> bool:
    """Return whether this node leads the group and another voter of the group is on one of these nodes."""
    group = host.group
    return group.is_leader and any(node_of(m) in nodes and m != group.member for m in group.members.voters)
