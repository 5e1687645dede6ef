"""What a consumer asks for when it subscribes, and what it is owed."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Final

import trio

from sandq.broker.event_loop import Turn
from sandq.broker.leader.partition_leader import PartitionLeader
from sandq.broker.reads.fan_out import call_all
from sandq.broker.replication.node_log import NodeLog
from sandq.broker.replication.replica import Delivery, PartitionReplica
from sandq.model import offsets
from sandq.model.errors import InvalidRequest, TooLarge
from sandq.partition import commands as c
from sandq.protocol.requests import Subscribe

PARTITIONS_AT_ONCE: Final = 20
"""In which a group is made. The thread that applies goes round over the partitions: one that has a message to store is
not to come behind hundreds of these, each of which takes it about a ms. Fewer would be more syncs of the log ..."""
GROUPS_AT_ONCE: Final = 2
"""... and so many are made at a time: one is not kept waiting by a partition that does not answer."""
EPOCH_BITS: Final = 20
"""Of the epoch of a consumer that lasts, below the node's milliseconds by which clients choose it."""
EPOCHS_AHEAD_MS: Final = 366 * 86_400_000
"""An epoch is of a moment so far ahead at most: clocks are wrong, by less."""
COUNT_S: Final = 1.0
"""The groups of all partitions are counted at most so often: there may be thousands of partitions."""


class GroupOpenings:
    """Makes groups where they are new: for all who ask for the same one at a time, once."""

    def __init__(self, most: int, node_log: NodeLog) -> None:
        """`most`: groups on this node, each counted in every partition."""
        self._most = most
        self._node_log = node_log
        self._counted_s = -math.inf
        self._there = 0
        """How many there were when they were counted, and those that were asked for since ..."""
        self._opening = 0
        """... of which these are being made."""
        self._locks: dict[tuple[str, str], trio.Lock] = {}
        self._room = trio.Semaphore(GROUPS_AT_ONCE)

    async def open(self, topic: str, leaders: Sequence[PartitionLeader], group: str, start: c.Position) -> None:
        """Make the group in those of these partitions where it is new. Raises NotLeader, InvalidRequest, TooLarge,
        StorageFailed."""
        if not _without(group, leaders):
            return
        lock = self._locks.setdefault((topic, group), trio.Lock())
        try:
            async with lock:
                opening = _without(group, leaders)
                self._check_room(len(opening))
                self._opening += (left := len(opening))
                try:
                    for first in range(0, len(opening), PARTITIONS_AT_ONCE):
                        some = opening[first : first + PARTITIONS_AT_ONCE]
                        await self._open(some, group, start, leaders)
                        self._opening -= len(some)
                        left -= len(some)
                finally:
                    self._opening -= left
        finally:
            if not (lock.locked() or lock.statistics().tasks_waiting):
                self._locks.pop((topic, group), None)

    def _check_room(self, more: int) -> None:
        """Whether there may be so many groups more, which count from now on. Raises TooLarge."""
        now_s = trio.current_time()
        if now_s >= self._counted_s + COUNT_S:
            self._counted_s = now_s
            self._there = self._node_log.group_count() + self._opening
        count = self._there + more
        if more and count > self._most:
            raise TooLarge(
                f"this node would have {count} groups, each counted in every partition; {self._most} are allowed "
                "(limits.groups): delete some, or raise it in the configuration of every node",
                limit="groups",
                maximum=self._most,
                size=count,
            )
        self._there = count

    async def _open(
        self, opening: Sequence[PartitionLeader], group: str, start: c.Position, among: Sequence[PartitionLeader]
    ) -> None:
        async with self._room:
            there = [status for each in among if (status := each.raft_group.status.groups.get(group)) is not None]
            is_paused = any(status.is_paused for status in there)
            await call_all(
                [(d.raft_group, c.OpenGroup(group, start_in(start, d.partition), is_paused)) for d in opening]
            )
        for leader in opening:
            leader.touched_with(group)


def _without(group: str, leaders: Sequence[PartitionLeader]) -> list[PartitionLeader]:
    return [leader for leader in leaders if leader.raft_group.status.groups.get(group) is None]


def start_in(start: c.Position, partition: int) -> c.Position:
    """An offset is of one partition: the others begin at its time."""
    if isinstance(start, bytes) and offsets.unpack(start).partition != partition:
        return offsets.deliver_ms(start)
    return start


Known = Mapping[tuple[int, int], set[int]]
"""Tokens of leases that a consumer knows of, by group number and partition."""


async def known_to(request: Subscribe) -> Known:
    """The leases that the consumer knows of; there may be many."""
    turn, known = Turn(), defaultdict[tuple[int, int], set[int]](set)
    for group, partition, token in request.held:
        known[group, partition].add(token)
        await turn.spend(1)
    return known


def held_by(
    leaders: Sequence[PartitionLeader], request: Subscribe, known: Known, most_bytes: int
) -> tuple[list[tuple[PartitionLeader, Delivery]], list[PartitionLeader]]:
    """Live leases of a consumer that it does not know of, as many as its connection may hold, and the partitions that
    are to be looked at later: an entry of theirs is half done, and the loop has not been told yet what it leased (apply
    thread).

    Those beyond run out, and come back.
    """
    found: list[tuple[PartitionLeader, Delivery]] = []
    later: list[PartitionLeader] = []
    left = most_bytes
    for leader in leaders:
        replica = leader.raft_group.replica
        assert isinstance(replica, PartitionReplica)
        if replica.is_mid_entry:
            later.append(leader)
            continue
        tokens = known.get((leader.raft_group.number, leader.partition), set())
        for held in replica.held_by(request.group, request.consumer_id, tokens, request.epoch or 0):
            if left <= 0:
                return found, []
            left -= size_of(held)
            found.append((leader, held))
    return found, later


def check_epoch(epoch: int, now_ms: int) -> None:
    """Raise InvalidRequest when an epoch of a consumer is far ahead of the node's time, by which clients choose theirs:
    no process could come after it, and take over, as long as it is known."""
    most = now_ms + EPOCHS_AHEAD_MS << EPOCH_BITS
    if epoch > most:
        raise InvalidRequest(
            f"the consumer's epoch {epoch} is more than a year ahead (the highest is {most} now): take epoch "
            f"milliseconds * 2^{EPOCH_BITS}, so that a later process has a higher one"
        )


def reclaimable(leaders: Sequence[PartitionLeader], request: Subscribe, epoch: int) -> list[PartitionLeader]:
    """Those of the partitions in which the consumer may have leases of another epoch (apply thread)."""
    found = []
    for leader in leaders:
        replica = leader.raft_group.replica
        assert isinstance(replica, PartitionReplica)
        if replica.is_mid_entry or replica.holds_otherwise(request.group, request.consumer_id, epoch):
            found.append(leader)
    return found


async def reclaim(leaders: Sequence[PartitionLeader], command: c.Reclaim) -> None:
    """Have a consumer's leases of lower epochs leased to it anew, in these partitions. Raises ConsumerFenced, and what
    refuses a command."""
    left = list(leaders)
    while left:
        some, left = left[:PARTITIONS_AT_ONCE], left[PARTITIONS_AT_ONCE:]
        results = await call_all([(leader.raft_group, command) for leader in some])
        left = [leader for leader, (_, more) in zip(some, results, strict=True) if more] + left


def size_of(held: Delivery) -> int:
    """Bytes that its consumer's connection holds for it."""
    return sum(len(piece.batch) for piece in held.pieces)
