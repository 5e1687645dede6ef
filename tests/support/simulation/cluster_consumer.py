"""Simulate a consumer of a cluster, which subscribes at a leader and settles the messages that it receives."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from sandq.broker.leader.subscription import Subscription
from sandq.broker.replication.applier import Ask
from sandq.broker.replication.replica import Delivery
from sandq.model import offsets
from sandq.model.errors import SandqError
from sandq.model.nack_ends import SNOOZE
from sandq.partition import commands as c
from tests.support.nodes.fake_receiver import FakeReceiver
from tests.support.simulation.cluster_node import ClusterNode
from tests.support.simulation.oracle import UNKNOWN, Held

if TYPE_CHECKING:
    from tests.support.simulation.cluster_clients import Clients

CONSUMERS = ("c1", "c2")
CREDIT = 20


@dataclass(eq=False)
class Connection:
    node: ClusterNode
    subscription: Subscription | None = None
    """Subscription at the leader. None until the consumer is attached."""


class Consumer:
    def __init__(self, clients: Clients, group: str, name: str) -> None:
        self.group, self.name = group, name
        self.held: list[Held] = []
        self.late = 0
        """Number of deliveries whose lease was over on arrival."""
        self._clients = clients
        self._rng = clients.rng
        self._oracle = clients.oracle
        self._settling: Counter[int] = Counter()
        """Number of unanswered settlements, by token."""
        self._leaving = False
        self._connection: Connection | None = None

    def act(self) -> None:
        for probability, action in (
            (0.2, self.connect),
            (0.2, self.add_credit),
            (0.3, self.settle),
            (self._clients.unrest, self.disconnect),
            (self._clients.leaving, self.leave),
        ):
            if self._rng.random() < probability:
                action()

    def finish(self) -> None:
        """Receive and ack all messages."""
        self.connect()
        self.add_credit()
        held, self.held = self.held, []
        for one in held:
            self.ack(one, one.messages)

    # -- subscribing ----------------------------------------------------------------------------------------------

    def disconnect(self) -> None:
        """Disconnect; the leases continue."""
        connection, self._connection = self._connection, None
        if connection is not None and connection.subscription is not None:
            connection.subscription.closed = True
            connection.node.delivery.detach(connection.subscription)

    def gone(self, node: ClusterNode) -> None:
        """Note that a node has ended."""
        if self._connection is not None and self._connection.node is node:
            self._connection = None

    def connect(self) -> None:
        """Subscribe as `Broker.subscribe` does, in steps."""
        node = self._clients.leader()
        if self._connection is not None or node is None or self._leaving:
            return
        connection = self._connection = Connection(node)
        if any(known.name == self.group for known in node.host.status.groups):
            self._ask(connection)
        else:
            node.call(c.OpenGroup(self.group, "earliest"), lambda result: self._opened(connection, result))

    def _opened(self, connection: Connection, result: Any) -> None:
        if isinstance(result, SandqError):
            self._ended(connection, result)
        else:
            self._ask(connection)

    def _ask(self, connection: Connection) -> None:
        known = {held.token for held in self.held} | self._settling.keys()
        replica = connection.node.replica

        def held_by() -> list[Delivery]:
            return list(replica.held_by(self.group, self.name, known))

        connection.node.tasks.append(Ask(held_by, lambda found: self._attach(connection, found)))

    def _attach(self, connection: Connection, lost_pushes: list[Delivery]) -> None:
        node = connection.node
        if connection is not self._connection:
            return
        if not node.host.ready:
            self._connection = None
            return
        push, ended = partial(self._pushed, connection), partial(self._ended, connection)
        subscription = Subscription(
            group=self.group,
            consumer=self.name,
            credit=CREDIT,
            lease_ms=self._clients.lease_ms,
            receiver=FakeReceiver(push, ended=ended),
        )
        connection.subscription = subscription
        for delivery in lost_pushes:
            subscription.credit -= delivery.count
            node.delivery.push(subscription, delivery)
        node.delivery.attach(subscription)

    def _ended(self, connection: Connection, error: SandqError) -> None:
        if connection is self._connection:
            self._connection = None

    def _pushed(self, connection: Connection, delivery: Delivery) -> None:
        if connection is not self._connection:
            return
        clock: Any = self._oracle.clock
        clock.node = connection.node
        if delivery.deadline_ms <= clock.true.ms + self._clients.margin_ms:
            self.late += 1
        else:
            self.held.append(Held(self.group, delivery.token, self._oracle.delivered(self.group, delivery)))
        clock.node = None

    def add_credit(self) -> None:
        if self._connection is not None and self._connection.subscription is not None:
            self._connection.subscription.credit = CREDIT
            self._connection.subscription.notify_credit()

    def leave(self) -> None:
        """Leave cleanly and give the leased messages back."""
        connection = self._connection
        if connection is None or connection.subscription is None:
            return
        self.disconnect()
        self.held.clear()
        for key, holder in list(self._oracle.holders.items()):
            if key[0] == self.group and holder[2] == self.name:
                del self._oracle.holders[key]

        def left(result: Any) -> None:
            self._leaving = False

        self._leaving = True
        connection.node.call(c.Release(self.group, self.name), left)

    # -- settling -------------------------------------------------------------------------------------------------

    def settle(self) -> None:
        if not self.held:
            return
        rng = self._rng
        held = self.held.pop(rng.randrange(len(self.held)))
        chosen = held.messages if rng.random() < 0.5 else rng.sample(held.messages, rng.randint(1, len(held.messages)))
        kind = rng.random()
        if kind < 0.8:
            self.ack(held, chosen)
        elif kind < 0.9:
            self._nack(held, chosen)
        else:
            self._extend(held)
            self.held.append(held)
            return
        rest = [message for message in held.messages if message not in chosen]
        if rest and rng.random() < 0.7:
            self.held.append(Held(held.group, held.token, rest))

    def ack(self, held: Held, chosen: list[tuple[bytes, bytes]]) -> None:
        what: Any = [[offset, 1] for offset, _ in chosen]
        asked = {(payload, held.token) for _, payload in chosen}
        self._oracle.unsure[self.group] |= asked

        def done(result: Any) -> None:
            self._settled(held.token)
            if isinstance(result, UNKNOWN):
                # The ack may be retried with the same token.
                self.held.append(Held(held.group, held.token, chosen))
                return
            assert not isinstance(result, SandqError), result
            self._oracle.unsure[self.group] -= asked
            lost = result[0]
            gone = {offset for base, length in lost or () for offset in offsets.run(base, length)}
            for offset, payload in chosen:
                if lost != [] and offset not in gone:
                    self._oracle.confirm(self.group, payload)
                    self._oracle.holders.pop((self.group, payload), None)

        self._settling[held.token] += 1
        self._clients.submit(c.Ack([(held.token, what)]), done)

    def _settled(self, token: int) -> None:
        self._settling[token] -= 1
        if not self._settling[token]:
            del self._settling[token]

    def _nack(self, held: Held, chosen: list[tuple[bytes, bytes]]) -> None:
        for _, payload in chosen:
            self._oracle.holders.pop((self.group, payload), None)
        item: tuple[Any, ...] = (
            held.token,
            [[offset, 1] for offset, _ in chosen],
            self._rng.choice((None, 0, 200)),
            "no",
        )
        if self._rng.random() < 0.3:
            item = (*item, True, None, SNOOZE)
        self._settling[held.token] += 1
        self._clients.submit(c.Nack([item]), lambda result: self._settled(held.token))

    def _extend(self, held: Held) -> None:
        def done(result: Any) -> None:
            if isinstance(result, UNKNOWN) or result[0] is None:
                return
            for _, payload in held.messages:
                holder = self._oracle.holders.get((self.group, payload))
                if holder is not None and holder[0] == held.token:
                    self._oracle.holders[self.group, payload] = (held.token, max(holder[1], result[0]), holder[2])

        self._clients.submit(c.Extend([(held.token, self._clients.lease_ms)]), done)
