"""Prepare a consumer's subscription: create its group, find its leases, and reclaim the leases of earlier processes."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Final

import trio

from sandq.broker.event_loop import TimeSlice
from sandq.broker.leader.partition_leader import PartitionLeader
from sandq.broker.reads.fan_out import call_all
from sandq.broker.replication.node_log import NodeLog
from sandq.broker.replication.replica import Delivery, PartitionReplica
from sandq.model import offsets
from sandq.model.errors import InvalidRequest, TooLarge
from sandq.partition import commands as c
from sandq.protocol.requests import Subscribe

PARTITIONS_AT_ONCE: Final = 20
"""Number of partitions in which a group is created at the same time.

The apply thread serves the partitions round robin, and each creation takes about 1 ms. With a higher number, a
partition that must store a message would wait for more creations. With a lower number, the log would be synced more
often."""
GROUPS_AT_ONCE: Final = 2
"""Number of groups that are created at the same time.

With a number above 1, a partition that does not answer blocks only one creation. Other groups are still created."""
EPOCH_BITS: Final = 20
"""Number of low bits of a durable consumer's epoch that are not part of the time. The higher bits are the time in ms at
which the client chose the epoch."""
EPOCHS_AHEAD_MS: Final = 366 * 86_400_000
"""Maximum time in ms by which an epoch may be ahead of this node's clock: a year, as clocks may be wrong."""
COUNT_S: Final = 1.0
"""Minimum time in s between two counts of this node's groups. A count visits all partitions, which may be
thousands."""


class GroupOpenings:
    """Creates groups in partitions that lack them. Concurrent requests for the same group create the group only
    once."""

    def __init__(self, most: int, node_log: NodeLog) -> None:
        """`most`: maximum number of groups on this node, each counted once per partition."""
        self._most = most
        self._node_log = node_log
        self._counted_s = -math.inf
        self._group_count = 0
        """Number of groups at the last count, plus the groups requested since then."""
        self._opening = 0
        """Number of groups that are being created."""
        self._locks: dict[tuple[str, str], trio.Lock] = {}
        self._slots = trio.Semaphore(GROUPS_AT_ONCE)

    async def open(self, topic: str, leaders: Sequence[PartitionLeader], group: str, start: c.Position) -> None:
        """Create the group in those of these partitions that lack it.

        Raise NotLeader, InvalidRequest, TooLarge, StorageFailed."""
        if not _without(group, leaders):
            return
        lock = self._locks.setdefault((topic, group), trio.Lock())
        try:
            async with lock:
                opening = _without(group, leaders)
                self._check_limit(len(opening))
                # `_opening` includes these partitions until their groups are created, so that a count includes them.
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

    def _check_limit(self, more: int) -> None:
        """Add `more` to the number of groups. Raise TooLarge if the sum exceeds the limit."""
        now_s = trio.current_time()
        if now_s >= self._counted_s + COUNT_S:
            self._counted_s = now_s
            self._group_count = self._node_log.group_count() + self._opening
        count = self._group_count + more
        if more and count > self._most:
            raise TooLarge(
                f"this node would have {count} groups, each counted in every partition; {self._most} are allowed "
                "(limits.groups): delete some, or raise it in the configuration of every node",
                limit="groups",
                maximum=self._most,
                size=count,
            )
        self._group_count = count

    async def _open(
        self, opening: Sequence[PartitionLeader], group: str, start: c.Position, among: Sequence[PartitionLeader]
    ) -> None:
        """Create the group in a few partitions at once. If the group is paused in any partition of `among`, it starts
        paused, up to the last end of these pauses."""
        async with self._slots:
            there = [status for each in among if (status := each.raft_group.status.groups.get(group)) is not None]
            ends = [status.paused_until_ms for status in there if status.is_paused]
            until_ms = None if None in ends else max([end for end in ends if end is not None], default=None)
            await call_all(
                [
                    (each.raft_group, c.OpenGroup(group, start_in(start, each.partition), bool(ends), until_ms))
                    for each in opening
                ]
            )
        for leader in opening:
            leader.touched_with(group)


def _without(group: str, leaders: Sequence[PartitionLeader]) -> list[PartitionLeader]:
    """Return the partitions in which the group does not exist."""
    return [leader for leader in leaders if leader.raft_group.status.groups.get(group) is None]


def start_in(start: c.Position, partition: int) -> c.Position:
    """Return the start position for a partition.

    If `start` is an offset, the offset applies to its own partition. The other partitions start at the delivery time of
    the offset."""
    if isinstance(start, bytes) and offsets.unpack(start).partition != partition:
        return offsets.deliver_ms(start)
    return start


Known = Mapping[tuple[int, int], set[int]]
"""Tokens of the leases that a consumer knows, by group number and partition."""


async def known_to(request: Subscribe) -> Known:
    """Return the leases that the consumer knows. A request may name many leases, so other tasks may run in between."""
    time_slice, known = TimeSlice(), defaultdict[tuple[int, int], set[int]](set)
    for group, partition, token in request.held:
        known[group, partition].add(token)
        await time_slice.spend(1)
    return known


def held_by(
    leaders: Sequence[PartitionLeader], request: Subscribe, known: Known, most_bytes: int
) -> tuple[list[tuple[PartitionLeader, Delivery]], list[PartitionLeader]]:
    """Return the live leases of a consumer that the consumer does not know, and the partitions to check later.

    The capacity of the connection limits the number of returned leases. All other leases expire, and their messages are
    delivered again. A partition is checked later if an entry in it is half applied: the event loop does not know the
    leases of this entry yet. Runs on the apply thread."""
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
    """Raise InvalidRequest if a consumer's epoch is too far ahead of this node's clock.

    Clients derive epochs from the time. While such a high epoch is remembered, a later process could not have a higher
    epoch and take over."""
    most = now_ms + EPOCHS_AHEAD_MS << EPOCH_BITS
    if epoch > most:
        raise InvalidRequest(
            f"the consumer's epoch {epoch} is more than a year ahead (the highest is {most} now): use epoch "
            f"milliseconds * 2^{EPOCH_BITS}, so that a later process has a higher one"
        )


def reclaimable(leaders: Sequence[PartitionLeader], request: Subscribe, epoch: int) -> list[PartitionLeader]:
    """Return the partitions in which the consumer may have leases of another epoch. Runs on the apply thread."""
    found = []
    for leader in leaders:
        replica = leader.raft_group.replica
        assert isinstance(replica, PartitionReplica)
        if replica.is_mid_entry or replica.holds_otherwise(request.group, request.consumer_id, epoch):
            found.append(leader)
    return found


async def reclaim(leaders: Sequence[PartitionLeader], command: c.Reclaim) -> None:
    """In these partitions, grant a consumer new leases of the messages that it holds under lower epochs.

    Raise ConsumerFenced, and the errors of `RaftGroup.submit`."""
    left = list(leaders)
    while left:
        some, left = left[:PARTITIONS_AT_ONCE], left[PARTITIONS_AT_ONCE:]
        results = await call_all([(leader.raft_group, command) for leader in some])
        left = [leader for leader, (_, more) in zip(some, results, strict=True) if more] + left


def size_of(held: Delivery) -> int:
    """Return the bytes that a lease occupies in the connection of its consumer."""
    return sum(len(piece.batch) for piece in held.pieces)
