"""The broker: the topics and partitions on this node, and the operations that clients request on them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, Final, TypeVar

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
from sandq.broker.delivery.limit_pauses import LimitPauses
from sandq.broker.delivery.nack_changes import with_columns
from sandq.broker.delivery.outbox_sender import OutboxSender
from sandq.broker.delivery.pause_spreader import PauseSpreader
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
from sandq.model.logger import get_logger
from sandq.model.message_targets import PUSH_TARGETS
from sandq.model.names import RANKED, check_name, check_not_internal
from sandq.model.outbox import RESERVED_PRODUCERS, is_reserved
from sandq.model.pauses import KEY, consumer_pause_end_ms
from sandq.model.sequence import number_of
from sandq.model.times import format_duration
from sandq.model.topic_limits import TopicLimits
from sandq.partition import commands as c
from sandq.partition.leasing.lease_reclaim import check_newest, fenced
from sandq.partition.produce_validation import (
    MUCH_HEADERS_BYTES,
    MUCH_TARGETS_BYTES,
    Checked,
    check_batch,
    is_much,
)
from sandq.protocol.requests import Ack, AckThen, Extend, Lease, LeasePause, Nack, NackItem, Produce, Subscribe

log = get_logger("sandq.broker")
T = TypeVar("T")

LEASE_MS_RANGE = (1_000, 43_200_000)
COUNT_PRODUCERS_S = 1.0
"""Minimum time in s between two checks of the memory that known producers use."""
ITEM_BYTES = 256
"""Approximate memory in bytes that one item or range of an ack uses until the ack is applied."""
SETTLED_WORK: Final = 4
"""Units of work charged per byte of an ack, nack or extend command. Applying one byte of a batch costs one unit."""
REQUEST_BYTES = 64
"""Approximate memory in bytes that a pending request uses, in addition to its data."""
ROW_WORK: Final = 64
"""Units of work charged per single-message row, in addition to its bytes. Applying one byte of a batch costs one
unit."""

LISTS_AT_ONCE: Final = 4
"""Maximum number of lists of groups or consumers that are built at the same time, for all clients.

