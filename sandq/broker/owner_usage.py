"""Sum up the data of each owner's topics over all nodes, for owners whose quota limits this data.

Once a second, each node sums up the partitions that it leads, by owner, and reports the sums to the other nodes
(USAGE). So an owner may exceed its quota by the messages that arrive within two seconds. A partition without a leader
is not counted; it accepts no messages.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any, Final, NamedTuple

import trio

from sandq.broker.catalog import Catalog, OpenTopic
from sandq.broker.event_loop import TimeSlice
from sandq.broker.peers.links import PeerLinks
from sandq.broker.replication.replica import MetadataView, PartitionReplica
from sandq.broker.replication.runner import Runner
from sandq.model.errors import QuotaExceeded, StorageFailed, Unavailable
from sandq.model.quotas import Quota
from sandq.protocol.peer import PeerFrame

SUM_S: Final = 1.0
"""Interval in s between two sums."""
STALE_S: Final = 5.0
"""Age in s above which a report of a node is ignored. By then, other nodes lead the partitions that it reported."""
BOUNDED: Final = ("stored_bytes", "pending_messages")
"""Names of the quotas that limit the data of an owner's topics."""
_ROW: Final = [str, int, int]
_NAMES: Final = {"stored_bytes": "bytes stored", "pending_messages": "messages pending"}


class Held(NamedTuple):
    """Data of topics: stored bytes, and number of pending messages."""

    stored_bytes: int
    pending_messages: int

    def plus(self, other: Held) -> Held:
        """Return the sum of both."""
        return Held(self.stored_bytes + other.stored_bytes, self.pending_messages + other.pending_messages)


NOTHING: Final = Held(0, 0)
_Query = tuple[int, PartitionReplica, Any, int, int]
"""A partition to query: group number; replica; status; time in s from which to count the messages that become due;
number of messages that became due after the status and before that time."""


