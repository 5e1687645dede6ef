"""Simulate whole nodes with two topics. Messages of the first die or are acked with a send, and go to the second.

Each message arrives at the second topic once, with any leaders and any faults."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from typing import Any, ClassVar, Final

from sandq.broker.broker import Broker
from sandq.broker.replication.replica import Delivery
from sandq.model.batch import Column
from sandq.model.errors import SandqError
from sandq.model.nack_ends import DEAD
from sandq.model.names import PRIORITY, TIMER
from sandq.model.outbox import route
from sandq.partition import commands as c
from tests.support.simulation.membership_world import TOPIC, MembershipWorld
from tests.support.simulation.whole_node import Life

OTHER: Final = "u"


BESIDE: Final = b" with a dead letter"
"""Suffix of the payload of a message that is sent with a dead letter, whose payload is the rest."""


class OutboxWorld(MembershipWorld):
    topics: ClassVar[Mapping[str, str]] = {OTHER: PRIORITY, TOPIC: TIMER}

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.offsets: defaultdict[bytes, set[bytes]] = defaultdict(set)
        """Offsets of each payload in the second topic."""

    def _settings(self, kind: str) -> dict[str, Any]:
        forward = {"dead_letter_topic": OTHER} if kind == TIMER else {}
        return super()._settings(kind) | forward

    def _pushed(self, life: Life, broker: Broker, topic: str, delivery: Delivery) -> None:
        if topic == OTHER:
            for offset, payload in self._messages(delivery):
                self.sent.setdefault(payload, self.sent[payload.removesuffix(BESIDE)])
                self.offsets[payload].add(offset)
                if len(self.offsets[payload]) > 1:
                    self.violations.append(f"{payload!r} was stored {len(self.offsets[payload])} times")
            super()._pushed(life, broker, topic, delivery)
            return
        if life.is_lost or life.serving is None:
            return
        found = self._messages(delivery)
        subscription = self._subscriptions.get((life, topic))
        if subscription is not None:
            broker.add_credit(subscription, len(found))
        host = broker.node_log.hosts.get(delivery.group_number)
        other = broker.metadata.topics.get(OTHER)
        if host is None or other is None:
            return
        for offset, payload in found:
            what = [[offset, 1]]
            command: c.Command = c.Nack([(delivery.token, what, None, "boom", True, None, DEAD)])
            if self.rng.random() < 0.5:
                end = self.rng.choice(
                    (None, DEAD)
                )  # a dead message arrives as well as the message that is sent with it
                fields = {Column.VALUE.value: payload if end is None else payload + BESIDE}
                partition = route(fields, PRIORITY, other.initial_partitions, delivery.partition)
                command = c.AckThen(delivery.token, what, [(other.number, partition, None, False, fields)], end)
            self.counts[type(command).__name__] += 1
            try:
                host.submit(command, lambda result: None)
            except SandqError:
                return
