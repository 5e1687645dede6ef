"""Simulate a single node with a memory disk, memory stores, virtual time, and crashes at any operation.

One `random.Random(seed)` determines everything, so a seed reproduces its world. The oracle keeps acknowledged messages
outside of the node, and compares every delivery and every answer with them."""

from __future__ import annotations

import random
from collections.abc import Callable
from itertools import count
from typing import Any

from sandq.broker.leader.partition_leader import PartitionLeader
from sandq.broker.leader.subscription import Subscription
from sandq.broker.replication.node_log import NodeLog
from sandq.broker.replication.raft_group import RaftGroup
from sandq.broker.replication.replica import Delivery, PartitionReplica
from sandq.metadata import commands as m
from sandq.model import offsets
from sandq.model.batch import Column, encode
from sandq.model.errors import SandqError, StorageFailed
from sandq.model.key_limits import key_limit
from sandq.model.limits import Limits
from sandq.model.settings import parse_settings
from sandq.partition import commands as c
from sandq.raft import Members
from sandq.storage.files import Files
from sandq.storage.memory_files import Crashed, MemoryFiles
from sandq.storage.stores import MemoryStores
from tests.support.nodes.fake_receiver import FakeReceiver
from tests.support.nodes.next_level import NEXT
from tests.support.registered import register_node
from tests.support.simulation.any_window import AnyWindow
from tests.support.simulation.moments import Moments
from tests.support.simulation.oracle import GROUPS, Held, Oracle, Sent
from tests.support.simulation.owner import Owner
from tests.support.simulation.repeats import Repeater
from tests.support.simulation.stepped import Stepped, VirtualClock
from tests.support.storage.faulty_files import FaultyFiles, Plan

CONSUMERS = ("c1", "c2")
LEASE_MS = 1000
RAISE_CHANCE = 0.002
"""Probability per step that the cluster reaches the next feature level."""


