"""The broker: topics and their partitions on this node, and what may be asked of them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, Final, TypeVar

import structlog
import trio
import trio.lowlevel

from sandq.broker.backups.backups import Backups
from sandq.broker.backups.exports import Exports
from sandq.broker.backups.log_reads import LogReads
from sandq.broker.catalog import Catalog, OpenTopic
from sandq.broker.clock.guarded_clock import GuardedClock
from sandq.broker.clock.timers import Timers
from sandq.broker.controller.administration import Administration
from sandq.broker.controller.reconciler import Reconciler
from sandq.broker.delivery import sending_acks
from sandq.broker.delivery.group_waiters import GroupWaiters
from sandq.broker.delivery.lease_once import LeaseOnce, release
from sandq.broker.delivery.nack_changes import with_columns
from sandq.broker.delivery.outbox_sender import OutboxSender
from sandq.broker.delivery.subscribe import (
    GroupOpenings,
    Known,
    check_epoch,
    held_by,
    known_to,
    reclaim,
    reclaimable,
    size_of,
)
from sandq.broker.leader.partition_leader import PartitionLeader
from sandq.broker.leader.subscription import DeliveryReceiver, Subscription
from sandq.broker.peers.links import PeerLinks
from sandq.broker.peers.routes import Routes
from sandq.broker.reads.fan_out import call_all, read_all
from sandq.broker.reads.kv_watch import KvWatches
from sandq.broker.reads.linearizable_reads import LinearizableReads
from sandq.broker.reads.schedule_outlook import ScheduleOutlooks
from sandq.broker.replication.in_parts import submit_in_parts
from sandq.broker.replication.node_log import NodeLog
from sandq.broker.replication.raft_group import RaftGroup
from sandq.broker.replication.replica import Delivery, MetadataView, PartitionReplica
from sandq.broker.replication.requests import Done
from sandq.broker.replication.runner import Runner
from sandq.broker.stats.node_stats import NodeStats
from sandq.model.batch import Column
from sandq.model.batch_format import stored_bytes_of
from sandq.model.caller import Caller
from sandq.model.errors import (
    InvalidRequest,
    NotLeader,
    Overloaded,
    Unavailable,
    UnknownPartition,
    UnknownTopic,
)
from sandq.model.limits import Limits
from sandq.model.names import RANKED, check_name
from sandq.model.outbox import RESERVED_PRODUCERS, is_reserved
from sandq.model.sequence import number_of
from sandq.model.times import format_duration
from sandq.model.topic_limits import TopicLimits, limits_of
from sandq.partition import commands as c
from sandq.partition.leasing.lease_reclaim import check_newest, fenced
from sandq.partition.produce_validation import Checked, check_batch
from sandq.protocol.requests import Ack, AckThen, Extend, Lease, Nack, NackItem, Produce, Subscribe

log = structlog.get_logger("sandq.broker")
T = TypeVar("T")

LEASE_MS_RANGE = (1_000, 43_200_000)
COUNT_PRODUCERS_S = 1.0
ITEM_BYTES = 256
"""What one item, or range, of an ack takes until it is applied, about ..."""
SETTLED_WORK: Final = 4
"""... and to apply it costs so many times what bytes of a batch cost: an entry has 1,024 of them."""
REQUEST_BYTES = 64
"""Roughly what a request takes until it is answered, beside what it brings."""
ROW_WORK: Final = 64
"""Cost to apply a message that has a row of its own, beside its bytes, in bytes of a batch that cost the same."""

LISTS_AT_ONCE: Final = 4
"""Lists of groups that are made at once, for all clients: each may be 12 MB."""


_WaitersKey = tuple[str, str, tuple[int, ...]]
"""Topic, group, and the partitions that are wanted; (): all."""


class Broker:
    def __init__(
        self,
        *,
        node_log: NodeLog,
        runner: Runner,
        clock: GuardedClock,
        timers: Timers,
        limits: Limits,
        stats: NodeStats,
        links: PeerLinks,
        routes: Routes,
        catalog: Catalog,
        reconciler: Reconciler,
        administration: Administration,
        outbox: OutboxSender,
        log_reads: LogReads,
        nursery: trio.Nursery,
    ) -> None:
        """`nursery` outlives every connection."""
        self.node_log = node_log
        self.clock = clock
        self.limits = limits
        self.stats = stats
        self.links = links
        self.routes = routes
        self.catalog = catalog
        self.reconciler = reconciler
        self.administration = administration
        self.outbox = outbox
        self.reads = LinearizableReads(runner, nursery)
        self.kv_watches = KvWatches(runner, nursery)
        self.schedule_outlooks = ScheduleOutlooks(self.reads)
        self.backups = Backups(catalog, Exports(node_log, runner, nursery), log_reads)
        self._runner = runner
        self.is_busy, self.drain = runner.is_busy, runner.drain
        self._timers = timers
        self._checking = trio.CapacityLimiter(1)
        self.planning = trio.CapacityLimiter(1)
        """Of threads that find out for clients when schedules recur: each would have its turns beside the loop."""
        self.listing = trio.Semaphore(LISTS_AT_ONCE)
        """Of those who list groups, whose answers may be large and are counted once they are made."""
        self._openings = GroupOpenings(limits.groups, node_log)
        self._waiters: dict[_WaitersKey, GroupWaiters] = {}
        """Of LEASE requests."""
        self._producers_counted_s = -math.inf
        """When it was looked last whether there are too many ..."""
        self._producers_full = False
        """... and whether there were."""

    # -- starting -------------------------------------------------------------------------------------------------

    async def start(self, metadata: RaftGroup) -> None:
        """Open what metadata places here."""
        if metadata.group.is_only_voter:
            await self.catalog.until_ready([metadata])
        await self.reconciler.start(metadata)

    @property
    def metadata_host(self) -> RaftGroup:
        """The local replica of the metadata group; KeyError before this node takes part in a cluster."""
        return self.node_log.metadata

    @property
    def metadata(self) -> MetadataView:
        view: MetadataView = self.metadata_host.status
        return view

    def topics(self) -> list[OpenTopic]:
        return list(self.catalog.topics.values())

    def led(self, topic: str) -> Sequence[PartitionLeader]:
        """The partitions of a topic that this node leads. Raises UnknownTopic, NotLeader when there are none."""
        led = self.catalog.led(topic)
        if not led:
            opened = self.catalog.topic(topic)
            shut = [leader.raft_group.shut for leader in opened.partitions.values() if leader.raft_group.is_shut_leader]
            if shut and shut[0] is not None:
                raise Unavailable(f"topic {topic!r}: {shut[0].reason}")
            hints = (self.catalog.leader(opened, partition) for partition in range(len(opened.record.partitions)))
            leader = next((node for node in hints if node is not None and node != self.node_log.node_id), None)
            hint = {"node_id": leader} if leader is not None else {}
            raise NotLeader(f"this node leads no partition of topic {topic!r} (yet)", **hint)
        return led

    def _led_of(self, request: Subscribe | Lease) -> Sequence[PartitionLeader]:
        """The partitions led here that a consumer wants. Raises as `led`, and UnknownPartition."""
        if request.partitions is None:
            return self.led(request.topic)
        there = len(self.catalog.topic(request.topic).record.partitions)
        for partition in request.partitions:
            if partition >= there:
                raise UnknownPartition(
                    f"topic {request.topic!r} has no partition {partition}: it has {there}, counted from 0",
                    topic=request.topic,
                    partition=partition,
                )
        led = [leader for leader in self.catalog.led(request.topic) if leader.partition in request.partitions]
        if not led:
            asked = ", ".join(map(str, request.partitions[:10]))
            raise NotLeader(f"this node leads none of partitions {asked} of topic {request.topic!r} (now)")
        return led

    # -- messages -------------------------------------------------------------------------------------------------

    def produce(
        self, request: Produce, caller: Caller, done: Done, *, requests: int = 1, checked: Checked | None = None
    ) -> None:
        """`done` gets (base, count), or `Stored`, once the batch is stored. `requests`: that wait for its answer.
        `checked`: what `check_large` found."""
        batch = request.batch
        if is_reserved(request.producer_id):
            raise InvalidRequest(
                f"producer id {request.producer_id} is that of a partition: those of clients are below "
                f"{RESERVED_PRODUCERS}"
            )
        leader = self.catalog.partition(request.topic, request.partition)
        messages, split = checked if checked is not None else self._checks(request, leader)()
        if request.producer_id and number_of(request.sequence) == 1:
            self._check_producers()
        command = c.Append(batch, request.producer_id, request.epoch, request.sequence, request.on_conflict, split)
        size = stored_bytes_of(batch) + REQUEST_BYTES * requests
        # A message that has a row of its own costs as much as so many bytes, even if it is empty.
        work = size + (ROW_WORK * messages if split else 0)
        leader.raft_group.submit(command, done, size=size, work=work, messages=messages, line=caller.line)

    async def check_large(self, request: Produce) -> Checked:
        """Check a batch that takes long to check, one at a time, in a thread. Raises InvalidRequest, TooLarge."""
        leader = self.catalog.partition(request.topic, request.partition)
        return await trio.to_thread.run_sync(self._checks(request, leader), limiter=self._checking)

    def _checks(self, request: Produce, leader: PartitionLeader) -> Callable[[], Checked]:
        """What checks a batch, on any thread."""
        topic = self.catalog.topics[request.topic]
        where, own = topic.targets[request.partition], limits_of(request.topic, topic.record.settings)
        return partial(check_batch, request.batch, self.clock.now_ms(), self.limits, where, own)

    def _check_producers(self) -> None:
        """Raises Overloaded for the first batch of a producer while too many are known here."""
        now_s = trio.current_time()
        if now_s >= self._producers_counted_s + COUNT_PRODUCERS_S:
            self._producers_counted_s = now_s
            producers = self.node_log.producers
            self._producers_full = producers.bytes >= producers.share_bytes
        if self._producers_full:
            raise Overloaded(
                "more producers wrote here within a week than limits.memory_bytes has room for; try again later"
            )

    def settle(self, request: Ack | Nack | Extend, caller: Caller, done: Done) -> None:
        """Ack, nack or extend leases. A lease of a topic that is no more is lost."""
        host = self.catalog.of_group(request.group_number, request.partition).raft_group
        topic = self.catalog.view.partition_of_group.get(request.group_number, ("", 0))[0]
        items: Any = request.items
        if isinstance(request, Extend):
            own = self.limits_of(topic)
            for item in items:
                _check_lease(item[1], own)
        if isinstance(request, Nack):
            items = with_columns(request, self.limits, lambda: self.check_ranked(topic))
        command = _SETTLING[type(request)](items)
        size = _size_of(command)
        if isinstance(command, c.Nack):
            submit_in_parts(host, command, done, size=size, work=SETTLED_WORK * size, line=caller.line)
        else:
            host.submit(command, done, size=size, work=SETTLED_WORK * size, line=caller.line)

    def ack_then(self, request: AckThen, caller: Caller, done: Done) -> None:
        """Ack messages and send others. `done` gets what was lost, as of an ack of one item. Raises what refuses one of
        the others: then nothing is acked."""
        leader = self.catalog.of_group(request.group_number, request.partition)
        leader.raft_group.check_ready()
        command, size = sending_acks.command_of(request, self.catalog, self.clock.now_ms(), self.limits)
        messages = len(command.messages)
        leader.raft_group.submit(
            command, done, size=size, work=SETTLED_WORK * size, messages=messages, line=caller.line
        )

    async def groups_of_leases(self, group: int, partition: int, tokens: Sequence[int]) -> dict[int, str]:
        """The consumer groups that leases of a partition are of, by token; of those that are not there nothing. Raises
        NotLeader, Unavailable."""
        host = self.catalog.of_group(group, partition).raft_group
        host.check_ready()
        replica = host.replica
        assert isinstance(replica, PartitionReplica)
        return await self._runner.ask(partial(replica.groups_of_leases, tokens), group=group, patient=False)

    def limits_of(self, topic: str) -> TopicLimits | None:
        """The limits of a topic's own; None: it has none, or is not there."""
        opened = self.catalog.topics.get(topic)
        return None if opened is None else limits_of(topic, opened.record.settings)

    def check_ranked(self, topic: str) -> None:
        """Raise InvalidRequest, unless messages of a topic have priorities."""
        kind = self.catalog.topic(topic).record.kind
        if kind not in RANKED:
            raise InvalidRequest(
                f"topic {topic!r} is a {kind} topic: only messages of {' and '.join(RANKED)} topics have priorities",
                topic=topic,
            )

    # -- subscriptions --------------------------------------------------------------------------------------------

    async def subscribe(
        self,
        request: Subscribe,
        caller: Caller,
        receiver: DeliveryReceiver,
    ) -> tuple[Subscription, list[int]]:
        """Opens the group where it is new, ends what an earlier process of this consumer has, and takes over its
        leases, pushes leases of this consumer that it does not know of, then takes part.

        Returns the subscription and the partitions led here. Raises UnknownTopic, InvalidRequest, NotLeader,
        ConsumerFenced, Conflict.
        """
        topic = self.catalog.topic(request.topic)
        check_name("group", request.group)
        if request.epoch is not None:
            check_epoch(request.epoch, self.clock.now_ms())
        leaders = self._led_of(request)
        lease_ms = self._lease_ms(topic, request.lease_ms)
        epoch = request.epoch or 0
        subscription = Subscription(
            group=request.group,
            consumer=request.consumer_id,
            credit=request.credit,
            lease_ms=lease_ms,
            receiver=receiver,
            epoch=epoch,
            handlers=request.handlers or 0,
            address=caller.address,
            since_ms=self.clock.now_ms(),
        )
        await self._openings.open(request.topic, leaders, request.group, request.start)
        known = await known_to(request)
        await read_all([leader.raft_group for leader in leaders])
        self._fence(leaders, request)
        if epoch:
            look = partial(reclaimable, leaders, request, epoch)
            stale = await self._runner.ask(look, group=leaders[0].raft_group.number, patient=False)
            await reclaim(stale, c.Reclaim(request.group, request.consumer_id, epoch, lease_ms))
        lost_pushes = await self._lost_pushes(leaders, request, known)
        if any(leader.closed for leader in leaders):
            raise UnknownTopic(f"topic {request.topic!r} was deleted", topic=request.topic)
        if leaders != self._led_of(request):
            # Who subscribes to what is led here now gets what was leased to it there, too.
            raise NotLeader(f"partitions of topic {request.topic!r} were moved meanwhile; subscribe again")
        if self._fence(leaders, request):
            raise Unavailable(f"consumer {request.consumer_id!r} subscribed twice at a time; subscribe again")
        for leader, lost_push in lost_pushes:
            subscription.credit -= lost_push.count
            leader.push(subscription, lost_push)
        for leader in leaders:
            leader.attach(subscription)
        return subscription, sorted(leader.partition for leader in leaders)

    def _fence(self, leaders: Sequence[PartitionLeader], request: Subscribe) -> bool:
        """End the subscription of an earlier process of this consumer, wherever it takes part here. Whether there was
        one. Raises ConsumerFenced when there is one of a later process."""
        epoch, found = request.epoch or 0, False
        for leader in leaders:
            other = leader.subscription_of(request.group, request.consumer_id)
            if other is None or other.closed:
                continue
            check_newest(request.group, request.consumer_id, epoch, other.epoch)
            if other.epoch < epoch:
                self.detach(request.topic, other)
                other.fence(fenced(request.group, request.consumer_id, epoch))
                found = True
        return found

    async def _lost_pushes(
        self, leaders: Sequence[PartitionLeader], request: Subscribe, known: Known
    ) -> list[tuple[PartitionLeader, Delivery]]:
        """What a consumer was leased and does not know of, in these partitions, whose state is known by now."""
        found: list[tuple[PartitionLeader, Delivery]] = []
        left = self.limits.in_flight_bytes_per_connection
        while leaders and left > 0:
            # In the lane of the first: that one at least is not half way through an entry.
            look = partial(held_by, leaders, request, known, left)
            more, leaders = await self._runner.ask(look, group=leaders[0].raft_group.number, patient=False)
            found += more
            left -= sum(size_of(held) for _, held in more)
        return found

    async def take(self, request: Lease, caller: Caller, congested: Callable[[], bool]) -> list[Delivery]:
        """Lease what is due, once, without a subscription, to be sent at once. Raises UnknownTopic, InvalidRequest,
        NotLeader.

        Whoever is cancelled meanwhile has leased nothing: it is given back.
        """
        topic = self.catalog.topic(request.topic)
        check_name("group", request.group)
        lease_ms, free_since_ms = self._lease_ms(topic, request.lease_ms), self.clock.now_ms()
        leaders = self._led_of(request)
        waiters = self._waiters_of(request)
        lease_once = LeaseOnce(request, caller, leaders, waiters, lease_ms, self.clock, self._timers, congested)
        opens = partial(self._openings.open, request.topic, group=request.group, start=request.start)
        try:
            with waiters.joined():
                await waiters.know(leaders, opens)
                if leaders != self._led_of(request):
                    raise NotLeader(f"partitions of topic {request.topic!r} were moved meanwhile; ask again")
                taken = await lease_once.run()
            # Cancelled when the answer had just come: nobody takes it.
            await trio.lowlevel.checkpoint_if_cancelled()
        except BaseException:
            release(lease_once.asked, request)
            raise
        finally:
            self._forget(request, waiters)
        for leader, delivery in taken:
            leader.stats.delivered(
                delivery, self.clock.now_s(), None if leader.is_held(request.group) else free_since_ms
            )
        return [delivery for _, delivery in taken]

    def _waiters_of(self, request: Lease) -> GroupWaiters:
        key = _waiters_key(request)
        waiters = self._waiters.get(key)
        if waiters is None or waiters.error is not None:
            waiters = GroupWaiters(request.topic, request.group, self.clock, self._timers)
            self._waiters[key] = waiters
        return waiters

    def _forget(self, request: Lease, waiters: GroupWaiters) -> None:
        """Unless others are there, or new ones have begun anew."""
        key = _waiters_key(request)
        if not waiters.in_use and self._waiters.get(key) is waiters:
            del self._waiters[key]

    def give_back(self, request: Lease, partitions: Iterable[int]) -> None:
        """Nobody is there any more to get what was leased in these partitions."""
        opened = self.catalog.topics.get(request.topic)
        if opened is not None:
            release([opened.partitions[number] for number in partitions if number in opened.partitions], request)

    def _lease_ms(self, topic: OpenTopic, asked_ms: int | None) -> int:
        lease_ms: int = asked_ms if asked_ms is not None else topic.record.settings["lease_ms"]
        _check_lease(lease_ms, limits_of(topic.record.name, topic.record.settings))
        return lease_ms

    def add_credit(self, subscription: Subscription, more: int) -> None:
        subscription.credit = min(subscription.credit + more, self.limits.credit_max)
        subscription.notify_room()

    def detach(self, topic: str, subscription: Subscription) -> list[PartitionLeader]:
        """The connection is gone: the leases run on. Returns where the subscription took part."""
        subscription.closed = True
        opened = self.catalog.topics.get(topic)
        return [d for d in opened.partitions.values() if d.detach(subscription)] if opened else []

    async def unsubscribe(self, topic: str, subscription: Subscription) -> None:
        """The consumer leaves cleanly: its leases are given back at once."""
        release = c.Release(subscription.group, subscription.consumer, subscription.epoch)
        await call_all([(leader.raft_group, release) for leader in self.detach(topic, subscription)])

    # -- looking --------------------------------------------------------------------------------------------------

    async def ask(self, question: Callable[[], T]) -> T:
        """Run on the thread that owns the state of all partitions. Raises Unavailable while that stands still."""
        return await self._runner.ask(question, patient=False)


