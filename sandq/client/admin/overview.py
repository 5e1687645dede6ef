"""An overview of all topics: merge the counts that each node reports for the partitions that it leads."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, TypeVar

import anyio

from sandq.client.admin.cluster import ClusterAdmin
from sandq.client.arguments import suggesting
from sandq.client.timeouts import timed_read
from sandq.client.transport.cluster import Cluster
from sandq.client.transport.requests import call
from sandq.model.errors import Conflict, InvalidRequest, NotFound, Retriable
from sandq.model.health import worst_push
from sandq.model.names import check_name
from sandq.model.times import Duration
from sandq.protocol.request import unknown_request
from sandq.protocol.requests_overview import (
    GroupRow,
    HistoryReply,
    HistoryRow,
    Overview,
    OverviewReply,
    TopicHistory,
    TopicRow,
)

T = TypeVar("T")
UNREACHABLE: Final = "it cannot be reached"
"""Reason in `missing` for a node to which the queried node is not connected."""
NODE_S: Final = 5.0
"""Timeout for the reply of one node, in seconds, if several nodes are queried. A silent node is reported as missing."""


class Lateness(NamedTuple):
    """Histogram of the lateness of first deliveries. `counts`: number of deliveries up to each bound in seconds, the
    last count for deliveries above all bounds."""

    bounds: tuple[float, ...]
    counts: tuple[int, ...]

    def quantile(self, part: float) -> float | None:
        """Return the quantile `part` (0 to 1), interpolated within its bucket; None if there are no deliveries."""
        total = sum(self.counts)
        if not total:
            return None
        rank, seen = part * total, 0
        for number, count in enumerate(self.counts):
            if count and seen + count >= rank:
                if number >= len(self.bounds):
                    return self.bounds[-1]
                low = self.bounds[number - 1] if number else self.bounds[0]
                return low + (self.bounds[number] - low) * (rank - seen) / count
            seen += count
        return self.bounds[-1]


NO_LATENESS: Final = Lateness((), ())


@dataclass(kw_only=True)
class GroupOverview:
    """A group of a topic, over all partitions."""

    group: str
    ready: int = 0
    leased: int = 0
    waiting: int = 0
    dead: int = 0
    consumers: int = 0
    paused: bool = False
    reason: str | None = None
    """Why the group gets no new messages. None if it gets them."""
    oldest_ms: int | None = None
    """Due time of the group's oldest message that is not acked, in epoch ms."""
    held_up_by: int = 0
    """Bit set. Due messages wait for the group's `max_in_flight` (1), or for its `rate` (2)."""
    push: str | None = None
    """The worst state of the group's push on any node (`sandq.model.health.PUSH_STATES`); None if the group is not
    pushed."""
    push_error: str | None = None
    """The latest error of the push receiver on any node."""
    push_error_ms: int | None = None
    unfinished: int | None = None
    """Number of messages that the group still keeps after it has expired (`group_ttl`). None if it has not expired."""

    @property
    def lag(self) -> int:
        """Number of messages that are due and not acked."""
        return self.ready + self.leased + self.waiting

    def add(self, row: GroupRow) -> None:
        """Add the row that a node reports of the group."""
        self.ready += row.ready
        self.leased += row.leased
        self.waiting += row.waiting
        self.dead += row.dead
        self.consumers = max(self.consumers, row.consumers)  # a subscription covers all partitions
        self.paused |= row.is_paused
        self.reason = self.reason or row.reason
        self.held_up_by |= row.held_up_by
        self.push = worst_push((self.push, row.push))
        if row.push_error_ms is not None and row.push_error_ms >= (self.push_error_ms or 0):
            self.push_error, self.push_error_ms = row.push_error, row.push_error_ms
        if row.unfinished is not None:
            self.unfinished = (self.unfinished or 0) + row.unfinished
        if row.oldest_ms is not None:
            self.oldest_ms = row.oldest_ms if self.oldest_ms is None else min(self.oldest_ms, row.oldest_ms)