class Node(Stepped):
    """One life of a node: it begins with a start from the contents of the disk, and ends with a crash."""

    def __init__(self, world: World) -> None:
        super().__init__(world.rng, world.clock)
        self.world = world
        self.oracle = world.oracle
        self.clock = world.clock
        self.held: list[Held] = []
        self.node_log = NodeLog(
            world.disk,
            world.stores,
            node_id="n1",
            now_ms=world.clock.now_ms,
            publish=self.published.append,
            limits=Limits(),
            segment_bytes=world.segment_bytes,
            levels=NEXT,
        )
        self.metadata = self.node_log.open_metadata()
        self.host = self._open_topic()
        window = AnyWindow(self.timers, ahead_ms=5)
        self.node_log.group_commit.before_proposals = lambda: window.before_proposals(self.clock.now_ms())
        self.delivery = PartitionLeader(
            raft_group=self.host,
            partition=0,
            clock=world.clock,  # type: ignore[arg-type]
            timers=self.timers,  # type: ignore[arg-type]
            window=window,
            cluster_level=lambda: self.metadata.status.feature_level,
            highest_level=NEXT.highest,
        )
        self.owner = Owner(self)
        for group, seeks in self.oracle.seeks.items():
            for _ in range(seeks):
                self.oracle.sought(group)  # seeks before the crash are finished, with or without effect
        self.subscriptions: dict[tuple[str, str], Subscription] = {}
        for group in GROUPS:
            for consumer in CONSUMERS:
                self._subscribe(group, consumer)

    def _open_topic(self) -> RaftGroup:
        self._until(lambda: self.metadata.ready)
        if "t" not in self.metadata.status.topics:
            settings = parse_settings(self.world.settings).record()
            self._call(self.metadata, register_node("n1", "store", {}, highest_level=NEXT.highest))
            self._call(self.metadata, m.CreateTopic("t", "timer", 1, [["n1"]], settings))
        topic = self.metadata.status.topics["t"]
        self.node_log.install([(topic.partitions[0].group, "n1#1", Members(topic.partitions[0].members))])
        host = self.node_log.open_partition(topic, 0)
        self._until(lambda: host.ready)
        return host

    def _subscribe(self, group: str, consumer: str) -> None:
        self._call(self.host, c.OpenGroup(group, "earliest"))
        # The node pushes messages that the consumer held before the crash again, with the same token.
        lost_pushes = self.replica.held_by(group, consumer, set())
        subscription = self._attach(group, consumer)
        for delivery in lost_pushes:
            self.delivery.push(subscription, delivery)

    def _attach(self, group: str, consumer: str) -> Subscription:
        def push(delivery: Delivery) -> None:
            self.held.append(Held(group, delivery.token, self.oracle.delivered(group, delivery)))

        subscription = Subscription(
            group=group,
            consumer=consumer,
            credit=20,
            lease_ms=LEASE_MS,
            receiver=FakeReceiver(push),
        )
        self.subscriptions[group, consumer] = subscription
        self.delivery.attach(subscription)
        return subscription

    @property
    def replica(self) -> PartitionReplica:
        replica = self.host.replica
        assert isinstance(replica, PartitionReplica)
        return replica

    # -- steps ----------------------------------------------------------------------------------------------------

    def _call(self, host: RaftGroup, command: Any) -> Any:
        answers: list[Any] = []
        host.submit(command, answers.append)
        self._until(lambda: bool(answers))
        assert not isinstance(answers[0], SandqError), answers[0]
        return answers[0]

    def _until(self, done: Callable[[], bool]) -> None:
        for _ in range(200):
            if done():
                return
            self.drive()
        raise AssertionError("the node makes no progress")

    # -- clients --------------------------------------------------------------------------------------------------

    def produce(self) -> None:
        rng, now_ms = self.rng, self.clock.ms
        sent = [Sent(b"m%d" % next(self.world.numbers), now_ms) for _ in range(rng.choice((1, 1, 2, 5, 30)))]
        columns: dict[int, list[Any]] = {Column.VALUE: [s.payload for s in sent]}
        relative = rng.random() < 0.3
        delays: list[int] = []
        if rng.random() < 0.6:
            delays = [rng.choice((0, 0, 1, 3, 7, 50, 400, 3000)) for _ in sent]
        one_ms = self.world.moments.delay_ms() if self.world.rises else None
        if one_ms is not None:
            delays = [one_ms] * len(sent)
        if delays:
            columns[Column.DELIVER_MS] = delays if relative else [now_ms + delay for delay in delays]
            for message, delay in zip(sent, delays, strict=True):
                message.not_before_ms = now_ms + delay
        else:
            relative = False
        split = self.owner.add_columns(sent, columns)
        on_conflict = rng.choice((c.REJECT, c.REPLACE, c.IGNORE))
        self.oracle.sent.update((s.payload, s) for s in sent)
        batch = encode(columns, relative=relative)
        if self.world.repeater.takes(on_conflict):
            self.world.repeater.produce(self, sent, batch, on_conflict, split)
            return
        if on_conflict == c.REPLACE:
            for message in sent:
                self.owner.may_replace(message)

        def done(result: Any) -> None:
            if isinstance(result, StorageFailed):
                return  # it may be stored or not
            assert not isinstance(result, SandqError), result
            self.owner.stored(sent, result, on_conflict)

        self.host.submit(c.Append(batch, on_conflict=on_conflict, split=split), done, messages=len(sent))

    def settle(self) -> None:
        if not self.held:
            return
        rng = self.rng
        held = self.held.pop(rng.randrange(len(self.held)))
        chosen = held.messages if rng.random() < 0.5 else rng.sample(held.messages, rng.randint(1, len(held.messages)))
        kind = rng.random()
        if kind < 0.75:
            self._ack(held, chosen)
        elif kind < 0.9:
            for _, payload in chosen:
                self.oracle.holders.pop((held.group, payload), None)
            what = [[offset, 1] for offset, _ in chosen]
            self.host.submit(c.Nack([(held.token, what, rng.choice((None, 0, 200)), "no")]), lambda result: None)
        else:
            self._extend(held)
            self.held.append(held)
            return
        rest = [message for message in held.messages if message not in chosen]
        if rest and rng.random() < 0.7:
            self.held.append(Held(held.group, held.token, rest))

    def _ack(self, held: Held, chosen: list[tuple[bytes, bytes]]) -> None:
        what: Any = [[offset, self.rng.choice((1, b"\x01"))] for offset, _ in chosen]
        again = self.rng.random() < 0.2

        asked = {(payload, held.token) for _, payload in chosen}
        self.oracle.unsure[held.group] |= asked

        def done(result: Any) -> None:
            if isinstance(result, StorageFailed):
                return  # it may be acked or not
            assert not isinstance(result, SandqError), result
            self.oracle.unsure[held.group] -= asked
            lost = result[0]
            if lost == []:
                return
            gone = {offset for base, length in lost or () for offset in offsets.run(base, length)}
            for offset, payload in chosen:
                if offset not in gone:
                    self.oracle.confirm(held.group, payload)
                    self.oracle.holders.pop((held.group, payload), None)
            if again and lost is None:
                self.host.submit(c.Ack([(held.token, what)]), repeated)

        def repeated(result: Any) -> None:
            if not isinstance(result, StorageFailed):
                assert result == [None], "a repeated ack with the same token gets the first answer"

        self.host.submit(c.Ack([(held.token, what)]), done)

    def _extend(self, held: Held) -> None:
        def done(result: Any) -> None:
            if not isinstance(result, StorageFailed) and result[0] is not None:
                for _, payload in held.messages:
                    holder = self.oracle.holders.get((held.group, payload))
                    if holder is not None and holder[0] == held.token:
                        deadline_ms = max(holder[1], result[0])
                        self.oracle.holders[held.group, payload] = (held.token, deadline_ms, holder[2])

        self.host.submit(c.Extend([(held.token, LEASE_MS)]), done)

    def credit(self) -> None:
        for subscription in self.subscriptions.values():
            subscription.credit = 20
            subscription.notify_credit()

    def release(self) -> None:
        """Let a consumer unsubscribe and subscribe again."""
        group, consumer = self.rng.choice(GROUPS), self.rng.choice(CONSUMERS)
        subscription = self.subscriptions[group, consumer]
        subscription.closed = True
        self.delivery.detach(subscription)
        for key, holder in list(self.oracle.holders.items()):
            if key[0] == group and holder[2] == consumer:
                del self.oracle.holders[key]
        self.host.submit(c.Release(group, consumer), lambda result: None)
        self._attach(group, consumer)

    def raise_level(self) -> None:
        """Raise the feature level: first as the controller does, then as the reconciler does."""
        self.metadata.submit(m.RaiseFeatureLevel(NEXT.highest), lambda result: self.delivery.raise_level())

    def advance(self) -> None:
        self.clock.ms += self.rng.choice((0, 1, 1, 2, 5, 40, 700))
        self.timers.fire()


