"""Simulate an outage: consumers of a fair topic nack the messages of some tenants, because a service that they call is
down. The messages of the other tenants are acked."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from sandq.broker.replication.replica import Delivery
from sandq.metadata.records import Topic
from sandq.model.batch import Column, encode
from sandq.model.limits import FIXED
from sandq.model.names import FAIR
from sandq.model.settings import parse_settings
from sandq.partition import commands as c
from sandq.partition.groups import group as group_module
from sandq.partition.groups.group import Group
from tests.support.simulation.cluster_clients import Clients
from tests.support.simulation.cluster_consumer import Consumer
from tests.support.simulation.cluster_node import topic_of
from tests.support.simulation.cluster_world import DRIFT_MS, NAMES, ClusterWorld
from tests.support.simulation.oracle import GROUPS, UNKNOWN, Held, Sent, messages_of

HEALTHY, FAILING = (b"a", b"b"), (b"x", b"y.z")
MESSAGES_PER_S = 20
STEP_MS = 14.3
"""Average duration of a step, in ms."""


class FailingConsumer(Consumer):
    """Settles all messages that it holds in each step: it nacks those of failing tenants."""

    def settle(self) -> None:
        clients: Any = self._clients
        held, self.held = self.held, []
        for one in held:
            failed = [message for message in one.messages if clients.fails(message[1])]
            if failed:
                self._fail(one, failed)
            if passed := [message for message in one.messages if message not in failed]:
                self.ack(one, passed)

    def _fail(self, held: Held, failed: list[tuple[bytes, bytes]]) -> None:
        """Nack messages with the back-off of the topic."""
        for _, payload in failed:
            self._oracle.holders.pop((self.group, payload), None)
        self._settling[held.token] += 1
        item = (held.token, [[offset, 1] for offset, _ in failed], None, "down")
        self._clients.submit(c.Nack([item]), lambda result: self._settled(held.token))


class OutageClients(Clients):
    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.is_down = False
        """Whether the messages of failing tenants fail."""
        self.leaving = 0.0
        self.consumers = [FailingConsumer(self, group, "c1") for group in GROUPS]
        self.producers = []
        self.oracle.watch = self._delivered
        self.lateness_ms: list[int] = []
        """Time from the request to store a message of a healthy tenant to its first delivery."""
        self.nacks = 0
        self._sent_ms: dict[bytes, int] = {}

    def fails(self, payload: bytes) -> bool:
        failed = self.is_down and self.oracle.sent[payload].tenant in FAILING
        self.nacks += failed
        return failed

    def _delivered(self, group: str, delivery: Delivery) -> None:
        for _, payload in messages_of(delivery):
            if self.oracle.sent[payload].tenant in HEALTHY and (group, payload) not in self.oracle.seen:
                self.lateness_ms.append(self.clock.ms - self._sent_ms[payload])

    def act(self) -> None:
        for consumer in self.consumers:
            consumer.connect()
            consumer.add_credit()
            consumer.settle()
        if self.rng.random() < MESSAGES_PER_S * STEP_MS / 1000:
            self.produce()

    def produce(self) -> None:
        """Produce one message. If the answer is lost, the outcome is unknown."""
        sent = Sent(b"m%d" % next(self._payloads), self.clock.ms - self.margin_ms)
        sent.tenant = self.rng.choice((*HEALTHY, *FAILING))
        self.oracle.sent[sent.payload] = sent
        self._sent_ms[sent.payload] = self.clock.ms

        def done(result: Any) -> None:
            if not isinstance(result, UNKNOWN):
                self.owner.stored([sent], result, c.REJECT)

        columns: dict[int, list[Any]] = {Column.VALUE: [sent.payload], Column.TENANT: [sent.tenant]}
        self.submit(c.Append(encode(columns)), done, messages=1)


class OutageWorld(ClusterWorld):
    """`window`: number of ranges of waiting messages that a group holds in memory. `backoff_s`: time between two
    attempts. `has_faults`: whether nodes crash and connections are cut."""

    def __init__(self, seed: int, *, window: int, backoff_s: int, has_faults: bool) -> None:
        self._backoff_s = backoff_s
        self._has_faults = has_faults
        super().__init__(seed)
        self.set(group_module, "FIXED", replace(FIXED, waiting_window=window))
        self.set(Group, "spill_from", window // 2)
        self.spilled = self.most_ranges = 0
        """Maximum number of spilled messages, and of waiting ranges in memory, of a group."""

    def make_topic(self) -> Topic:
        backoff = {"kind": "fixed", "first": f"{self._backoff_s}s", "jitter_percent": 0}
        settings = {"lease": "4s", "max_attempts": "none", "backoff": backoff}
        return topic_of(NAMES, parse_settings(settings, FAIR).record(), FAIR)

    def make_clients(self) -> OutageClients:
        return OutageClients(self.rng, self.clock, self.nodes, None, ordered=False, margin_ms=DRIFT_MS)

    def disturb(self) -> None:
        if self._has_faults:
            super().disturb()

    def step(self, *, calm: bool = False) -> None:
        super().step(calm=calm)
        for node in self.nodes.values():
            for group in node.replica.machine.groups.by_id.values():
                self.spilled = max(self.spilled, group.spilled.messages)
                self.most_ranges = max(self.most_ranges, group.waiting_ranges)

    def run(self, seconds: int, *, is_down: bool) -> None:
        """Run for a time, in virtual seconds. `is_down`: the messages of some tenants fail."""
        until_ms = self.clock.ms + seconds * 1000
        self.clients.is_down = is_down
        while self.clock.ms < until_ms:
            self.live(1)

    @property
    def p99_ms(self) -> int:
        """99th percentile of the lateness of healthy tenants, in ms."""
        found = sorted(self.clients.lateness_ms)
        return int(found[len(found) * 99 // 100])


def run_outage(seed: int, seconds: int, *, window: int, backoff_s: int, has_faults: bool, is_down: bool) -> OutageWorld:
    """Run an outage, heal all faults, and deliver everything."""
    world = OutageWorld(seed, window=window, backoff_s=backoff_s, has_faults=has_faults)
    try:
        world.run(seconds, is_down=is_down)
        world.clients.is_down = False
        world.heal()
    finally:
        world.close()
    return world