One list may have 12 MB."""


_WaitersKey = tuple[str, str, tuple[int, ...]]
"""(topic, group, requested partitions). If the tuple of partitions is empty, the request is for all partitions of the
topic."""


class Broker:
    """Executes the requests of clients for the topics on this node."""

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
        pauses: PauseSpreader,
        limit_pauses: LimitPauses,
        log_reads: LogReads,
        nursery: trio.Nursery,
    ) -> None:
        """`nursery`: runs the tasks of reads, watches and exports. It must outlive every connection."""
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
        self._pauses = pauses
        self.limit_pauses = limit_pauses
        self.reads = LinearizableReads(runner, nursery)
        self.kv_watches = KvWatches(runner, nursery)
        self.schedule_outlooks = ScheduleOutlooks(self.reads)
        self.backups = Backups(catalog, Exports(node_log, runner, nursery), log_reads)
        self._runner = runner
        self.is_busy, self.drain = runner.is_busy, runner.drain
        self._timers = timers
        self._checking = trio.CapacityLimiter(1)
        self.planning = trio.CapacityLimiter(1)
        """Limits the number of threads that plan schedules for clients. Each such thread competes with the event loop
        for the interpreter lock (GIL)."""
        self.listing = trio.Semaphore(LISTS_AT_ONCE)
        """Limits the number of lists of groups or consumers in progress. A list may be large, and is charged to the
        memory budget only when it is complete."""
        self._openings = GroupOpenings(limits.groups, node_log)
        self._waiters: dict[_WaitersKey, GroupWaiters] = {}
        """State shared by the LEASE requests for the same group and partitions."""
        self._producers_counted_s = -math.inf
        """Time in s of the last check of the memory that known producers use."""
        self._producers_full = False
        """True if the known producers used their whole share of the memory at the last check."""

    # -- starting -------------------------------------------------------------------------------------------------

    async def start(self, metadata: RaftGroup) -> None:
        """Open the replicas that metadata assigns to this node."""
        if metadata.group.is_only_voter:
            await self.catalog.until_ready([metadata])
        await self.reconciler.start(metadata)

    @property
    def metadata_host(self) -> RaftGroup:
        """The local replica of the metadata group. If this node takes part in no cluster yet, reading it raises
        KeyError."""
        return self.node_log.metadata

    @property
    def metadata(self) -> MetadataView:
        view: MetadataView = self.metadata_host.status
        return view

    def topics(self) -> list[OpenTopic]:
        return list(self.catalog.topics.values())

    def led(self, topic: str) -> Sequence[PartitionLeader]:
        """Return the partitions of a topic that this node leads.

        Raise UnknownTopic; NotLeader if this node leads none of the partitions; Unavailable if this node should lead a
        partition, but its replica is shut."""
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
        """Return those partitions of a consumer's request that this node leads.

        Raise the errors of `led`, and UnknownPartition."""
        if request.partitions is None:
            return self.led(request.topic)
        count = len(self.catalog.topic(request.topic).record.partitions)
        for partition in request.partitions:
            if partition >= count:
                raise UnknownPartition(
                    f"topic {request.topic!r} has no partition {partition}: it has {count}, counted from 0",
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
        """Store a batch. When it is stored, call `done` with (offset of the first message, number of messages), or with
        `Stored` if the messages were stored one by one. If it is not stored, call `done` with the SandqError.

        `requests`: number of requests that wait for the answer. `checked`: result of `check_large`; None to validate
        the batch here."""
        batch = request.batch
        if is_reserved(request.producer_id):
            raise InvalidRequest(
                f"producer id {request.producer_id} is reserved for a partition: producer ids of clients are "
                f"below {RESERVED_PRODUCERS}"
            )
        leader = self.catalog.partition(request.topic, request.partition)
        messages, split = checked if checked is not None else self._checks(request, caller)()
        if request.producer_id and number_of(request.sequence) == 1:
            self._check_producers()
        rule = request.on_conflict
        on_conflict, span_ms = (rule, None) if isinstance(rule, int) else rule
        command = c.Append(
            *(batch, request.producer_id, request.epoch, request.sequence),
            on_conflict=on_conflict,
            split=split,
            span_ms=span_ms,
        )
        size = stored_bytes_of(batch) + REQUEST_BYTES * requests
        # A single-message row has a minimum cost, even if the message is empty.
        work = size + (ROW_WORK * messages if split else 0)
        leader.raft_group.submit(command, done, size=size, work=work, messages=messages, line=caller.line)

    def is_large(self, request: Produce) -> bool:
        """Return whether validating a batch takes so long that `check_large` must do it."""
        topic = self.catalog.topics.get(request.topic)
        has_targets = topic is not None and topic.record.settings.get(PUSH_TARGETS)
        return is_much(request.batch, MUCH_TARGETS_BYTES if has_targets else MUCH_HEADERS_BYTES)

    async def check_large(self, request: Produce, caller: Caller) -> Checked:
        """Validate a large batch in a thread. Only one thread validates batches at a time. Raise InvalidRequest,
        TooLarge, Forbidden."""
        self.catalog.partition(request.topic, request.partition)
        return await trio.to_thread.run_sync(self._checks(request, caller), limiter=self._checking)

    def _checks(self, request: Produce, caller: Caller) -> Callable[[], Checked]:
        """Return a function that validates a batch. The function may run on any thread."""
        topic = self.catalog.topics[request.topic]
        check_not_internal(request.topic, "no messages can be sent to it")
        where, own = topic.targets[request.partition], self.catalog.limits_of(topic.record, caller.access)
        return partial(check_batch, request.batch, self.clock.now_ms(), self.limits, where, own)

    def _check_producers(self) -> None:
        """Raise Overloaded if the known producers use their whole share of the memory.

        Call this for the first batch of a producer."""
        now_s = trio.current_time()
        if now_s >= self._producers_counted_s + COUNT_PRODUCERS_S:
            self._producers_counted_s = now_s
            producers = self.node_log.producers
            self._producers_full = producers.bytes >= producers.share_bytes
        if self._producers_full:
            raise Overloaded(
                "more producers wrote here within a week than fit into limits.memory_bytes; try again later"
            )

    def settle(self, request: Ack | Nack | Extend, caller: Caller, done: Done) -> None:
        """Ack, nack or extend leases. If their topic was deleted, raise LeaseLost."""
        host = self.catalog.of_group(request.group_number, request.partition).raft_group
        topic = self.catalog.view.partition_of_group.get(request.group_number, ("", 0))[0]
        items: Any = request.items
        if isinstance(request, Extend):
            own = self.limits_of(topic, caller)
            for item in items:
                _check_lease(item[1], own)
        if isinstance(request, Nack):
            own = self.limits_of(topic, caller)
            items = with_columns(request, self.limits, own, lambda: self.check_ranked(topic))
        command = _SETTLING[type(request)](items)
        size = _size_of(command)
        if isinstance(command, c.Nack):
            # One log entry may do only a part of a nack that rewrites many stored bytes.
            submit_in_parts(host, command, done, size=size, work=SETTLED_WORK * size, line=caller.line)
        else:
            host.submit(command, done, size=size, work=SETTLED_WORK * size, line=caller.line)

    async def pause_by_lease(self, request: LeasePause, caller: Caller) -> list[int | None]:
        """Pause a part of the group that holds a lease: the group or a tenant in all partitions of the topic, a key in
        the partition of its message. Or pause the named limit of the group. Return the end of the pause, in ms; None if
        the lease was lost.

        Raise InvalidTime; InvalidRequest if another group holds the lease, or if partitions refuse the pause; TimedOut
        if the leaders of some partitions did not answer; LeaseLost if the topic was deleted."""
        leader = self.catalog.of_group(request.group_number, request.partition)
        ((token, offset, part, for_ms, group),) = request.items
        until_ms = consumer_pause_end_ms(for_ms, self.clock.now_ms())
        command = c.PauseByLease([(token, offset, part, until_ms, check_name("group", group))])
        size = 64 + ITEM_BYTES
        (paused,) = await leader.raft_group.call(command, caller.line, size=size, work=SETTLED_WORK * size)
        if paused is None:
            return [None]
        name, _ = self.catalog.view.partition_of_group.get(request.group_number, ("", 0))
        topic = self.catalog.topics.get(name)
        if paused.limit is not None:
            by = f"group {group} of topic {name}"
            return [await self.limit_pauses.pause(paused.limit, until_ms, by)]
        if part != KEY and topic is not None and len(topic.record.partitions) > 1:
            await self._pauses.spread(topic.record, c.PauseLonger(group, paused.tenant, until_ms))
        return [paused.until_ms]

    def ack_then(self, request: AckThen, caller: Caller, done: Done) -> None:
        """Ack messages and send other messages in one log entry; or nack a message, and send if it is dead.

        Call `done` with the same result as for an ack of one item. If a message to send is invalid, raise its error
        and ack nothing."""
        leader = self.catalog.of_group(request.group_number, request.partition)
        leader.raft_group.check_ready()
        limits = self.limits
        command, size = sending_acks.command_of(request, self.catalog, self.clock.now_ms(), limits, caller.access)
        messages = len(command.messages)
        leader.raft_group.submit(
            command, done, size=size, work=SETTLED_WORK * size, messages=messages, line=caller.line
        )

    async def groups_of_leases(self, group: int, partition: int, tokens: Sequence[int]) -> dict[int, str]:
        """Return the names of the consumer groups that hold the leases with these tokens, by token. Omit tokens without
        a lease.

        `group`: number of the partition's Raft group. Raise NotLeader, Unavailable."""
        host = self.catalog.of_group(group, partition).raft_group
        host.check_ready()
        replica = host.replica
        assert isinstance(replica, PartitionReplica)
        return await self._runner.ask(partial(replica.groups_of_leases, tokens), group=group, patient=False)

    def limits_of(self, topic: str, caller: Caller) -> TopicLimits | None:
        """Return the limits of a topic; None if the topic has no limits or does not exist."""
        opened = self.catalog.topics.get(topic)
        return None if opened is None else self.catalog.limits_of(opened.record, caller.access)

    def check_ranked(self, topic: str) -> None:
        """Raise InvalidRequest if the messages of a topic have no priorities."""
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
        """Subscribe a consumer. Return the subscription and the partitions that this node leads.

        1. Create the group if it does not exist.
        2. End the subscription of an earlier process of this consumer, and take over that process's leases.
        3. Push those leases of the consumer whose earlier push was lost.
        4. Attach the subscription to the partitions.

        Raise UnknownTopic, InvalidRequest, NotLeader, ConsumerFenced, Conflict."""
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
        # Bring the state up to date. Otherwise leases that an earlier leader granted could be missed.
        await read_all([leader.raft_group for leader in leaders])
        self._fence(leaders, request)
        if epoch:
            query = partial(reclaimable, leaders, request, epoch)
            stale = await self._runner.ask(query, group=leaders[0].raft_group.number, patient=False)
            await reclaim(stale, c.Reclaim(request.group, request.consumer_id, epoch, lease_ms))
        lost_pushes = await self._lost_pushes(leaders, request, known)
        if any(leader.closed for leader in leaders):
            raise UnknownTopic(f"topic {request.topic!r} was deleted", topic=request.topic)
        if leaders != self._led_of(request):
            # This node now leads different partitions, whose leases `lost_pushes` does not include.
            raise NotLeader(f"partitions of topic {request.topic!r} were moved meanwhile; subscribe again")
        # While this method waited, another process of this consumer may have subscribed.
        if self._fence(leaders, request):
            raise Unavailable(f"consumer {request.consumer_id!r} subscribed twice at the same time; subscribe again")
        for leader, lost_push in lost_pushes:
            subscription.credit -= lost_push.count
            leader.push(subscription, lost_push)
        for leader in leaders:
            leader.attach(subscription)
        return subscription, sorted(leader.partition for leader in leaders)

    def _fence(self, leaders: Sequence[PartitionLeader], request: Subscribe) -> bool:
        """End the subscriptions of earlier processes of this consumer to these partitions. Return True if any was
        ended.

        Raise ConsumerFenced if a later process has subscribed."""
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
        """Return the leases that the consumer holds but does not know, because their push was lost.

        Before the call, bring the state of the partitions up to date (`read_all`)."""
        found: list[tuple[PartitionLeader, Delivery]] = []
        left = self.limits.in_flight_bytes_per_connection
        while leaders and left > 0:
            # Run the query as a task of the first partition, so that it never sees a half-applied entry of this
            # partition.
            query = partial(held_by, leaders, request, known, left)
            more, leaders = await self._runner.ask(query, group=leaders[0].raft_group.number, patient=False)
            found += more
            left -= sum(size_of(held) for _, held in more)
        return found

    async def take(self, request: Lease, caller: Caller, congested: Callable[[], bool]) -> list[Delivery]:
        """Lease due messages once, without a subscription.

        Raise UnknownTopic, InvalidRequest, NotLeader. If the calling task is cancelled, give back the leased messages.
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
                await waiters.add(leaders, opens)
                if leaders != self._led_of(request):
                    raise NotLeader(f"partitions of topic {request.topic!r} were moved meanwhile; ask again")
                taken = await lease_once.run()
            # If the calling task was cancelled while the result arrived, no consumer uses the leases: raise here, and
            # release them below.
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
        """Return the state that LEASE requests for the same group and partitions share.

        Create a new state if there is none, or if opening its group has failed."""
        key = _waiters_key(request)
        waiters = self._waiters.get(key)
        if waiters is None or waiters.error is not None:
            waiters = GroupWaiters(request.topic, request.group, self.clock, self._timers)
            self._waiters[key] = waiters
        return waiters

    def _forget(self, request: Lease, waiters: GroupWaiters) -> None:
        """Delete the shared state if no request uses it any more. Keep a newer state that has replaced it."""
        key = _waiters_key(request)
        if not waiters.in_use and self._waiters.get(key) is waiters:
            del self._waiters[key]

    def give_back(self, request: Lease, partitions: Iterable[int]) -> None:
        """Give back the leases that an ended request holds in these partitions."""
        opened = self.catalog.topics.get(request.topic)
        if opened is not None:
            release([opened.partitions[number] for number in partitions if number in opened.partitions], request)

    def _lease_ms(self, topic: OpenTopic, asked_ms: int | None) -> int:
        """Return the duration of a lease in ms: the requested duration, or the topic's default. Raise
        InvalidRequest."""
        check_not_internal(topic.record.name, "it has no messages")
        lease_ms: int = asked_ms if asked_ms is not None else topic.record.settings["lease_ms"]
        _check_lease(lease_ms, self.catalog.limits_of(topic.record, None))
        return lease_ms

    def add_credit(self, subscription: Subscription, more: int) -> None:
        """Add credit to a subscription, up to the maximum. Notify the partitions, so that they lease more messages."""
        subscription.credit = min(subscription.credit + more, self.limits.credit_max)
        subscription.notify_credit()

    def detach(self, topic: str, subscription: Subscription) -> list[PartitionLeader]:
        """End a subscription whose connection is gone, and return its partitions. The leases stay until they expire."""
        subscription.closed = True
        opened = self.catalog.topics.get(topic)
        return [d for d in opened.partitions.values() if d.detach(subscription)] if opened else []

    async def unsubscribe(self, topic: str, subscription: Subscription) -> None:
        """End a subscription at the consumer's request, and give back its leases at once."""
        release = c.Release(subscription.group, subscription.consumer, subscription.epoch)
        await call_all([(leader.raft_group, release) for leader in self.detach(topic, subscription)])

    # -- queries --------------------------------------------------------------------------------------------------

    async def ask(self, question: Callable[[], T]) -> T:
        """Run a query on the thread that owns the state of all partitions. Raise Unavailable while that thread is
        stalled."""
        return await self._runner.ask(question, patient=False)