def _check_lease(lease_ms: int, own: TopicLimits | None) -> None:
    """Raises InvalidRequest for a lease that is too short or too long."""
    low, high = LEASE_MS_RANGE
    if not low <= lease_ms <= high:
        raise InvalidRequest(f"a lease of {lease_ms} ms; {low} to {high} are allowed")
    if own is not None and own.lease_ms is not None and lease_ms > own.lease_ms:
        raise InvalidRequest(
            f"a lease of {format_duration(lease_ms)}: topic {own.topic!r} allows {format_duration(own.lease_ms)} "
            "(max_lease)",
            limit="max_lease",
            maximum=own.lease_ms,
            topic=own.topic,
        )


def _waiters_key(request: Lease) -> _WaitersKey:
    """Requests for other partitions wait apart: nobody is woken by what is not for it."""
    return request.topic, request.group, tuple(sorted(request.partitions or ()))


_SETTLING: Mapping[type, Callable[[Any], c.Ack | c.Nack | c.Extend]] = {Ack: c.Ack, Nack: c.Nack, Extend: c.Extend}


def _size_of(command: c.Ack | c.Nack | c.Extend) -> int:
    """Roughly what a command takes until it is applied, in bytes."""
    size = 64 + ITEM_BYTES * len(command.items)
    if isinstance(command, c.Nack):
        changes = [NackItem(*item).changes or {} for item in command.items]
        size += sum([len(each.get(Column.HEADERS, b"")) for each in changes])
    which = 2 if isinstance(command, c.Extend) else 1
    items: Sequence[Sequence[Any]] = command.items
    for ranges in [item[which] for item in items if len(item) > which and isinstance(item[which], list)]:
        size += sum([ITEM_BYTES + (len(extent) if isinstance(extent, bytes) else 0) for _, extent in ranges])
    return size
