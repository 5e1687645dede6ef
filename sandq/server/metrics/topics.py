"""Sum numbers by topic and by group. Only a limited number of topics and groups have their own labels; all others are
combined."""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Iterable, Mapping, Sequence
from heapq import nsmallest
from itertools import zip_longest
from typing import Any, Final, NamedTuple

from sandq.broker.stats.histogram import LATENESS, Histogram
from sandq.broker.stats.node_stats import TopicStats
from sandq.partition.group_status import GroupStatus, Limited
from sandq.partition.groups.group import PAUSED
from sandq.partition.partition_status import Status
from sandq.partition.records.metrics import Counted
from sandq.push.outcomes import End
from sandq.push.pump import Doing, PushCounts
from sandq.server.metrics.text import Exposition

OTHER = "_other"
"""Label of all topics and groups beyond the limit. No valid name begins with an underscore."""


class PartitionSeen(NamedTuple):
    """The published status of a partition, with changes that need no log entry: messages that became due since."""

    status: Status
    came_due: int
    consumers: Mapping[str, int]
    soon: tuple[int, ...] = ()
    """Messages that become due within each of several periods."""


class TopicSeen(NamedTuple):
    number: int
    name: str
    partitions: Sequence[PartitionSeen]
    stats: TopicStats


class TopicNumbers:
    """Sums over the partitions of a topic, or over topics."""

    def __init__(self) -> None:
        self.counted = [0] * len(Counted._fields)
        self.sent = self.sent_bytes = self.redelivered = 0
        self.lateness = Histogram(LATENESS)
        self.slo_deliveries = self.slo_late = 0
        self.messages = self.delayed = self.schedules = self.outbox = self.keys = self.bytes = 0

    def see(self, topic: TopicSeen) -> None:
        """Add the numbers of a topic's partitions."""
        for status, came_due, *_ in topic.partitions:
            self.counted = [one + more for one, more in zip(self.counted, status.counted, strict=True)]
            self.messages += status.messages
            self.delayed += max(status.later - came_due, 0)
            self.schedules += status.schedules
            self.outbox += 0 if status.outbox is None else status.outbox.messages
            self.keys += status.keys
            self.bytes += status.bytes
        self.sent += topic.stats.sent
        self.sent_bytes += topic.stats.sent_bytes
        self.redelivered += topic.stats.redelivered
        self.lateness.add(topic.stats.lateness)
        # Read late deliveries first: the event loop counts meanwhile, and late deliveries must never exceed all
        # deliveries.
        self.slo_late += topic.stats.slo_late
        self.slo_deliveries += topic.stats.slo_deliveries

    def add_counts(self, other: TopicNumbers) -> None:
        """Add the counters of other topics."""
        self.counted = [one + more for one, more in zip(self.counted, other.counted, strict=True)]
        self.sent += other.sent
        self.sent_bytes += other.sent_bytes
        self.redelivered += other.redelivered
        self.lateness.add(other.lateness)
        self.slo_deliveries += other.slo_deliveries
        self.slo_late += other.slo_late

    def count(self, name: str) -> int:
        """Return a field of `Counted`."""
        return self.counted[Counted._fields.index(name)]