class OwnerUsage:
    """Sums up the usage of owners, and checks their quotas, on one node."""

    def __init__(
        self,
        catalog: Catalog,
        links: PeerLinks,
        runner: Runner,
        now_ms: Callable[[], int],
    ) -> None:
        self._catalog = catalog
        self._links = links
        self._runner = runner
        self._now_ms = now_ms
        self._view: MetadataView | None = None
        self._quotas: dict[str, Quota] = {}
        """Quotas by owner, for the owners whose quota limits their data."""
        self._own: dict[str, Held] = {}
        self._reports: dict[str, tuple[float, dict[str, Held]]] = {}
        """Last report of each other node: its time on trio's clock in s, and its sums by owner."""
        self._came_due: dict[int, tuple[Any, int, int]] = {}
        """Messages that became due since the last applied entry, by Raft group.

        A value is (status after that entry, time in s up to which messages are counted, number of messages)."""
        self.held: Mapping[str, Held] = {}
        """Sums over all nodes, by owner, for the owners whose quota limits their data."""

    @property
    def bounds_any(self) -> bool:
        """True if the quota of any owner limits the data of its topics."""
        return bool(self._quotas)

    def check(self, owner: str, size: int | None, pending: Callable[[], int | None]) -> None:
        """Raise QuotaExceeded if an owner would exceed its quota.

        `size`: bytes to store; None if nothing is stored. `pending`: function that returns the number of pending
        messages that the request adds. 0: the request adds none, but is refused if the owner has too many already.
        None: the number of pending messages is not checked."""
        quota = self._quotas.get(owner)
        if quota is None:
            return
        held = self.held.get(owner, NOTHING)
        most_bytes, most = quota.stored_bytes, quota.pending_messages
        if most_bytes is not None and size is not None:
            is_full = held.stored_bytes >= most_bytes
            if is_full or held.stored_bytes + size > most_bytes:
                raise _full(owner, "stored_bytes", held.stored_bytes, most_bytes, None if is_full else size)
        if most is not None and (count := pending()) is not None and held.pending_messages + count > most:
            raise _full(owner, "pending_messages", held.pending_messages, most, count)

    # -- sums -----------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Call `update` once a second, until cancelled. Start this only after the node has joined its cluster."""
        while True:
            await self.update()
            await trio.sleep(SUM_S)

    async def update(self) -> None:
        """Sum up the partitions that this node leads, and report the sums to the other nodes."""
        view = self._catalog.view
        if view is not self._view:
            self._view = view
            self._quotas = {
                principal: Quota.of(record.quota)
                for principal, record in view.identities.items()
                if not record.quota.keys().isdisjoint(BOUNDED)
            }
        if not self._quotas:
            self._own, self.held, self._came_due = {}, {}, {}
            return
        time_slice = TimeSlice()
        topics = [topic for topic in list(self._catalog.topics.values()) if topic.record.owner in self._quotas]
        await self._count_due(topics, time_slice)
        own: dict[str, Held] = {}
        for topic in topics:
            owner = str(topic.record.owner)
            for leader in list(topic.led().values()):
                own[owner] = own.get(owner, NOTHING).plus(self._held_by(leader.raft_group))
                await time_slice.spend(1)
        self._own = own
        self._add_up()
        body = tuple((owner, *held) for owner, held in own.items())
        self._links.send_to_all(PeerFrame.USAGE, body)

    def _held_by(self, host: Any) -> Held:
        """Return the data of a partition. Messages that came due since its last entry are not counted as pending."""
        status = host.status
        known, _, count = self._came_due.get(host.number, (None, 0, 0))
        return Held(status.bytes, max(status.later - (count if known is status else 0), 0))

    async def _count_due(self, topics: Iterable[OpenTopic], time_slice: TimeSlice) -> None:
        """Count the messages that came due since the last entry of their partition.

        The partition's status counts these messages as pending until the next entry."""
        now_s = self._now_ms() // 1000
        queries: list[_Query] = []
        seen: dict[int, tuple[Any, int, int]] = {}
        for topic in topics:
            for leader in list(topic.led().values()):
                host = leader.raft_group
                status = host.status
                last, until_s, count = self._came_due.get(host.number, (None, 0, 0))
                if last is not status:
                    until_s, count = status.now_ms // 1000 + 1, 0
                seen[host.number] = status, until_s, count
                if status.later > count and until_s <= now_s and isinstance(host.replica, PartitionReplica):
                    queries.append((host.number, host.replica, status, until_s, count))
                await time_slice.spend(1)
        self._came_due = seen
        if not queries:
            return
        try:
            counted = await self._runner.ask(partial(_due_in, queries, now_s + 1), patient=False)
        except (StorageFailed, Unavailable):
            return
        for (number, _, status, _, count), more in zip(queries, counted, strict=True):
            self._came_due[number] = status, now_s + 1, count + more

    def _add_up(self) -> None:
        """Update `held` from the sums of this node and the recent reports of other nodes."""
        now_s = trio.current_time()
        self._reports = {node: report for node, report in self._reports.items() if now_s - report[0] < STALE_S}
        held = dict(self._own)
        for _, rows in self._reports.values():
            for owner, more in rows.items():
                held[owner] = held.get(owner, NOTHING).plus(more)
        self.held = held

    # -- frames ---------------------------------------------------------------------------------------------------

    def on_frame(self, node: str, body: Any) -> bool:
        """Handle a report of another node. Return True if the report is well-formed."""
        if not isinstance(body, tuple) or not all(
            isinstance(row, tuple) and [type(part) for part in row] == _ROW for row in body
        ):
            return False
        self._reports[node] = trio.current_time(), {owner: Held(*held) for owner, *held in body}
        self._add_up()
        return True


def _full(owner: str, name: str, held: int, most: int, more: int | None) -> QuotaExceeded:
    """Return the error of a full quota. `more`: amount that the request would add; if None or 0, the error does not
    name it."""
    too_many = f", this request adds {more:,}" if more else ""
    return QuotaExceeded(
        f"topics of {owner} have {held:,} {_NAMES[name]}{too_many}, and its quota is {most:,} ({name}): consume, "
        "cancel or purge messages, or ask for a higher quota",
        quota=name,
        maximum=most,
        principal=owner,
        retry_after_ms=int(SUM_S * 1000),
    )


def _due_in(queries: Iterable[_Query], stop_s: int) -> list[int]:
    """Return how many messages of each partition came due from its start time (see `_Query`) until `stop_s`. Runs on
    the apply thread."""
    return [replica.due_between(start_s, stop_s) for _, replica, _, start_s, _ in queries]
