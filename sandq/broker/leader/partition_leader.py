"""Leases what is due to consumers with credit, pushes it when its time has come, and keeps a partition's house."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from functools import partial
from typing import Any, Final

from sandq.broker.clock.guarded_clock import GuardedClock
from sandq.broker.clock.timers import Timer, Timers
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
from sandq.partition import commands as c
from sandq.partition.group_status import GroupStatuses
from sandq.partition.jobs.jobs import STEP_MESSAGES
from sandq.partition.leasing.lease_grants import MAX_LEASE_AHEAD_MS
from sandq.partition.partition_status import Status

MAX_GRANTS = 64
SHARED_GRANT_MESSAGES = 64
"""Of one grant while several consumers have room, so that what is due is spread."""
RETRY_MS = 50
"""After a refusal (overload, leadership not settled)."""
PAUSE_MS, DENSE_PAUSE_MS = 3, 8
"""So much of what is not due yet is in one lease: at most so much later than it is due comes its first message. The
longer one while so many come due that a lease has `DENSE_PER_MS` for each ms."""
STORE_MS = 5
"""So long before its last message is due, at the latest, a lease is asked for: in this time it is stored, most often.
It is asked for before that when something else is stored anyway, acks above all, once all of it may be leased."""
DENSE_PER_MS = 5
FIRST_WINDOW = 8
UPKEEP_PAUSE_MS = 100
HUNGRY_MS: Final = 5000
"""So long somebody who asked once for messages of a group that has limits is believed to ask again."""
RETURN_MS: Final = 10_000
"""Who takes part within so long after this node began to lead is believed to have taken part where another one led:
what was due in so long before that waited for a leader, not for consumers."""
TOUCH_MS = 3_600_000
"""How often a group with consumers is said to have them, at least; oftener where `group_ttl` is short."""


LEASE_WORK: Final = 256
MESSAGE_WORK: Final = 1024
"""Of each message that a lease may give: as much as of an item of an ack, ..."""
LEASE_WORK_MOST: Final = 1 << 20
"""... so that acks that are no larger, and came before it, come first."""
Watcher = Callable[["PartitionLeader", SandqError | None], None]


def lease_work(grants: Iterable[c.Grant]) -> int:
    """What a lease counts for in its line (see `RaftGroup.submit`)."""
    return min(LEASE_WORK + MESSAGE_WORK * sum([grant.limit for grant in grants]), LEASE_WORK_MOST)


class _GroupPump:
    """Delivery of one group in one partition: at most one lease command is under way."""

    def __init__(self) -> None:
        self.consumers: dict[str, Subscription] = {}
        """Those who take part, each by its name."""
        self.line: OrderedDict[Subscription, None] = OrderedDict()
        """Of them those that may have room, whose turn is next first. The others are not looked at, however many they
        are: they come back once there may be room (`PartitionLeader._has_room`)."""
        self.busy = False
        self.asked_ms = 0
        """When it was last asked for a lease, ..."""
        self.asked_early = False
        """... and that was of what was waited for."""
        self.awaited_ms: int | None = None
        """What the timer is for is due then."""
        self.is_dense = False
        """Very many come due, each at its time: they are leased less often, and further ahead."""
        self.timer_ms: int | None = None
        self.timer: Timer | None = None
        """For then; to be cancelled with `sleep_no_more`."""
        self.room_ms: int | None = None
        """Since when there is room for what is due; None: there is none, or something else holds the group up."""
        self.asked_room_ms: int | None = None
        """The same, when the lease that is under way was asked for."""
        self.window = 1
        """Messages to ask for at once, beyond one grant, and also below it while the credit is shared with other
        partitions: it doubles while it is filled, so that those with little to give keep nothing from the others."""

    def sleep_no_more(self) -> None:
        """There is no timer any more."""
        if self.timer is not None:
            self.timer.cancel()
        self.timer = self.timer_ms = None


class PartitionLeader:
    """Everything a partition's leader does by the clock: leases, expiry, trimming."""

    def __init__(
        self,
        *,
        raft_group: RaftGroup,
        partition: int,
        clock: GuardedClock,
        timers: Timers,
        lease_ahead_ms: int,
        look: Callable[[Status], None] = lambda status: None,
        stats: TopicStats | None = None,
        cluster_level: Callable[[], int] = lambda: FIRST_LEVEL,
        attended: set[PartitionLeader] | None = None,
        on_limits: Callable[[PartitionLeader], None] = lambda leader: None,
        on_outbox: Callable[[PartitionLeader], None] = lambda leader: None,
        highest_level: int = KNOWN.highest,
    ) -> None:
        """`look`: called with each status, also where another node leads. `cluster_level()`: the feature level that the
        cluster has come to, as far as this node knows. `attended`: of the topic's partitions here those that somebody
        takes part in or watches; this one is put there while it is one of them. `on_limits`: called with this when
        limits of groups may have to be shared otherwise, `on_outbox` when there is something to be sent to others.
        `highest_level`: the highest feature level that this node's version knows."""
        self.raft_group = raft_group
        self._look = look
        self.partition = partition
        self.stats = stats or TopicStats(NodeStats())
        self._clock = clock
        self._timers = timers
        self._lease_ahead_ms = lease_ahead_ms
        self._cluster_level = cluster_level
        self._highest_level = highest_level
        self._on_limits = on_limits
        self._on_outbox = on_outbox
        self.limits_wanted = 0
        """The `next_epoch` of limits of groups in the topic's settings, as metadata has them."""
        self._asked_ms: dict[str, int] = {}
        """When somebody asked a group for messages once, without a subscription."""
        self._raising = False
        """The partition is about to be raised to the cluster's level."""
        self._pumps: dict[str, _GroupPump] = {}
        self._along_ms: dict[str, int] = {}
        """By group: from when on something is leased to it along with what is stored anyway, before its timer is."""
        self._attended = set() if attended is None else attended
        self.groups = GroupStatuses()
        """What is known of each."""
        self._seen_version: int | None = None
        """Of `groups`, that everything here goes by; None: all of it is to be looked at anew."""
        self._led_ms = 0
        """When this node began to lead."""
        self._ahead: dict[int, tuple[Subscription, Delivery, int | None]] = {}
        """Leases that wait for their time to be pushed, by token; one that is pushed anew waits once."""
        self._taken_ms: dict[str, int] = {}
        """When a group was last said to have takers."""
        self._expiring = False
        self._expiry_timer_ms: int | None = None
        self._expiry_timer: Timer | None = None
        self._keeping = False
        """An upkeep is under way, or a timer is set for it ..."""
        self._upkeep_timer_ms: int | None = None
        """... for then."""
        self._upkeep_timer: Timer | None = None
        self._touched_ms: int | None = None
        """When the groups were last said to have consumers; None: they may all have had some before we led, and nothing
        is kept in order before that is said."""
        self.closed = False
        self.watchers: dict[str, dict[Watcher, None]] = {}
        """By group."""
        raft_group.listen(on_status=self.status_changed, on_flush=self._lease_along)

    def attach(self, subscription: Subscription) -> None:
        """From now on the subscription takes part; one of the same consumer is replaced."""
        self._attended.add(self)
        pump = self._pumps.setdefault(subscription.group, _GroupPump())
        subscription.partitions += 1
        old = pump.consumers.pop(subscription.consumer, None)
        if old is not None:
            pump.line.pop(old, None)
        pump.consumers[subscription.consumer] = subscription
        pump.line[subscription] = None
        if pump.room_ms is None:
            pump.room_ms = self._clock.now_ms()
            if pump.room_ms - self._led_ms <= RETURN_MS:
                pump.room_ms = self._led_ms - RETURN_MS
        self.pump(subscription.group)

    def detach(self, subscription: Subscription) -> bool:
        """False: it was replaced meanwhile."""
        pump = self._pumps.get(subscription.group)
        if pump is None or pump.consumers.get(subscription.consumer) is not subscription:
            return False
        del pump.consumers[subscription.consumer]
        pump.line.pop(subscription, None)
        if not pump.line:
            pump.room_ms = None
        return True

    def subscription_of(self, group: str, consumer: str) -> Subscription | None:
        """The one with which a consumer takes part here."""
        pump = self._pumps.get(group)
        return None if pump is None else pump.consumers.get(consumer)

    def consumers(self, group: str) -> int:
        """How many take part here."""
        pump = self._pumps.get(group)
        return len(pump.consumers) if pump is not None else 0

    def subscriptions(self, group: str) -> Mapping[str, Subscription]:
        """Return the subscriptions of a group here, by consumer."""
        pump = self._pumps.get(group)
        return {} if pump is None else pump.consumers

    def consumers_by_group(self) -> dict[str, int]:
        """From any thread."""
        return {name: len(pump.consumers) for name, pump in list(self._pumps.items())}

    def end_subscriptions(self, error: SandqError) -> None:
        """Nobody takes part any more; who did is told why."""
        pumps = list(self._pumps.values())
        self._pumps.clear()
        for pump in pumps:
            pump.sleep_no_more()
            for subscription in pump.consumers.values():
                if not subscription.closed:
                    subscription.closed = subscription.moved = True
                    subscription.receiver.ended(error)
        self._tell_watchers(list(self.watchers), error)
        if not (self.watchers or self._pumps):
            self._attended.discard(self)

    def close(self, error: SandqError) -> None:
        """The partition is gone: nothing more is leased or pushed."""
        self.closed = True
        self.end_subscriptions(error)

    def lead(self) -> None:
        """This node begins to lead: from here on it does what is to be done by the clock."""
        self._led_ms = self._clock.now_ms()
        self._touched_ms = self._expiry_timer_ms = self._upkeep_timer_ms = None
        self._expiring = self._keeping = self._raising = False
        self._seen_version = None
        self.status_changed()

    def watch(self, group: str, watcher: Watcher) -> None:
        """Call this from now on after each change of a group's status; with an error where who takes part is to ask
        anew, for another node leads the partition, or this one leads others of the topic as well."""
        self._attended.add(self)
        self.watchers.setdefault(group, {})[watcher] = None

    def unwatch(self, group: str, watcher: Watcher) -> None:
        """Call it no more."""
        watchers = self.watchers.get(group)
        if watchers is not None:
            watchers.pop(watcher, None)
            if not watchers:
                del self.watchers[group]

    def _tell_watchers(self, groups: Iterable[str], error: SandqError | None = None) -> None:
        for group in groups:
            for watcher in list(self.watchers.get(group, ())):
                watcher(self, error)

    def status_changed(self) -> None:
        if self.closed:
            return
        status: Status = self.raft_group.status
        self.groups = status.groups
        self._look(status)
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
            self._tell_watchers(changed)

    def _changed_groups(self) -> list[str]:
        """The groups that somebody here waits for, and that may be others than when this was asked last."""
        seen, self._seen_version = self._seen_version, self.groups.version
        if seen is not None and seen == self.groups.version:
            return []
        if seen is not None and seen == self.groups.since:
            return [name for name in self.groups.changed if name in self._pumps or name in self.watchers]
        return [*self._pumps, *[name for name in self.watchers if name not in self._pumps]]

    def raise_level(self) -> None:
        """Have the partition go by the rules of the cluster's feature level, unless it does."""
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
        self._raising = False
        if isinstance(result, SandqError) and not self.closed and self.raft_group.works:
            self._timers.at(self._clock.now_ms() + RETRY_MS, self.raise_level)

    def touch(self, name: str) -> int:
        """Somebody takes from the group, who has no subscription. Returns when (ms) to say so again, if still."""
        now_ms, taken_ms = self._clock.now_ms(), self._taken_ms.get(name, 0)
        again_ms = taken_ms + self._touch_interval_ms(self.raft_group.status)
        if taken_ms <= now_ms < again_ms:
            return again_ms
        self._taken_ms[name] = now_ms
        self._touch([name])
        return now_ms + self._touch_interval_ms(self.raft_group.status)

    def touched_with(self, name: str) -> None:
        """The group was made just now: it need not be said that it is in use."""
        self._taken_ms[name] = self._clock.now_ms()

    def _end_group(self, name: str) -> None:
        """The group was deleted: whoever takes part is told, and may make it anew."""
        pump = self._pumps.pop(name)
        pump.sleep_no_more()
        for subscription in pump.consumers.values():
            if not subscription.closed:
                subscription.closed = True
                subscription.receiver.ended(Unavailable(f"group {name!r} was deleted; subscribe again", group=name))

    # -- leasing --------------------------------------------------------------------------------------------------

    def pump(self, name: str, *, is_along: bool = False) -> None:
        """Lease what is due, or set a timer for when it will be. `is_along`: something else is stored anyway."""
        self._along_ms.pop(name, None)
        pump, group = self._pumps.get(name), self.groups.get(name)
        if pump is None or group is None:
            return
        now_ms = self._clock.now_ms()
        if group.paused is not None or not pump.line:
            pump.room_ms = None
        elif pump.room_ms is None:
            pump.room_ms = now_ms
        if pump.busy:
            return
        if not self.knows_limits:
            self._wake_at(name, pump, now_ms + RETRY_MS)
            return
        if group.limit is not None and any(group.limit.holds_up(now_ms)):
            pump.room_ms = None
            if self._with_room(pump):
                self._on_limits(self)
        if group.next_ms is None:
            return
        ahead_ms, pause_ms = self._lease_ahead_ms, PAUSE_MS
        if self.raft_group.status.settings.get("rank") is not None:
            ahead_ms = 0  # what goes before it may come until then
        elif pump.is_dense:
            ahead_ms, pause_ms = min(2 * ahead_ms, MAX_LEASE_AHEAD_MS), DENSE_PAUSE_MS
        # No earlier: what is produced meanwhile comes behind the last of a lease.
        along_ms = max(group.next_ms + pause_ms - ahead_ms, group.not_before_ms)
        wake_ms = max(group.next_ms - ahead_ms, group.not_before_ms)
        if pump.asked_ms <= now_ms:  # the clock was not set back
            # What comes dense comes together: a lease for each millisecond would cost as much as a lease for several.
            latest_ms = group.next_ms + min(pause_ms, ahead_ms) - STORE_MS
            wake_ms = max(wake_ms, latest_ms if pump.is_dense else min(pump.asked_ms + pause_ms, latest_ms))
        if wake_ms > now_ms and not (is_along and along_ms <= now_ms):
            self._wake_at(name, pump, wake_ms)
            pump.awaited_ms = group.next_ms
            if along_ms < wake_ms:
                self._along_ms[name] = along_ms
            return
        grants, reserved = self._grants(pump)
        if not grants:
            pump.room_ms = None
            return
        # The first of a lease waits for the last.
        horizon_ms = max(now_ms, min(now_ms + ahead_ms, group.next_ms + pause_ms))
        command = c.Lease(name, horizon_ms, tuple(grants))
        pump.busy, pump.asked_ms, pump.asked_room_ms = True, now_ms, pump.room_ms
        pump.asked_early = group.next_ms > now_ms or group.next_ms == pump.awaited_ms
        try:
            # Behind acks that came before it: they may set free what it is to give.
            done, work = partial(self._leased, name, pump, reserved), lease_work(grants)
            self.raft_group.submit(command, done, work=work, line=pump)
        except SandqError:
            self._refused(name, pump, reserved)

    @property
    def knows_limits(self) -> bool:
        """Whether the partition goes by the limits of groups that the topic has; before that nothing is leased."""
        return not self.limits_wanted or next_epoch(self.raft_group.status.settings) >= self.limits_wanted

    def is_hungry(self, name: str) -> bool:
        """Whether somebody would take more messages of a group."""
        pump = self._pumps.get(name)
        if pump is not None and any(subscription.room > 0 for subscription in pump.line):
            return True
        return bool(self.watchers.get(name)) or 0 <= self._clock.now_ms() - self._asked_ms.get(name, 0) < HUNGRY_MS

    def note_asked(self, name: str) -> None:
        """Somebody asks a group for messages, who has no subscription."""
        if self.raft_group.status.limits is not None and name in self.raft_group.status.limits.allowances:
            self._asked_ms[name] = self._clock.now_ms()
            self._on_limits(self)

    def _lease_along(self) -> None:
        """Something is proposed: have it take leases along that would be asked for soon."""
        if self._along_ms:
            now_ms = self._clock.now_ms()
            for name in [name for name, along_ms in self._along_ms.items() if along_ms <= now_ms]:
                self.pump(name, is_along=True)

    def _wake_at(self, name: str, pump: _GroupPump, at_ms: int) -> None:
        if pump.timer_ms is not None and pump.timer_ms <= at_ms:
            return

        def wake() -> None:
            pump.timer = pump.timer_ms = None
            self.pump(name)

        pump.sleep_no_more()
        pump.timer_ms, pump.timer = at_ms, self._timers.at(at_ms, wake)

    def _has_room(self, subscription: Subscription) -> None:
        """A consumer that had no room may have some."""
        pump = self._pumps.get(subscription.group)
        if pump is not None and pump.consumers.get(subscription.consumer) is subscription:
            pump.line[subscription] = None
            self.pump(subscription.group)

    def _with_room(self, pump: _GroupPump) -> dict[Subscription, int]:
        """Whose turn is next, as many as there are grants at most, and what each may be given. Who is found to have no
        room leaves the line."""
        room: dict[Subscription, int] = {}
        starved = []
        for subscription in pump.line:
            share = self._share(pump, subscription)
            if share <= 0:
                starved.append(subscription)
            else:
                room[subscription] = share
                if len(room) == MAX_GRANTS:
                    break
        for subscription in starved:
            del pump.line[subscription]
            subscription.when_room(self._has_room)
        return room

    def _grants(self, pump: _GroupPump) -> tuple[list[c.Grant], dict[Subscription, int]]:
        """Round robin over the consumers with room; what is granted is taken off their credit."""
        room = self._with_room(pump)
        takers = deque(room)
        most = SHARED_GRANT_MESSAGES if len(takers) > 1 else FIXED.grant_messages
        grants: list[c.Grant] = []
        reserved: dict[Subscription, int] = {}
        # One alone asks for twice as much only while that is filled. Of several one may not be granted anything more.
        left = max(pump.window, most) if len(room) == 1 else sum(room.values())
        while takers and left > 0 and len(grants) < MAX_GRANTS:
            taker = takers.popleft()
            limit = min(room[taker], most)
            left -= limit
            grants.append(c.Grant(taker.consumer, limit, taker.lease_ms, taker.epoch, taker.handlers))
            reserved[taker] = reserved.get(taker, 0) + limit
            taker.credit -= limit
            room[taker] -= limit
            if room[taker] > 0:
                takers.append(taker)
        if grants:
            pump.line.move_to_end(next(iter(room)))
        return grants, reserved

    def _share(self, pump: _GroupPump, subscription: Subscription) -> int:
        """What of a consumer's room this partition may ask for at once."""
        room = subscription.room
        if subscription.partitions <= 1:
            return room
        return min(room, max(pump.window, min(room // subscription.partitions, FIRST_WINDOW)))

    def _leased(self, name: str, pump: _GroupPump, reserved: dict[Subscription, int], result: Any) -> None:
        if isinstance(result, SandqError):
            self._refused(name, pump, reserved)
            return
        pump.busy = False
        room_ms = None if self.has_turns else pump.asked_room_ms
        by_consumer = {s.consumer: s for s in reserved}
        for subscription, limit in reserved.items():
            subscription.credit += limit
        granted = sum(delivery.count for delivery in result)
        dense = DENSE_PER_MS * (DENSE_PAUSE_MS if pump.is_dense else PAUSE_MS)
        pump.is_dense = pump.asked_early and granted >= dense
        pump.window = 2 * granted if granted >= sum(reserved.values()) else max(granted, 1)
        for delivery in result:
            subscription = by_consumer[delivery.consumer]
            subscription.credit -= delivery.count
            self.push(subscription, delivery, room_ms)
        if result or self.is_promoting(name):
            self.pump(name)
        else:
            # Nothing could be granted (a consumer with too many leases, say): no reason to ask again at once.
            self._wake_at(name, pump, self._clock.now_ms() + RETRY_MS)
        for subscription in reserved:
            subscription.notify_room()

    def is_promoting(self, name: str) -> bool:
        """Whether there is more that is due, and has to be ranked, than one lease came to: the next goes on with it."""
        group = self.groups.get(name)
        return group is not None and group.is_promoting

    def _refused(self, name: str, pump: _GroupPump, reserved: dict[Subscription, int]) -> None:
        pump.busy = False
        for subscription, limit in reserved.items():
            subscription.credit += limit
        if self.raft_group.works:
            self._wake_at(name, pump, self._clock.now_ms() + RETRY_MS)
        for subscription in reserved:
            subscription.notify_room()

    @property
    def has_turns(self) -> bool:
        """Whether messages wait for others to be settled: those of their keys, or of their tenants."""
        settings = self.raft_group.status.settings
        return key_limit(settings) is not None or bool(settings.get("tenants"))

    def is_held(self, name: str) -> bool:
        """Whether messages of a group may have to wait for others, or for its limits."""
        group = self.groups.get(name)
        return self.has_turns or (group is not None and group.limit is not None)

    def push(self, subscription: Subscription, delivery: Delivery, room_ms: int | None = None) -> None:
        """Send once the latest of it is due. A lease whose consumer has gone meanwhile runs out, or is pushed
        again when the consumer returns; one that a later process has replaced gives it back. `room_ms`: see
        `TopicStats.delivered`."""
        now_ms = self._clock.now_ms()
        if delivery.due_ms > now_ms:
            self._ahead[delivery.token] = subscription, delivery, room_ms
            self._timers.at(delivery.due_ms, lambda: self._due(subscription, delivery))
            return
        self._ahead.pop(delivery.token, None)
        if self._ahead:
            # Their timers are late, and they were leased before.
            for earlier in [held for held in self._ahead.values() if held[1].due_ms <= now_ms]:
                del self._ahead[earlier[1].token]
                self._push(*earlier)
        self._push(subscription, delivery, room_ms)

    def _push(self, subscription: Subscription, delivery: Delivery, room_ms: int | None) -> None:
        group, to = self.groups.get(subscription.group), self._present(subscription)
        if to is None or group is None:
            if self._is_replaced(subscription):
                # Refused: it runs out. What the later process has reclaimed is its own under another token.
                with suppress(SandqError):
                    self.raft_group.submit(c.Nack([(delivery.token, None, None, None, False)]), lambda result: None)
            return
        if to is not subscription:
            to.credit -= delivery.count  # it was taken off the one that is gone
        if group.generation == delivery.generation:
            self.stats.delivered(delivery, self._clock.now_s(), room_ms)
            to.receiver.push(delivery)
        else:
            # A seek came before: the lease is over, nobody hears of it, and it takes no room.
            to.credit += delivery.count
            to.notify_room()

    def _due(self, subscription: Subscription, delivery: Delivery) -> None:
        held = self._ahead.get(delivery.token)
        if held is not None and held[1] is delivery:
            self.push(subscription, delivery, held[2])

    def _present(self, subscription: Subscription) -> Subscription | None:
        """The subscription, or the one with which its consumer has come back meanwhile."""
        if not subscription.closed:
            return subscription
        pump = self._pumps.get(subscription.group) if subscription.moved else None
        other = pump.consumers.get(subscription.consumer) if pump is not None else None
        return None if other is None or other.closed or other.epoch != subscription.epoch else other

    def _is_replaced(self, subscription: Subscription) -> bool:
        """Whether a later process has taken over what the consumer of a subscription holds."""
        other = self.subscription_of(subscription.group, subscription.consumer)
        return subscription.fenced or (other is not None and other.epoch > subscription.epoch)

    # -- expiry and upkeep -----------------------------------------------------------------------------------------

    def _expire(self, status: Status) -> None:
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
        self._expiry_timer_ms = None
        self._expire(self.raft_group.status)

    def _expired(self, result: Any) -> None:
        self._expiring = False
        if self.closed:
            return
        if isinstance(result, int):
            self._expire(self.raft_group.status)
        elif self.raft_group.works:
            self._timers.at(self._clock.now_ms() + RETRY_MS, self._expiry_due)

    def _set_upkeep(self, status: Status) -> None:
        """Have the partition's bounded housekeeping done when some is due, and not more often than needed."""
        if self._keeping or not self.raft_group.works:
            return
        now_ms = self._clock.now_ms()
        if self._touched_ms is None or self._touched_ms > now_ms:  # the clock was ahead then
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
        """Say of all groups that they have consumers: no upkeep comes before it, which would drop those that were last
        said to have some before nobody led."""
        self._keeping = True
        names = status.groups.names
        if not names:
            self._touched(None)
            return
        try:
            self.raft_group.submit(c.Touch(names), self._touched, line=BEHIND)
        except SandqError as error:
            self._touched(error)

    def _touched(self, result: Any) -> None:
        self._keeping = False
        if self.closed or not self.raft_group.works:
            return
        if isinstance(result, SandqError):
            self._timers.at(self._clock.now_ms() + RETRY_MS, lambda: self._set_upkeep(self.raft_group.status))
        else:
            self._touched_ms = self._clock.now_ms()
            self._set_upkeep(self.raft_group.status)

    def _touch_interval_ms(self, status: Status) -> int:
        group_ttl_ms = status.settings["group_ttl_ms"]
        return TOUCH_MS if group_ttl_ms is None else min(TOUCH_MS, group_ttl_ms // 4)

    def _upkeep_due(self, at_ms: int) -> None:
        if self.closed or self._keeping or self._upkeep_timer_ms != at_ms or not self.raft_group.works:
            return
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
        if names:
            # Refused: the next one comes long before a group goes.
            with suppress(SandqError):
                self.raft_group.submit(c.Touch(names), lambda result: None, line=BEHIND)

    def _upkeep(self) -> None:
        self._keeping = True
        try:
            self.raft_group.submit(c.Upkeep(), self._upkept, messages=STEP_MESSAGES, line=BEHIND)
        except SandqError as error:
            self._upkept(error)

    def _upkept(self, result: Any) -> None:
        self._keeping = False
        if self.closed or not self.raft_group.works:
            return
        if result is True:
            self._upkeep()
        elif isinstance(result, SandqError):
            self._timers.at(self._clock.now_ms() + RETRY_MS, lambda: self._set_upkeep(self.raft_group.status))
        else:
            self._set_upkeep(self.raft_group.status)