class GroupNumbers:
    """Sums over the partitions of a group, or over groups."""

    __slots__ = (
        "consumers",
        "dead",
        "delayed",
        "dropped",
        "leased",
        "limits",
        "oldest_ms",
        "paused",
        "paused_keys",
        "paused_tenants",
        "ready",
        "removed",
        "soon",
        "stalled",
        "unfinished",
        "waiting",
    )

    def __init__(self) -> None:
        self.ready = self.delayed = self.leased = self.waiting = self.dead = self.dropped = self.consumers = 0
        self.removed = self.paused = self.stalled = self.paused_tenants = self.paused_keys = 0
        self.oldest_ms: int | None = None
        self.soon: list[int] = []
        self.limits: list[Limited] = []
        """State of the group's limits in each partition. Empty if the group has no limits."""
        self.unfinished: int | None = None
        """Number of unfinished messages in partitions where the group has expired; None if it has expired nowhere."""

    def see(self, partition: PartitionSeen, group: GroupStatus) -> None:
        """Add the numbers of the group in one partition."""
        status, came_due, consumers, soon = partition
        self.ready += group.ready + came_due
        self.delayed += max(status.later - came_due, 0)
        if soon:
            self.soon = [one + more for one, more in zip_longest(self.soon, soon, fillvalue=0)]
        self.leased += group.leased
        self.waiting += group.waiting
        self.dead += group.dead
        self.dropped += group.dropped
        self.removed += group.removed
        if group.is_expired:
            self.unfinished = (self.unfinished or 0) + group.unfinished
        self.paused |= group.is_paused
        # A pause of a tenant or a key is in all partitions.
        self.paused_tenants = max(self.paused_tenants, group.paused_tenants)
        self.paused_keys = max(self.paused_keys, group.paused_keys)
        self.stalled |= group.paused is not None and not group.paused.startswith(PAUSED)
        if group.limit is not None:
            self.limits.append(group.limit)
        # A subscription covers all partitions, so take the maximum instead of the sum.
        self.consumers = max(self.consumers, consumers.get(group.name, 0))
        oldest_ms = group.oldest_ms
        if oldest_ms is None and came_due and not group.is_paused:
            oldest_ms = group.next_ms
        if oldest_ms is not None and (self.oldest_ms is None or oldest_ms < self.oldest_ms):
            self.oldest_ms = oldest_ms

    def add(self, other: GroupNumbers) -> None:
        """Add the numbers of other groups."""
        for name in ("ready", "delayed", "leased", "waiting", "dead", "dropped", "removed", "consumers"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.paused |= other.paused
        self.paused_tenants += other.paused_tenants
        self.paused_keys += other.paused_keys
        self.stalled |= other.stalled
        self.limits += other.limits
        self.soon = [one + more for one, more in zip_longest(self.soon, other.soon, fillvalue=0)]
        if other.oldest_ms is not None and (self.oldest_ms is None or other.oldest_ms < self.oldest_ms):
            self.oldest_ms = other.oldest_ms

    def held_up(self, now_ms: int) -> tuple[bool, bool] | None:
        """Return whether due messages wait because of `max_in_flight`, and because of the rate; None without limits."""
        if not self.limits:
            return None
        found = [limit.holds_up(now_ms) for limit in self.limits]
        return any([by_limit for by_limit, _ in found]), any([by_rate for _, by_rate in found])


class Board:
    """Decides which topics have their own label. A topic keeps its label, or its lack of one, while it exists.

    If a topic moved from one label to another, the counters of both labels would change by its whole count."""

    def __init__(self, topics: int, groups: int) -> None:
        self._topics = topics
        self._groups = groups
        self._labelled: set[int] = set()
        self._others: dict[int, TopicNumbers] = {}
        """Numbers of the topics without a label, as last seen."""
        self._gone = TopicNumbers()
        """Sum of the counters of such topics that were deleted."""

    def sums(self, topics: Sequence[TopicSeen]) -> tuple[dict[str, TopicNumbers], dict[tuple[str, str], GroupNumbers]]:
        """Return the sums by label."""
        labels = self._labels(topics)
        by_topic: dict[str, TopicNumbers] = {}
        others: dict[int, TopicNumbers] = {}
        groups = _Groups(self._groups)
        for topic in topics:
            label = labels[topic.number]
            numbers = TopicNumbers()
            numbers.see(topic)
            if label == OTHER:
                others[topic.number] = numbers
            else:
                by_topic[label] = numbers
            groups.see(label, topic.partitions)
        for number in self._others.keys() - others.keys():
            self._gone.add_counts(self._others[number])
        self._others = others
        if others or any(self._gone.counted) or self._gone.sent:
            by_topic[OTHER] = self._sum_of(others.values())
        return by_topic, groups.found

    def _labels(self, topics: Sequence[TopicSeen]) -> dict[int, str]:
        """Return the label of each topic, by number. New topics get their own label up to `_topics` labels."""
        self._labelled &= {topic.number for topic in topics}
        labels: dict[int, str] = {}
        for topic in topics:
            is_new = topic.number not in self._labelled and topic.number not in self._others
            if is_new and len(self._labelled) < self._topics:
                self._labelled.add(topic.number)
            labels[topic.number] = topic.name if topic.number in self._labelled else OTHER
        return labels

    def _sum_of(self, others: Iterable[TopicNumbers]) -> TopicNumbers:
        """Return the sum of topics without a label, including the counters of deleted topics."""
        total = TopicNumbers()
        total.add_counts(self._gone)
        for numbers in others:
            total.add_counts(numbers)
            total.messages += numbers.messages
            total.delayed += numbers.delayed
            total.schedules += numbers.schedules
            total.keys += numbers.keys
            total.bytes += numbers.bytes
        return total


class _Groups:
    """Assigns labels to groups. Only the first groups of the topics with labels have their own."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._labelled = 0
        self.found: dict[tuple[str, str], GroupNumbers] = {}

    def see(self, topic: str, partitions: Sequence[PartitionSeen]) -> None:
        """Add the groups of a topic. Groups above the limit are added to one sum per topic."""
        of_topic: dict[str, GroupNumbers] = {}
        for partition in partitions:
            for group in partition.status.groups:
                numbers = of_topic.get(group.name)
                if numbers is None:
                    numbers = of_topic[group.name] = GroupNumbers()
                numbers.see(partition, group)
        for name, numbers in of_topic.items():
            if topic != OTHER and self._labelled < self._limit:
                self._labelled += 1
                self.found[topic, name] = numbers
            else:
                self.found.setdefault((topic, OTHER), GroupNumbers()).add(numbers)


Pushed = tuple[str, str]


def write_pushes(
    counts: Mapping[Pushed, PushCounts],
    doing: Mapping[Pushed, str],
    labelled: Container[Pushed],
    out: Exposition,
) -> None:
    """Write the samples of pushed groups: those with a label by (topic, group), the others combined."""
    ends: dict[Pushed, Counter[End]] = {}
    in_flight, waiting = Counter[Pushed](), Counter[Pushed]()
    for pushed, counted in counts.items():
        label = pushed if pushed in labelled else (OTHER, OTHER)
        ends.setdefault(label, Counter()).update(counted.ends)
        in_flight[label] += counted.in_flight
        waiting[label] += doing.get(pushed) == Doing.WAITING
    for label, of_label in ends.items():
        for end in End:
            labels = out.labels("sandq_push_messages_total", *label, str(end))
            out.value("sandq_push_messages_total", of_label[end], labels)
        labels = out.labels("sandq_push_in_flight", *label)
        out.value("sandq_push_in_flight", in_flight[label], labels)
        out.value("sandq_push_waiting", waiting[label], labels)


TENANTS: Final = 100
"""Maximum number of tenants of a group that have samples: those with the most ready messages."""
TenantRows = Iterable[tuple[str, Mapping[str, Any]]]
"""Name of a group, and one of its tenants as returned by `PartitionQueries.tenants`. A tenant is in one partition."""


def write_tenants(
    topics: Iterable[tuple[str, TenantRows]], labelled: Container[tuple[str, str]], limit: int, out: Exposition
) -> None:
    """Write the samples of tenants of groups that have a label, at most `limit` in all."""
    left = limit
    for topic, rows in topics:
        by_group: dict[str, list[Mapping[str, Any]]] = {}
        for group, row in rows:
            by_group.setdefault(group, []).append(row)
        for group, of_group in by_group.items():
            if (topic, group) not in labelled:
                continue
            for row in nsmallest(min(TENANTS, left), of_group, key=_order):
                labels = out.labels("sandq_tenant_ready", topic, group, row["tenant"])
                out.value("sandq_tenant_ready", row["ready"], labels)
                out.value("sandq_tenant_in_flight", row["in_flight"], labels)
                left -= 1


def _order(row: Mapping[str, Any]) -> tuple[int, int, str]:
    """Return the sort key of a tenant: the most ready messages first."""
    return -row["ready"], -row["in_flight"], row["tenant"]
