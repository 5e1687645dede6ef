"""Run a partition on the node that leads it: lease due messages, push them to consumers, and do the housekeeping.

A `GroupPump` holds the subscriptions of one group. `pump` leases messages for consumers with credit, and `push` sends
each lease when its last message is due. Timers start leases, the expiry of leases, and the upkeep (deletion of data
that is no longer needed).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from functools import partial
from typing import Any, Final

from sandq.broker.clock.guarded_clock import GuardedClock
from sandq.broker.clock.timers import Timer, Timers
from sandq.broker.leader.group_pump import GroupPump
from sandq.broker.leader.lease_window import LeaseWindow, push_ms, wake_ms
from sandq.broker.leader.subscription import Subscription
from sandq.broker.replication.fair_queue import BEHIND
from sandq.broker.replication.raft_group import RaftGroup
from sandq.broker.replication.replica import Delivery
from sandq.broker.stats.node_stats import NodeStats, TopicStats
from sandq.model.errors import SandqError, Unavailable
from sandq.model.features import FIRST_LEVEL, KNOWN
from sandq.model.group_limits import next_epoch
from sandq.model.key_limits import key_limit
from sandq.model.limits import FIXED
from sandq.model.topic_limits import PRECISION_MS
from sandq.partition import commands as c
from sandq.partition.group_status import GroupStatus, GroupStatuses
from sandq.partition.jobs.jobs import STEP_MESSAGES
from sandq.partition.partition_status import Status

MAX_GRANTS = 64
"""Maximum number of grants in one lease command. A grant lets one consumer lease up to `limit` messages."""
SHARED_GRANT_MESSAGES = 64
"""Maximum number of messages of one grant if several consumers have credit. So due messages are spread over the
consumers."""
RETRY_MS = 50
"""Pause in ms before the next attempt, if a command was refused or a lease granted nothing."""
FIRST_WINDOW = 256
"""If partitions share a consumer's credit: number of messages that each may request, even if its window is smaller.

The partition's equal part of the free credit limits this number further."""
UPKEEP_PAUSE_MS = 200
"""Minimum time in ms between two upkeeps. Each upkeep costs a commit batch, and every ack makes an upkeep due."""
HUNGRY_MS: Final = 5000
"""For a group with limits: time in ms after a LEASE request in which its consumer is expected to ask again."""
RETURN_MS: Final = 10_000
"""Maximum time in ms after a failover in which a new subscriber counts as a subscriber of the previous leader.

A failover counts as the cause of the delay of messages that became due within this time before it."""
TOUCH_MS = 3_600_000
"""Longest interval in ms at which groups with consumers are marked as in use. If `group_ttl` is short, the interval is
shorter."""
LEASE_WORK: Final = 256
"""Cost of a lease command without its messages, in the unit of `RaftGroup.submit`."""
MESSAGE_WORK: Final = 1024
"""Cost of each message that a lease may grant: the same as an item of an ack."""
LEASE_WORK_MOST: Final = 1 << 20
"""Maximum cost of a lease. An earlier ack with at most this cost is applied before the lease."""
Watcher = Callable[["PartitionLeader", SandqError | None], None]


def lease_work(grants: Iterable[c.Grant]) -> int:
    """Return the cost of a lease command (see `RaftGroup.submit`)."""
    return min(LEASE_WORK + MESSAGE_WORK * sum([grant.limit for grant in grants]), LEASE_WORK_MOST)


