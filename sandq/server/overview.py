"""Collect statistics of the topics that this node leads: their contents, and recent rates and history.

The statistics are computed from the statuses that partitions publish and from existing counters, so no message is read.
Every few seconds the counters are compared with the previous ones. The differences give the rates, and the history of
one hour.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

import msgpack
import trio

from sandq.broker.broker import Broker
from sandq.broker.catalog import OpenTopic
from sandq.broker.event_loop import TimeSlice
from sandq.broker.stats.histogram import LATENESS
from sandq.broker.stats.node_stats import TopicStats
from sandq.model.access import Access, Right
from sandq.model.health import PushState
from sandq.partition.records.metrics import Counted
from sandq.protocol.frames import PackedArray
from sandq.protocol.requests_overview import GroupRow, TopicRow
from sandq.push.pusher import Pusher
from sandq.server.metrics.metrics import Metrics
from sandq.server.metrics.topics import GroupNumbers, PartitionSeen, TopicNumbers

SAMPLE_S: Final = 5.0
"""Interval between two samples, in seconds."""
RATE_SAMPLES: Final = 2
"""Number of samples that rates cover: the last ten seconds."""
MINUTE_SAMPLES: Final = 12
SLOT_S: Final = 30
"""Length of a slot of the history, in seconds."""
SLOTS: Final = 120
"""Number of slots in the history: one hour."""
PAGE_TOPICS: Final = 200
PAGE_GROUPS: Final = 2000
GROUPS_SHOWN: Final = 50
"""Groups that are reported for a topic: those with the largest backlog."""
_PARTITIONS_OF_WORK: Final = 4
"""Partitions that can be visited with one unit of work."""


class Done(NamedTuple):
    """Counts of events in an interval: messages stored, deliveries sent, acked and dead messages, and lateness.

    `lateness`: number of deliveries in each bucket of `LATENESS`."""

    stored: int
    sent: int
    acked: int
    died: int
    lateness: tuple[int, ...]


_IDLE: Final = Done(0, 0, 0, 0, (0,) * (len(LATENESS) + 1))


class TopicTrack:
    """Recent samples and the history of one topic."""

    def __init__(self) -> None:
        self._counted: dict[int, Counted] = {}
        """Counters of each Raft group at the last sample."""
        self._stats: TopicStats | None = None
        """The topic's counters of the last sample. A topic that is reopened has new ones, which begin at zero."""
        self._sent = 0
        self._lateness: Sequence[int] = ()
        self.recent: deque[Done] = deque(maxlen=MINUTE_SAMPLES)
        self._slot_ms = 0
        self._slot = _IDLE
        self._slots: deque[tuple[int, bytes]] = deque(maxlen=SLOTS)
        """Start and row of each slot, as MessagePack: compact, and sent as it is."""

    def sample(self, topic: OpenTopic, now_ms: int) -> None:
        """Add a sample: how much the topic's counters have grown since the last one.

        A partition that this node has just begun to lead counts from the next sample on.
        """
        stored = acked = died = 0
        seen = {}
        for leader in topic.led().values():
            counted = leader.raft_group.status.counted
            before = self._counted.get(leader.raft_group.number)
            seen[leader.raft_group.number] = counted
            if before is None or before is counted:  # newly led, or unchanged
                continue
            stored += max(counted.stored - before.stored, 0)
            acked += max(counted.acked - before.acked, 0)
            died += max(_died(counted) - _died(before), 0)
        stats = topic.stats
        sent, lateness = 0, _IDLE.lateness
        is_new = stats is not self._stats  # the topic was reopened: count from the next sample on
        if not is_new and stats.sent > self._sent:
            sent = stats.sent - self._sent
            lateness = tuple([now - then for now, then in zip(stats.lateness.counts, self._lateness, strict=True)])
        if is_new or sent:
            self._stats, self._sent, self._lateness = stats, stats.sent, list(stats.lateness.counts)
        self._counted = seen
        is_idle = not (stored or acked or died or sent)
        done = _IDLE if is_idle else Done(stored, sent, acked, died, lateness)
        self.recent.append(done)
        self._add(done, now_ms)

    def _add(self, done: Done, now_ms: int) -> None:
        """Add counts of events to the current slot of the history. If its time is over, first begin a new slot."""
        slot_ms = now_ms // (SLOT_S * 1000) * SLOT_S * 1000
        if slot_ms != self._slot_ms:
            if self._slot is not _IDLE:
                self._slots.append((self._slot_ms, _packed(self._slot_ms, self._slot)))
            self._slot_ms, self._slot = slot_ms, _IDLE
        if done is not _IDLE:
            self._slot = done if self._slot is _IDLE else _sum(self._slot, done)

    def within(self, samples: int) -> Done:
        """Return the sum of the last `samples` samples."""
        total = _IDLE
        for done in list(self.recent)[-samples:]:
            if done is not _IDLE:
                total = done if total is _IDLE else _sum(total, done)
        return total

    def history(self, now_ms: int) -> list[bytes]:
        """Return the rows of the last hour, in MessagePack. Slots without events are left out."""
        since_ms = now_ms - SLOT_S * SLOTS * 1000
        rows = [row for start_ms, row in self._slots if start_ms >= since_ms]
        return rows if self._slot is _IDLE else [*rows, _packed(self._slot_ms, self._slot)]