@dataclass(kw_only=True)
class TopicOverview:
    """A topic, over all partitions. `stored`, `sent`, `acked` and `died` count the last `over_ms` of the overview."""

    name: str
    kind: str
    partitions: int
    led: int = 0
    """Number of partitions whose leader has reported."""
    messages: int = 0
    delayed: int = 0
    dead: int = 0
    keys: int = 0
    schedules: int = 0
    outbox: int = 0
    bytes: int = 0
    stored: int = 0
    sent: int = 0
    acked: int = 0
    died: int = 0
    lateness: Lateness = NO_LATENESS
    """Lateness of the last minute."""
    group_count: int = 0
    groups: dict[str, GroupOverview] = field(default_factory=dict)
    """The groups that are furthest behind, up to 50 per node."""
    replicas: int = 0
    """Number of replicas per partition."""

    @property
    def lag(self) -> int:
        """The lag of the group that is furthest behind."""
        return max([group.lag for group in self.groups.values()], default=0)

    def add(self, row: TopicRow, bounds: Sequence[float]) -> None:
        """Add the row that a node reports of the topic."""
        self.partitions = max(self.partitions, row.partitions)
        for name in (
            *("led", "messages", "delayed", "dead", "keys", "schedules", "outbox", "bytes"),
            *("stored", "sent", "acked", "died"),
        ):
            setattr(self, name, getattr(self, name) + getattr(row, name))
        self.lateness = _plus(self.lateness, row.lateness, bounds)
        self.group_count = max(self.group_count, row.groups)
        self.replicas = row.replicas
        for group in row.furthest:
            self.groups.setdefault(group.name, GroupOverview(group=group.name)).add(group)


class ClusterOverview(NamedTuple):
    """All topics that the caller may read, by name.

    `over_ms`: length of the interval for rates, which ends at about `now_ms`. `missing`: by node, the reason why it
    reported nothing.
    """

    now_ms: int
    over_ms: int
    topics: dict[str, TopicOverview]
    missing: dict[str, str]


class HistorySlot(NamedTuple):
    """Counts of messages in one interval, which starts at `start_ms`."""

    start_ms: int
    stored: int
    sent: int
    acked: int
    died: int
    lateness: Lateness


class History(NamedTuple):
    """The last hour of a topic, without empty intervals. Counting begins when the current leaders became leaders."""

    slot_ms: int
    slots: list[HistorySlot]
    missing: dict[str, str]


@suggesting
class OverviewAdmin(ClusterAdmin):
    """The part of `client.admin` for overviews of all topics."""

    @timed_read
    async def overview(self, *, timeout: Duration | None = None) -> ClusterOverview:
        """Return counts and rates of all topics. The nodes measure these continuously, so this call is cheap."""
        missing: dict[str, str] = {}
        topics: dict[str, TopicOverview] = {}
        now_ms = over_ms = 0

        async def ask(node_id: str | None) -> list[OverviewReply]:
            return [page async for page in _pages(self._cluster, node_id)]

        for pages in await _of_each(await self._nodes_up(missing), ask, Overview.type, missing):
            for page in pages:
                now_ms, over_ms = max(now_ms, page.now_ms), max(over_ms, page.over_ms)
                for row in page.rows:
                    topic = topics.setdefault(
                        row.name, TopicOverview(name=row.name, kind=row.kind, partitions=row.partitions)
                    )
                    topic.add(row, page.bounds)
        return ClusterOverview(now_ms, over_ms, dict(sorted(topics.items())), missing)

    @timed_read
    async def history(self, topic: str, *, timeout: Duration | None = None) -> History:
        """Return the counts of a topic's messages in the last hour, by interval."""
        check_name("topic", topic)
        missing: dict[str, str] = {}
        slots: dict[int, HistorySlot] = {}
        slot_ms, replied = 0, 0
        unknown: list[NotFound] = []

        async def ask(node_id: str | None) -> HistoryReply | None:
            try:
                return HistoryReply.parse(await call(self._cluster, TopicHistory(topic), node_id=node_id))
            except NotFound as error:  # the node leads no partition of the topic
                unknown.append(error)
                return None

        for reply in await _of_each(await self._nodes_up(missing), ask, TopicHistory.type, missing):
            if reply is None:
                continue
            replied, slot_ms = replied + 1, reply.slot_ms
            for row in reply.rows:
                slots[row.start_ms] = _added(slots.get(row.start_ms), row, reply.bounds)
        if unknown and not replied:
            raise unknown[0]
        return History(slot_ms, [slot for _, slot in sorted(slots.items())], missing)

    async def _nodes_up(self, missing: dict[str, str]) -> list[tuple[str, str | None]]:
        """Return (name, id for requests) of each reachable node. The id of a single node is None (any node)."""
        rows: list[dict[str, Any]] = (await self.cluster()).get("nodes") or []
        if len(rows) == 1:
            return [(str(rows[0].get("node")), None)]
        up: list[tuple[str, str | None]] = []
        for row in rows:
            node = str(row.get("node"))
            if not row.get("up"):
                missing[node] = UNREACHABLE
                continue
            try:
                self._introduce(node, rows)
            except NotFound as error:
                missing[node] = error.message
            else:
                up.append((node, node))
        return up