class PartitionLeader:
    """The work of a partition's leader that depends on time: leases, expiry and upkeep."""

    def __init__(
        self,
        *,
        raft_group: RaftGroup,
        partition: int,
        clock: GuardedClock,
        timers: Timers,
        window: LeaseWindow,
        on_status: Callable[[Status], None] = lambda status: None,
        stats: TopicStats | None = None,
        cluster_level: Callable[[], int] = lambda: FIRST_LEVEL,
        attended: set[PartitionLeader] | None = None,
        on_limits: Callable[[PartitionLeader], None] = lambda leader: None,
        on_outbox: Callable[[PartitionLeader], None] = lambda leader: None,
        highest_level: int = KNOWN.highest,
    ) -> None:
        """Create the leader.

        `on_status` is called with each status, even if another node leads. `cluster_level()`: feature level of the
        cluster, as far as this node knows. `attended`: set of the topic's partitions here with a subscription or a
        watcher; this partition adds and removes itself. `on_limits` is called with this leader if the limits of groups
        may have to be divided differently. `on_outbox` is called with this leader if there are messages to send to
        other partitions. `highest_level`: highest feature level that this node's version supports."""
        self.raft_group = raft_group
        self._on_status = on_status
        self.partition = partition
        self.stats = stats or TopicStats(NodeStats())
        self._clock = clock
        self._timers = timers
        self._window = window
        self._cluster_level = cluster_level
        self._highest_level = highest_level
        self._on_limits = on_limits
        self._on_outbox = on_outbox
        self.limits_wanted = 0
        """Epoch of the group limits in the topic's settings (`next_epoch`), according to the metadata."""
        self._asked_ms: dict[str, int] = {}
        """Time in ms of the last LEASE request without a subscription, by group."""
        self._raising = False
        """True while the partition is being raised to the cluster's feature level."""
        self._pumps: dict[str, GroupPump] = {}
        self._attended = set() if attended is None else attended
        self.groups = GroupStatuses()
        """Last known status of each group."""
        self._seen_version: int | None = None
        """Version of `groups` that was handled last. None if all groups must be checked again."""
        self._led_ms = 0
        """Wall-clock time at which this node started to lead, in ms."""
        self._ahead: dict[int, tuple[Subscription, Delivery, int | None]] = {}
        """Leases that wait until they may be pushed, by token. If a lease is pushed again, the new push replaces the
        waiting push."""
        self._marked_ms: dict[str, int] = {}
        """Time in ms at which a group was last marked as in use, by group."""
        self._expiring = False
        self._expiry_timer_ms: int | None = None
        self._expiry_timer: Timer | None = None
        self._keeping = False
        """True while an upkeep is in progress."""
        self._upkeep_timer_ms: int | None = None
        """Time in ms of the timer for the next upkeep."""
        self._upkeep_timer: Timer | None = None
        self._touched_ms: int | None = None
        """Time in ms at which all groups were last marked as in use.

        None if this node has not marked the groups since it became leader. Groups may have had consumers under the
        previous leader, so no upkeep runs before the groups are marked."""
        self.closed = False
        self.watchers: dict[str, dict[Watcher, None]] = {}
        """Watchers by group."""
        raft_group.listen(on_status=self.status_changed)

    def attach(self, subscription: Subscription) -> None:
        """Add a subscription. It replaces an earlier subscription of the same consumer."""
        self._attended.add(self)
        pump = self._pumps.setdefault(subscription.group, GroupPump())
        subscription.partitions += 1
        old = pump.consumers.pop(subscription.consumer, None)
        if old is not None:
            pump.queue.pop(old, None)
        pump.consumers[subscription.consumer] = subscription
        pump.queue[subscription] = None
        if pump.free_since_ms is None:
            pump.free_since_ms = self._clock.now_ms()
            # Shortly after a failover, assume that the consumer was subscribed to the previous leader.
            if pump.free_since_ms - self._led_ms <= RETURN_MS:
                pump.free_since_ms = self._led_ms - RETURN_MS
        self.pump(subscription.group)

    def detach(self, subscription: Subscription) -> bool:
        """Remove a subscription. Return False if the subscription was replaced in the meantime."""
        pump = self._pumps.get(subscription.group)
        if pump is None or pump.consumers.get(subscription.consumer) is not subscription:
            return False
        del pump.consumers[subscription.consumer]
        pump.queue.pop(subscription, None)
        if not pump.queue:
            pump.free_since_ms = None
        return True

    def subscription_of(self, group: str, consumer: str) -> Subscription | None:
        """Return the subscription of a consumer on this node; None if the consumer has no subscription here."""
        pump = self._pumps.get(group)
        return None if pump is None else pump.consumers.get(consumer)

    def consumers(self, group: str) -> int:
        """Return the number of consumers of a group that are subscribed here."""
        pump = self._pumps.get(group)
        return len(pump.consumers) if pump is not None else 0

    def subscriptions(self, group: str) -> Mapping[str, Subscription]:
        """Return the subscriptions of a group here, by consumer."""
        pump = self._pumps.get(group)
        return {} if pump is None else pump.consumers

    def consumers_by_group(self) -> dict[str, int]:
        """Return the number of consumers of each group. May be called on any thread."""
        return {name: len(pump.consumers) for name, pump in list(self._pumps.items())}

    def end_subscriptions(self, error: SandqError) -> None:
        """End all subscriptions, and report the reason to their consumers."""
        pumps = list(self._pumps.values())
        self._pumps.clear()
        for pump in pumps:
            pump.sleep_no_more()
            for subscription in pump.consumers.values():
                if not subscription.closed:
                    subscription.closed = subscription.moved = True
                    subscription.receiver.ended(error)
        self._notify_watchers(list(self.watchers), error)
        if not (self.watchers or self._pumps):
            self._attended.discard(self)

    def close(self, error: SandqError) -> None:
        """Stop leasing and pushing, because the partition is gone."""
        self.closed = True
        self.end_subscriptions(error)

    def lead(self) -> None:
        """Start the work of a leader."""
        self._led_ms = self._clock.now_ms()
        self._touched_ms = self._expiry_timer_ms = self._upkeep_timer_ms = None
        self._expiring = self._keeping = self._raising = False
        self._seen_version = None
        self.status_changed()

    def watch(self, group: str, watcher: Watcher) -> None:
        """Call `watcher` from now on after each change of the group's status.

        The watcher gets an error if its request must be sent again. In this case, another node leads the partition, or
        this node leads other partitions of the topic than before."""
        self._attended.add(self)
        self.watchers.setdefault(group, {})[watcher] = None

    def unwatch(self, group: str, watcher: Watcher) -> None:
        """Stop calling a watcher."""
        watchers = self.watchers.get(group)
        if watchers is not None:
            watchers.pop(watcher, None)
            if not watchers:
                del self.watchers[group]

    def _notify_watchers(self, groups: Iterable[str], error: SandqError | None = None) -> None:
        """Call the watchers of these groups."""
        for group in groups:
            for watcher in list(self.watchers.get(group, ())):
                watcher(self, error)

    def status_changed(self) -> None:
        """Handle a new status: lease messages, set the timers and notify watchers."""
        if self.closed:
            return
        status: Status = self.raft_group.status
        self.groups = status.groups
        self._on_status(status)
        if not self.raft_group.works:
            self._seen_version = None
            return
        changed = self._changed_groups()
        for name in changed:
            if name not in self._pumps:
                continue
            if self.groups.get(name) is not None:
                self.pump(name)
            else:
                self._end_group(name)
        if status.limits is not None:
            self._on_limits(self)
        if status.outbox is not None:
            self._on_outbox(self)
        self._expire(status)
        self._set_upkeep(status)
        if status.level < self._highest_level:
            self.raise_level()
        if self.watchers:
            self._notify_watchers(changed)

    def _changed_groups(self) -> list[str]:
        """Return the groups with subscriptions or watchers here whose status may have changed since the last call."""
        seen, self._seen_version = self._seen_version, self.groups.version
        if seen is not None and seen == self.groups.version:
            return []
        if seen is not None and seen == self.groups.since:
            return [name for name in self.groups.changed if name in self._pumps or name in self.watchers]
        return [*self._pumps, *[name for name in self.watchers if name not in self._pumps]]

    def raise_level(self) -> None:
        """If the partition is below the cluster's feature level, raise it to that level."""
        if self._raising or self.closed or not self.raft_group.works:
            return
        level = min(self._cluster_level(), self._highest_level)
        if self.raft_group.status.level >= level:
            return
        self._raising = True
        try:
            self.raft_group.submit(c.RaiseLevel(level), self._raised, line=BEHIND)
        except SandqError as error:
            self._raised(error)

    def _raised(self, result: Any) -> None:
        """Handle the result of `raise_level`: after an error, try again."""
        self._raising = False
        if isinstance(result, SandqError) and not self.closed and self.raft_group.works:
            self._timers.at(self._clock.now_ms() + RETRY_MS, self.raise_level)

    def touch(self, name: str) -> int:
        """Mark a group as in use by a consumer without a subscription.

        Return the time in ms at which to call this again."""
        now_ms, marked_ms = self._clock.now_ms(), self._marked_ms.get(name, 0)
        next_ms = marked_ms + self._touch_interval_ms(self.raft_group.status)
        if marked_ms <= now_ms < next_ms:
            return next_ms
        self._marked_ms[name] = now_ms
        self._touch([name])
        return now_ms + self._touch_interval_ms(self.raft_group.status)

    def touched_with(self, name: str) -> None:
        """Record that a group was just created. A new group counts as marked as in use."""
        self._marked_ms[name] = self._clock.now_ms()

    def _end_group(self, name: str) -> None:
        """End the subscriptions of a deleted group. The consumers may create the group again."""
        pump = self._pumps.pop(name)
        pump.sleep_no_more()
        for subscription in pump.consumers.values():
            if not subscription.closed:
                subscription.closed = True
                subscription.receiver.ended(Unavailable(f"group {name!r} was deleted; subscribe again", group=name))

    # -- leasing --------------------------------------------------------------------------------------------------

    def pump(self, name: str, *, is_along: bool = False) -> None:
        """Lease messages that are due, or set a timer for the next message.

        `is_along`: True if other requests are stored at this moment, so that a lease costs less."""
        pump, group = self._pumps.get(name), self.groups.get(name)
        if pump is None or group is None:
            return
        now_ms = self._clock.now_ms()
        is_paused = group.paused is not None or group.is_limit_paused(now_ms)
        if is_paused or group.paused_tenants or group.paused_keys or not pump.queue:
            pump.free_since_ms = None
        elif pump.free_since_ms is None:
            pump.free_since_ms = now_ms
        if pump.busy:
            return
        if not self.knows_limits:
            self._wake_at(name, pump, now_ms + RETRY_MS)
            return
        if group.limit is not None and any(group.limit.holds_up(now_ms)):
            # The limits delay messages. If a consumer has credit, a larger share of the limits may help.
            pump.free_since_ms = None
            if self._with_credit(pump):
                self._on_limits(self)
        if group.next_ms is None:
            if group.limit is not None and (due_ms := group.limit.later_ms(now_ms)) is not None:
                self._wake_at(name, pump, due_ms)  # ask for a share of the limits then
            return
        wake_ms = self._wake_ms(pump, group, now_ms)
        # Do not lease too early: a message that is produced after a lease is delivered after the messages of the lease.
        free_ms = pump.free_ms(group, now_ms)
        along_ms = max(group.next_ms - self._ahead_ms, free_ms, pump.asked_ms + 3 * self._span_ms // 4)
        if wake_ms > now_ms and not (is_along and along_ms <= now_ms):
            self._wake_at(name, pump, wake_ms)
            if along_ms < wake_ms and along_ms != pump.along_ms:
                pump.along_ms = along_ms
                self._window.wait(along_ms, partial(self._lease_along, name))
            return
        self._lease(name, pump, group, now_ms)

    def _lease_along(self, group: str) -> None:
        """Lease messages of a group, because other requests are stored at the same time."""
        pump = self._pumps.get(group)
        if pump is not None:
            pump.along_ms = None
            self.pump(group, is_along=True)

    @property
    def _ahead_ms(self) -> int:
        """Maximum time in ms by which a message may be leased before it is due."""
        # In a ranked topic, lease no message early: a message of higher rank may still arrive.
        return 0 if self.raft_group.status.settings.get("rank") is not None else self._window.ahead_ms

    @property
    def _precision_ms(self) -> int | None:
        """The topic's `precision` in ms. None if the node chooses the window."""
        precision_ms: int | None = self.raft_group.status.settings.get(PRECISION_MS)
        return precision_ms

    @property
    def _span_ms(self) -> int:
        """Time span of the messages in one lease, in ms. A message may be late by up to this time."""
        precision_ms = self._precision_ms
        return self._window.span_ms if precision_ms is None else self._timers.pause_ms(precision_ms)

    def _wake_ms(self, pump: GroupPump, group: GroupStatus, now_ms: int) -> int:
        """Return the latest time in ms at which to request the next lease of a group.

        The lease may be requested earlier, along with other requests."""
        assert group.next_ms is not None
        free_ms = pump.free_ms(group, now_ms)
        if self._is_new(pump, group):
            return free_ms
        has_precision = self._precision_ms is not None
        if not self._is_scheduled(pump, group.next_ms) and (not has_precision or pump.was_filled):
            return free_ms  # due when produced, or left over by a lease with too little credit
        # A window of the node begins with a lease of any topic, the window of a precision with one of its own topic.
        asked_ms = pump.asked_ms if has_precision else self._window.asked_ms
        at_ms = wake_ms(group.next_ms, now_ms, asked_ms=asked_ms, ahead_ms=self._ahead_ms, span_ms=self._span_ms)
        return max(at_ms, free_ms)

    def _is_scheduled(self, pump: GroupPump, next_ms: int) -> bool:
        """Return whether the next message is scheduled: it was stored before it was due.

        When such a message is first seen, its due time is later than the time of the newest entry."""
        if next_ms > self.raft_group.status.now_ms:
            pump.scheduled_ms = next_ms
        return next_ms == pump.scheduled_ms

    def _is_new(self, pump: GroupPump, group: GroupStatus) -> bool:
        """Return whether the group's next message of the log was due when it was produced.

        Such a message does not wait for the window of the retries that are due before it. If the topic has a
        `precision`, it does."""
        if self._precision_ms is not None or group.head_ms is None:
            return False
        if group.head_ms > self.raft_group.status.now_ms:
            pump.scheduled_head_ms = group.head_ms
        return group.head_ms != pump.scheduled_head_ms

    def _lease(self, name: str, pump: GroupPump, group: GroupStatus, now_ms: int) -> None:
        """Request a lease of messages for the consumers with free credit."""
        assert group.next_ms is not None
        next_ms = group.next_ms
        grants, reserved = self._grants(pump)
        if not grants:
            pump.free_since_ms = None
            return
        pump.is_scheduled, pump.has_new = self._is_scheduled(pump, next_ms), self._is_new(pump, group)
        # The lease includes messages that are due up to `horizon_ms`.
        horizon_ms = now_ms
        if pump.is_scheduled and not pump.has_new:
            # A lease is sent when its last message is due. So the window limits how late the first message is.
            horizon_ms = max(now_ms, min(now_ms + self._ahead_ms, next_ms + self._span_ms))
        pump.recalls = not pump.is_resting(now_ms)
        command = c.Lease(name, horizon_ms, tuple(grants), pump.recalls)
        pump.busy, pump.asked_ms, pump.asked_free_since_ms = True, now_ms, pump.free_since_ms
        try:
            # The lease is applied after earlier acks, because these acks may free messages that the lease can grant.
            done, work = partial(self._leased, name, pump, reserved), lease_work(grants)
            self.raft_group.submit(command, done, work=work, line=pump)
        except SandqError:
            self._refused(name, pump, reserved)
            return
        if pump.is_scheduled and self._precision_ms is None:
            self._window.asked(now_ms)

    @property
    def knows_limits(self) -> bool:
        """True if the partition applies the topic's current limits of groups. If False, the partition leases
        nothing."""
        return not self.limits_wanted or next_epoch(self.raft_group.status.settings) >= self.limits_wanted

    def is_hungry(self, name: str) -> bool:
        """Return whether some consumer would take more messages of a group."""
        pump = self._pumps.get(name)
        if pump is not None and any(subscription.free_credit > 0 for subscription in pump.queue):
            return True
        return bool(self.watchers.get(name)) or 0 <= self._clock.now_ms() - self._asked_ms.get(name, 0) < HUNGRY_MS

    def note_asked(self, name: str) -> None:
        """If a group has limits, record a LEASE request for it, which a consumer without a subscription has sent."""
        if self.raft_group.status.limits is not None and name in self.raft_group.status.limits.allowances:
            self._asked_ms[name] = self._clock.now_ms()
            self._on_limits(self)

    def _wake_at(self, name: str, pump: GroupPump, at_ms: int) -> None:
        """Call `pump` at `at_ms`, unless a timer for an earlier time is set."""
        if pump.timer_ms is not None and pump.timer_ms <= at_ms:
            return

        def wake() -> None:
            pump.timer = pump.timer_ms = None
            self.pump(name)

        pump.sleep_no_more()
        pump.timer_ms, pump.timer = at_ms, self._timers.at(at_ms, wake)

    def _credit_freed(self, subscription: Subscription) -> None:
        """Queue a consumer again, because it may have free credit."""
        pump = self._pumps.get(subscription.group)
        if pump is not None and pump.consumers.get(subscription.consumer) is subscription:
            pump.queue[subscription] = None
            self.pump(subscription.group)

    def _with_credit(self, pump: GroupPump) -> dict[Subscription, int]:
        """Return the next subscriptions to serve and the credit of each that this partition may use.

        Return at most `MAX_GRANTS` subscriptions. Subscriptions without free credit leave the queue."""
        credit: dict[Subscription, int] = {}
        starved = []
        for subscription in pump.queue:
            share = self._share(pump, subscription)
            if share <= 0:
                starved.append(subscription)
            else:
                credit[subscription] = share
                if len(credit) == MAX_GRANTS:
                    break
        for subscription in starved:
            del pump.queue[subscription]
            subscription.when_free(self._credit_freed)
        return credit

    def _grants(self, pump: GroupPump) -> tuple[list[c.Grant], dict[Subscription, int]]:
        """Grant messages round robin to the consumers with free credit, and subtract the grants from that credit.

        Return the grants, and the number of granted messages by subscription."""
        credit = self._with_credit(pump)
        waiting = deque(credit)
        most = SHARED_GRANT_MESSAGES if len(waiting) > 1 else FIXED.grant_messages
        grants: list[c.Grant] = []
        reserved: dict[Subscription, int] = {}
        # For a single consumer, request at most `window` messages, but always allow one grant. For several consumers,
        # there is no such limit, because some of them may get no messages.
        left = max(pump.window, most) if len(credit) == 1 else sum(credit.values())
        while waiting and left > 0 and len(grants) < MAX_GRANTS:
            subscription = waiting.popleft()
            limit = min(credit[subscription], most)
            left -= limit
            grants.append(
                c.Grant(subscription.consumer, limit, subscription.lease_ms, subscription.epoch, subscription.handlers)
            )
            reserved[subscription] = reserved.get(subscription, 0) + limit
            subscription.credit -= limit
            credit[subscription] -= limit
            if credit[subscription] > 0:
                waiting.append(subscription)
        if grants:
            pump.queue.move_to_end(next(iter(credit)))
        return grants, reserved

    def _share(self, pump: GroupPump, subscription: Subscription) -> int:
        """Return how much of a consumer's free credit this partition may request at once."""
        free = subscription.free_credit
        if subscription.partitions <= 1:
            return free
        return min(free, max(pump.window, min(free // subscription.partitions, FIRST_WINDOW)))

    def _leased(self, name: str, pump: GroupPump, reserved: dict[Subscription, int], result: Any) -> None:
        """Handle the result of a lease command."""
        if isinstance(result, SandqError):
            self._refused(name, pump, reserved)
            return
        pump.busy, now_ms = False, self._clock.now_ms()
        waits_for_others = self._span_ms > self._window.most_ms  # by its precision, so the node is not late
        free_since_ms = None if self.may_block or waits_for_others else pump.asked_free_since_ms
        by_consumer = {s.consumer: s for s in reserved}
        # Give back the reserved credit. Below, the granted messages are charged instead.
        for subscription, limit in reserved.items():
            subscription.credit += limit
        granted = sum(delivery.count for delivery in result)
        not_before_ms = 0
        if pump.is_scheduled:
            self._window.leased(granted, now_ms)
        if pump.is_scheduled and not pump.has_new:
            not_before_ms = push_ms(asked_ms=pump.asked_ms, ahead_ms=self._ahead_ms, span_ms=self._span_ms)
        if pump.recalls and any([delivery.attempt > 1 for delivery in result]):
            pump.rest(now_ms)
        pump.was_filled = granted >= sum(reserved.values())
        pump.window = 2 * granted if pump.was_filled else max(granted, 1)
        for delivery in result:
            subscription = by_consumer[delivery.consumer]
            subscription.credit -= delivery.count
            self.push(subscription, delivery, free_since_ms, not_before_ms=not_before_ms)
        if result or self.is_promoting(name):
            self.pump(name)
        else:
            # Nothing could be granted, for example because a consumer has too many leases. Do not retry at once.
            self._wake_at(name, pump, now_ms + RETRY_MS)
        for subscription in reserved:
            subscription.notify_credit()

    def is_promoting(self, name: str) -> bool:
        """Return whether the last lease could not rank all due messages of a group in a ranked topic.

        The next lease ranks more of them."""
        group = self.groups.get(name)
        return group is not None and group.is_promoting

    def _refused(self, name: str, pump: GroupPump, reserved: dict[Subscription, int]) -> None:
        """Handle a refused lease: give the reserved credit back, and try again after `RETRY_MS`."""
        pump.busy = False
        for subscription, limit in reserved.items():
            subscription.credit += limit
        if self.raft_group.works:
            self._wake_at(name, pump, self._clock.now_ms() + RETRY_MS)
        for subscription in reserved:
            subscription.notify_credit()

    @property
    def may_block(self) -> bool:
        """True if messages may wait until other messages of the same key or tenant are settled."""
        settings = self.raft_group.status.settings
        return key_limit(settings) is not None or bool(settings.get("tenants"))

    def is_held(self, name: str) -> bool:
        """Return whether messages of a group may wait for other messages or for the group's limits."""
        group = self.groups.get(name)
        return self.may_block or (group is not None and group.limit is not None)

    def push(
        self,
        subscription: Subscription,
        delivery: Delivery,
        free_since_ms: int | None = None,
        *,
        not_before_ms: int = 0,
    ) -> None:
        """Send a lease when its last message is due, but not before `not_before_ms`.

        If the consumer has left, the lease expires, or is pushed again when the consumer returns. If a later process of
        the consumer has taken over, the lease is given back. `free_since_ms`: see `TopicStats.delivered`."""
        now_ms = self._clock.now_ms()
        at_ms = max(delivery.due_ms, not_before_ms)
        if at_ms > now_ms:
            self._ahead[delivery.token] = subscription, delivery, free_since_ms
            self._timers.at(at_ms, lambda: self._due(subscription, delivery))
            return
        self._ahead.pop(delivery.token, None)
        if self._ahead:
            # First push earlier leases that are due, but whose timers are late.
            for earlier in [held for held in self._ahead.values() if held[1].due_ms <= now_ms]:
                del self._ahead[earlier[1].token]
                self._push(*earlier)
        self._push(subscription, delivery, free_since_ms)

    def _push(self, subscription: Subscription, delivery: Delivery, free_since_ms: int | None) -> None:
        """Send a due lease to its consumer, if the consumer is still here and no seek has revoked the lease."""
        group, to = self.groups.get(subscription.group), self._present(subscription)
        if to is None or group is None:
            if self._is_replaced(subscription):
                # If this command is refused, the lease expires. Leases that the later process has reclaimed have new
                # tokens, and stay.
                with suppress(SandqError):
                    self.raft_group.submit(c.Nack([(delivery.token, None, None, None, False)]), lambda result: None)
            return
        if to is not subscription:
            to.credit -= delivery.count  # the lease was charged to the previous subscription
        if group.generation == delivery.generation:
            self.stats.delivered(delivery, self._clock.now_s(), free_since_ms)
            to.receiver.push(delivery)
        else:
            # A seek has moved the group, so the lease is revoked. Do not send the lease, and free its credit.
            to.credit += delivery.count
            to.notify_credit()

    def _due(self, subscription: Subscription, delivery: Delivery) -> None:
        """Handle the timer of a lease. Do nothing if the lease was pushed already, or if a newer push has set another
        timer."""
        held = self._ahead.get(delivery.token)
        if held is not None and held[1] is delivery:
            self.push(subscription, delivery, held[2])

    def _present(self, subscription: Subscription) -> Subscription | None:
        """Return the current subscription of a subscription's consumer.

        This is the given subscription, or the subscription that replaced it after a reconnect. None if the consumer is
        gone."""
        if not subscription.closed:
            return subscription
        pump = self._pumps.get(subscription.group) if subscription.moved else None
        other = pump.consumers.get(subscription.consumer) if pump is not None else None
        return None if other is None or other.closed or other.epoch != subscription.epoch else other

    def _is_replaced(self, subscription: Subscription) -> bool:
        """Return whether a later process has taken over the leases of a subscription's consumer."""
        other = self.subscription_of(subscription.group, subscription.consumer)
        return subscription.fenced or (other is not None and other.epoch > subscription.epoch)

    # -- expiry and upkeep -----------------------------------------------------------------------------------------

    def _expire(self, status: Status) -> None:
        """Expire leases that have ended, or set a timer for the lease that ends next."""
        at_ms = status.next_expiry_ms
        if at_ms is None or self._expiring or self.closed or not self.raft_group.works:
            return
        now_ms = self._clock.now_ms()
        if at_ms > now_ms:
            if self._expiry_timer_ms is None or at_ms < self._expiry_timer_ms:
                if self._expiry_timer is not None:
                    self._expiry_timer.cancel()
                self._expiry_timer_ms, self._expiry_timer = at_ms, self._timers.at(at_ms, self._expiry_due)
            return
        self._expiring = True
        try:
            self.raft_group.submit(c.Expire(), self._expired, line=BEHIND)
        except SandqError:
            self._expired(None)

    def _expiry_due(self) -> None:
        """Handle the timer of `_expire`."""
        self._expiry_timer_ms = None
        self._expire(self.raft_group.status)

    def _expired(self, result: Any) -> None:
        """Handle the result of an Expire command: if it was applied, check again at once, else after `RETRY_MS`."""
        self._expiring = False
        if self.closed:
            return
        if isinstance(result, int):
            self._expire(self.raft_group.status)
        elif self.raft_group.works:
            self._timers.at(self._clock.now_ms() + RETRY_MS, self._expiry_due)

    def _set_upkeep(self, status: Status) -> None:
        """Set a timer for the partition's next upkeep, or for the next time to mark groups as in use."""
        if self._keeping or not self.raft_group.works:
            return
        now_ms = self._clock.now_ms()
        if self._touched_ms is None or self._touched_ms > now_ms:  # never marked, or the clock was ahead at that time
            self._touch_all(status)
            return
        due_ms = None
        if status.upkeep_ms is not None:
            due_ms = max(status.upkeep_ms, now_ms + self._timers.pause_ms(UPKEEP_PAUSE_MS))
        touch_ms = self._touched_ms + self._touch_interval_ms(status) if self._pumps else None
        at_ms = min((at for at in (due_ms, touch_ms) if at is not None), default=None)
        if at_ms is not None and (self._upkeep_timer_ms is None or at_ms < self._upkeep_timer_ms):
            self._upkeep_timer_ms = at_ms
            if self._upkeep_timer is not None:
                self._upkeep_timer.cancel()
            self._upkeep_timer = self._timers.at(at_ms, lambda: self._upkeep_due(at_ms))

    def _touch_all(self, status: Status) -> None:
        """Mark all groups as in use before the first upkeep.

        Otherwise the upkeep would delete groups that could not be marked as in use while the partition had no
        leader."""
        self._keeping = True
        names = status.groups.names
        if not names:
            self._touch_ended(None)
            return
        try:
            self.raft_group.submit(c.Touch(names), self._touch_ended, line=BEHIND)
        except SandqError as error:
            self._touch_ended(error)

    def _touch_ended(self, result: Any) -> None:
        """Handle the result of a Touch command. After an error, try again after `RETRY_MS`."""
        self._keeping = False
        if self.closed or not self.raft_group.works:
            return
        if isinstance(result, SandqError):
            self._timers.at(self._clock.now_ms() + RETRY_MS, lambda: self._set_upkeep(self.raft_group.status))
        else:
            self._touched_ms = self._clock.now_ms()
            self._set_upkeep(self.raft_group.status)

    def _touch_interval_ms(self, status: Status) -> int:
        """Return the time in ms after which groups are marked as in use again."""
        group_ttl_ms = status.settings["group_ttl_ms"]
        return TOUCH_MS if group_ttl_ms is None else min(TOUCH_MS, group_ttl_ms // 4)

    def _upkeep_due(self, at_ms: int) -> None:
        """Handle the timer of `_set_upkeep`: mark groups with consumers as in use, and start an upkeep that is due."""
        if self.closed or self._keeping or self._upkeep_timer_ms != at_ms or not self.raft_group.works:
            return  # for example, the timer was replaced
        self._upkeep_timer_ms = None
        status: Status = self.raft_group.status
        now_ms = self._clock.now_ms()
        if self._touched_ms is None or self._touched_ms + self._touch_interval_ms(status) <= now_ms:
            self._touched_ms = now_ms
            self._touch([name for name, pump in self._pumps.items() if pump.consumers])
        if status.upkeep_ms is not None and status.upkeep_ms <= now_ms:
            self._upkeep()
        else:
            self._set_upkeep(status)

    def _touch(self, names: list[str]) -> None:
        """Mark these groups as in use."""
        if names:
            # If this command is refused, the next command follows long before a group expires.
            with suppress(SandqError):
                self.raft_group.submit(c.Touch(names), lambda result: None, line=BEHIND)

    def _upkeep(self) -> None:
        """Submit one step of the upkeep."""
        self._keeping = True
        try:
            self.raft_group.submit(c.Upkeep(), self._upkept, messages=STEP_MESSAGES, line=BEHIND)
        except SandqError as error:
            self._upkept(error)

    def _upkept(self, result: Any) -> None:
        """Handle the result of an upkeep step. If the result is True, more steps are needed now."""
        self._keeping = False
        if self.closed or not self.raft_group.works:
            return
        if result is True:
            self._upkeep()
        elif isinstance(result, SandqError):
            self._timers.at(self._clock.now_ms() + RETRY_MS, lambda: self._set_upkeep(self.raft_group.status))
        else:
            self._set_upkeep(self.raft_group.status)