class World:
    """The lives of one node, and the knowledge of its clients, which outlive it."""

    def __init__(self, seed: int, *, rises: bool = True) -> None:
        """`rises`: whether the cluster reaches the next feature level in some life.

        If not, clients send no request that needs that level."""
        self.rng = random.Random(seed)
        self._level_rng = random.Random(f"levels of {seed}")
        self._limit_rng = random.Random(f"limits of {seed}")
        self._precision = random.Random(f"precision of {seed}").choice(("auto", "10ms", "100ms"))
        self.rises = rises
        self.moments = Moments(seed)
        self.files = MemoryFiles()
        self.disk: Files = self.files
        """Files of the node: `files`, or `FaultyFiles` on top of them."""
        self.stores = MemoryStores()
        self.clock = VirtualClock()
        self.settings = self._settings()
        limit = key_limit(parse_settings(self.settings).record())
        self.oracle = Oracle(self.clock, limit is not None, per_key=limit or 1)
        self.numbers = count()
        self.repeater = Repeater(seed)
        self.segment_bytes = self.rng.choice((4096, 16_384, 262_144))
        self.crashes = 0

    def _settings(self) -> dict[str, Any]:
        rng = self.rng
        ordering = rng.choice(("none", "none", "key"))
        per_key = self._limit_rng.choice((1, 2)) if ordering == "key" else 1
        return {
            "lease": "1s",
            "max_attempts": "none" if ordering == "key" else rng.choice(("none", 2)),
            "backoff": {"first": "100ms"},
            "ttl": "none" if ordering == "key" else rng.choice(("none", "none", "5s")),
            "dedup_window": rng.choice(("0s", "1s", "10m")),
            "retention": rng.choice(("0s", "0s", "1s")),
            "precision": self._precision,
            **({"ordering": ordering} if per_key == 1 else {"max_in_flight_per_key": per_key}),
        }

    def live(self, steps: int) -> None:
        """Run one life, which ends in a crash.

        The cause is a power loss or kill -9, within or between operations, or a disk that is full or fails to sync."""
        rng = self.rng
        plan = rng.choices(
            (Plan(), Plan(fail_sync_at=rng.randint(1, steps)), Plan(budget_bytes=rng.randint(0, 40_000))), (6, 2, 2)
        )[0]
        self.disk = FaultyFiles(self.files, plan)
        self.files.crash_after(rng.randint(1, steps), inside=rng.random() < 0.5)
        try:
            node = Node(self)
            self.repeater.repeat(node)
            for _ in range(4 * steps):
                self._act(node)
        except (Crashed, StorageFailed):
            pass
        self.crashes += 1
        self.files = self.files.crash(rng) if rng.random() < 0.7 else self.files.kill()
        self.stores = self.stores.crash(rng)
        self.clock.ms += rng.choice((0, 1, 100, 2000))

    def _act(self, node: Node) -> None:
        actions: list[tuple[Callable[[], None], int]] = [
            (node.tick, 6),
            (node.sync, 6),
            (node.apply, 6),
            (node.answer, 6),
            (node.produce, 3),
            (node.settle, 6),
            (node.advance, 3),
            (node.credit, 2),
            (node.step_checkpoint, 2),
            (node.release, 1),
            *node.owner.actions(),
        ]
        action = self.rng.choices([a for a, _ in actions], [w for _, w in actions])[0]
        action()
        self.repeater.act(node)
        if self.rises and self._level_rng.random() < RAISE_CHANCE:
            node.raise_level()

    def heal(self) -> Node:
        """Stop the crashes. Then all acknowledged messages must be delivered, acked and trimmed."""
        self.files.crash_after(1 << 60)
        self.disk = self.files
        node = Node(self)
        node.owner.drop_others()
        self.repeater.repeat(node)
        for _ in range(5000):
            node.owner.redrive_all()
            idle = not node.node_log.group_commit.has_work and not node.tasks and not node.published
            if idle and node.host.status.messages == 0 and not (self.oracle.missing() or self.repeater.unanswered):
                break
            node.credit()
            for _ in range(len(node.held)):
                held = node.held.pop()
                node._ack(held, held.messages)
            node.drive()
            if idle:
                self.repeater.repeat(node)
                at_ms = node.timers.next_ms()
                self.clock.ms = max(self.clock.ms + 1, at_ms if at_ms is not None else 0)
                node.timers.fire()
        return node