async def _of_each(
    nodes: Sequence[tuple[str, str | None]],
    ask: Callable[[str | None], Awaitable[T]],
    request: int,
    missing: dict[str, str],
) -> list[T]:
    """Query all nodes at the same time, so that a hanging node does not delay the others. Record failures in `missing`.

    Raises errors that do not concern a single node.
    """
    replies: dict[str, T] = {}
    failed: list[Exception] = []

    async def one(node: str, node_id: str | None) -> None:
        try:
            # For a single node there is no partial result, so the caller's timeout applies.
            with anyio.move_on_after(NODE_S if len(nodes) > 1 else math.inf):
                try:
                    replies[node] = await ask(node_id)
                except (Conflict, Retriable, NotFound, InvalidRequest) as error:
                    missing[node] = _why(error, request)
                return
            missing[node] = f"it does not answer in {NODE_S:g} s"
        except Exception as error:
            failed.append(error)

    async with anyio.create_task_group() as tasks:
        for node, node_id in nodes:
            tasks.start_soon(one, node, node_id)
    if failed:
        raise failed[0]
    return [replies[node] for node, _ in nodes if node in replies]


async def _pages(cluster: Cluster, node: str | None) -> AsyncIterator[OverviewReply]:
    after: str | None = None
    while True:
        page = OverviewReply.parse(await call(cluster, Overview(after), node_id=node))
        yield page
        if page.next is None or page.next == after:
            return
        after = page.next


def _why(error: Conflict | Retriable | NotFound | InvalidRequest, request: int) -> str:
    if isinstance(error, InvalidRequest):
        if error.message != unknown_request(request):
            raise error
        return "its version does not report it"
    return error.message


def _plus(known: Lateness, sparse: Sequence[int], bounds: Sequence[float]) -> Lateness:
    """Add the counts of a node. `sparse`: bucket numbers and counts, alternating."""
    if known.bounds and known.bounds != tuple(bounds):
        return known  # the node has another version with different bounds
    counts = Counter(dict(enumerate(known.counts)))
    for number, count in zip(sparse[::2], sparse[1::2], strict=True):
        counts[number] += count
    return Lateness(tuple(bounds), tuple([counts[number] for number in range(len(bounds) + 1)]))


def _added(slot: HistorySlot | None, row: HistoryRow, bounds: Sequence[float]) -> HistorySlot:
    if slot is None:
        slot = HistorySlot(row.start_ms, 0, 0, 0, 0, NO_LATENESS)
    return HistorySlot(
        row.start_ms,
        slot.stored + row.stored,
        slot.sent + row.sent,
        slot.acked + row.acked,
        slot.died + row.died,
        _plus(slot.lateness, row.lateness, bounds),
    )