def _check_lease(lease_ms: int, own: TopicLimits | None) -> None:
    """Raise InvalidRequest if a lease is too short or too long."""
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
    """Return the key of the state that a request shares.

    Only requests for the same partitions share a state. Otherwise a message for one request would wake other requests
    in vain."""
    return request.topic, request.group, tuple(sorted(request.partitions or ()))


_Settling = c.Ack | c.Nack | c.Extend
_SETTLING: Mapping[type, Callable[[Any], _Settling]] = {
    Ack: c.Ack,
    Nack: c.Nack,
    Extend: c.Extend,
}


def _size_of(command: _Settling) -> int:
    """Return the approximate memory in bytes that a command uses until it is applied."""
    size = 64 + ITEM_BYTES * len(command.items)
    if isinstance(command, c.Nack):
        changes = [NackItem(*item).changes or {} for item in command.items]
        size += sum([len(each.get(Column.HEADERS, b"")) for each in changes])
    ranges_at = 2 if isinstance(command, c.Extend) else 1  # position of the ranges in an item
    items: Sequence[Sequence[Any]] = command.items
    with_ranges = [item for item in items if len(item) > ranges_at and isinstance(item[ranges_at], list)]
    for ranges in [item[ranges_at] for item in with_ranges]:
        size += sum([ITEM_BYTES + (len(extent) if isinstance(extent, bytes) else 0) for _, extent in ranges])
    return size