class _Summed(NamedTuple):
    """The statuses of a topic's partitions, and the sums computed from them."""

    partitions: Sequence[PartitionSeen]
    numbers: TopicNumbers
    groups: int
    furthest: list[GroupRow]


class Overview:
    """Statistics of the topics of one node."""

    def __init__(
        self,
        broker: Broker,
        metrics: Metrics,
        pusher: Pusher,
    ) -> None:
        self._broker = broker
        self._metrics = metrics
        self._pusher = pusher
        self._tracks: dict[int, TopicTrack] = {}
        self._summed: dict[int, _Summed] = {}
        self._samples = 0

    async def run(self) -> None:
        """Take samples until cancelled."""
        while True:
            await self.sample()
            await trio.sleep(SAMPLE_S)

    async def sample(self) -> None:
        """Sample all topics, in time slices. At most `metric_topics` topics have rates and a history."""
        time_slice, tracks, most = TimeSlice(), {}, self._broker.limits.metric_topics
        for topic in self._broker.topics():
            number = topic.record.number
            track = self._tracks.get(number)
            if track is None:
                if len(self._tracks) >= most:
                    continue
                track = self._tracks[number] = TopicTrack()
            track.sample(topic, self._broker.clock.now_ms())
            tracks[number] = track
            await time_slice.spend(1 + len(topic.partitions) // _PARTITIONS_OF_WORK)
        self._tracks = tracks
        self._summed = {number: found for number, found in self._summed.items() if number in tracks}
        self._samples += 1

    @property
    def over_ms(self) -> int:
        """Duration that rates cover, in ms."""
        return int(SAMPLE_S * 1000) * max(min(self._samples - 1, RATE_SAMPLES), 1)

    async def page(self, after: str | None, access: Access | None) -> tuple[list[Any], str | None, int, int, Any]:
        """Return a reply to OVERVIEW. `access`: of the caller; topics that it may not read are left out."""
        names = sorted(name for name in self._broker.catalog.topics if after is None or name > after)
        rows: list[TopicRow] = []
        groups, time_slice, following = 0, TimeSlice(), None
        pushes = self._pusher.states()
        for name in names:
            topic = self._broker.catalog.topics.get(name)
            if topic is None or (access is not None and not access.allows(Right.READ, name)):
                continue
            if len(rows) >= PAGE_TOPICS or groups >= PAGE_GROUPS:
                following = rows[-1].name
                break
            row = _with_pushes(self._row(topic), pushes.get(name))
            rows.append(row)
            groups += len(row.furthest)
            await time_slice.spend(2 + len(topic.partitions) // _PARTITIONS_OF_WORK)
        return rows, following, self._broker.clock.now_ms(), self.over_ms, LATENESS

    def history(self, topic: str) -> tuple[PackedArray, bytes, bytes]:
        """Return the reply to TOPIC_HISTORY, in MessagePack. Raise UnknownTopic."""
        number = self._broker.catalog.topic(topic).record.number
        track = self._tracks.get(number)
        rows = [] if track is None else track.history(self._broker.clock.now_ms())
        return PackedArray(len(rows), rows), msgpack.packb(SLOT_S * 1000), msgpack.packb(LATENESS)

    def _row(self, topic: OpenTopic) -> TopicRow:
        """Return the row of a topic in the overview."""
        record, summed = topic.record, self._sums(topic)
        numbers, track = summed.numbers, self._tracks.get(topic.record.number)
        lately = _IDLE if track is None else track.within(RATE_SAMPLES)
        lateness = _IDLE.lateness if track is None else track.within(MINUTE_SAMPLES).lateness
        return TopicRow(
            record.name,
            record.kind,
            len(record.partitions),
            len(summed.partitions),
            numbers.messages,
            numbers.delayed,
            sum([seen.status.dead for seen in summed.partitions]),
            numbers.keys,
            numbers.schedules,
            numbers.outbox,
            numbers.bytes,
            *lately[:4],
            _sparse(lateness),
            summed.groups,
            summed.furthest,
            record.replicas,
        )

    def _sums(self, topic: OpenTopic) -> _Summed:
        """Return the sums over the partitions of a topic, and the rows of its groups with the largest backlog.

        The sums are computed again only if the status of a partition has changed."""
        seen, number = self._metrics.topic_seen(topic), topic.record.number
        known = self._summed.get(number)
        if known is not None and _is_same(known.partitions, seen.partitions):
            return known
        numbers = TopicNumbers()
        numbers.see(seen)
        groups: dict[str, GroupNumbers] = {}
        reasons: dict[str, str] = {}
        for partition in seen.partitions:
            for group in partition.status.groups:
                found = groups.get(group.name)
                if found is None:
                    found = groups[group.name] = GroupNumbers()
                found.see(partition, group)
                if group.paused is not None:
                    reasons.setdefault(group.name, group.paused)
        now_ms = self._broker.clock.now_ms()
        rows = [_group(name, found, reasons.get(name), now_ms) for name, found in groups.items()]
        rows.sort(key=lambda row: (-(row.ready + row.leased + row.waiting), row.reason is None, row.name))
        summed = _Summed(seen.partitions, numbers, len(rows), rows[:GROUPS_SHOWN])
        if number in self._tracks:
            self._summed[number] = summed
        return summed


def _with_pushes(row: TopicRow, pushes: Mapping[str, PushState] | None) -> TopicRow:
    """Return the row of a topic with the state of its pushes on this node."""
    if not pushes:
        return row
    return row._replace(furthest=[_with_push(group, pushes.get(group.name)) for group in row.furthest])


def _with_push(group: GroupRow, here: PushState | None) -> GroupRow:
    """Return the row of a group with the state of its push."""
    if here is None:
        return group
    return group._replace(push=here.push, push_error=here.error, push_error_ms=here.error_ms)


def _is_same(before: Sequence[PartitionSeen], now: Sequence[PartitionSeen]) -> bool:
    """Return whether no partition has published a new status between two views.

    Statuses are compared by identity: they are large, and each new status is a new object."""
    return len(before) == len(now) and all(
        one.status is other.status and one.came_due == other.came_due and one.consumers == other.consumers
        for one, other in zip(before, now, strict=True)
    )


def _group(name: str, found: GroupNumbers, reason: str | None, now_ms: int) -> GroupRow:
    """Return the row of a group. `reason`: why it takes nothing new."""
    by_limit, by_rate = found.held_up(now_ms) or (False, False)
    return GroupRow(
        name,
        found.ready,
        found.leased,
        found.waiting,
        found.dead,
        found.consumers,
        bool(found.paused),
        reason,
        found.oldest_ms,
        by_limit + 2 * by_rate,
        push=None,
        push_error=None,
        push_error_ms=None,
        unfinished=found.unfinished,
    )


def _died(counted: Counted) -> int:
    """Return the number of messages that died."""
    return counted.dead_nacked + counted.dead_lease_expired + counted.dead_expired + counted.dead_rejected


def _sum(one: Done, other: Done) -> Done:
    """Return the sum of two counts."""
    lateness = tuple([a + b for a, b in zip(one.lateness, other.lateness, strict=True)])
    return Done(
        one.stored + other.stored, one.sent + other.sent, one.acked + other.acked, one.died + other.died, lateness
    )


def _sparse(counts: Sequence[int]) -> list[int]:
    """Return pairs of bucket number and count, flattened, without the empty buckets."""
    return [one for number, count in enumerate(counts) if count for one in (number, count)]


def _packed(start_ms: int, done: Done) -> bytes:
    """Return the counts of a slot of the history, packed."""
    packed: bytes = msgpack.packb((start_ms, *done[:4], _sparse(done.lateness)))
    return packed
