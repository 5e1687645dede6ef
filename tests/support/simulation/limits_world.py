"""Simulate whole nodes with topics whose groups share a named limit, while leaders are lost and the limit changes.

Consumers hold messages for a while. Groups leave the limit and return, and a topic is deleted. The leases of all groups
together never exceed the limit. After all faults are healed, the limit is used almost fully."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

import trio

from sandq.broker.broker import Broker
from sandq.broker.replication.replica import Delivery
from sandq.model.batch import Column
from sandq.model.group_limits import limits_of
from sandq.model.names import LIMITS_TOPIC, PRIORITY, TIMER
from tests.support.nodes.administrator import Administrator
from tests.support.simulation.limits_oracle import LimitsOracle
from tests.support.simulation.membership_world import DRIFT_S, GROUP, REST_S, MembershipWorld
from tests.support.simulation.whole_node import Life

LIMIT: Final = "llm"
DOOMED: Final = "gone"
"""A topic that is deleted in the middle of a run."""
LEASE_MS: Final = 3000
COSTS: Final = ((1, 1, 4, 10), (1, 7), (3, 20, 50))
FULL_RATE: Final = 600
"""Units per second of the limit whose use is measured. Its burst is that of one second."""
FULL_COSTS: Final = (1, 20, 40, 150)
FULL_MESSAGES: Final = 450
"""Number of messages that wait while the use of the limit is measured: more than the limit allows in this time."""
FULL_S: Final = 24.0


class LimitsWorld(MembershipWorld):
    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.limits_rng = random.Random(f"limits of {seed}")
        """Random numbers only for limits."""
        self.topics = {"chat": TIMER, "mail": PRIORITY, DOOMED: TIMER}  # type: ignore[misc]
        counts = {"chat": 2, "mail": 1, DOOMED: 1}
        self.topic_partitions = [(topic, at) for topic, count in counts.items() for at in range(count)]
        self._counts = counts
        self.is_exact = self.limits_rng.random() < 0.75
        """Whether the clocks of all nodes show the true time."""
        if self.is_exact:
            self.ahead_s = dict.fromkeys(self.ahead_s, 0.0)
        self.oracle = LimitsOracle(0 if self.is_exact else int(2 * DRIFT_S * 1000))
        self.costs = self.limits_rng.choice(COSTS)
        self.hold_s = self.limits_rng.choice((0.0, 0.3, 2.0))
        """Maximum time for which a consumer holds a message, in seconds."""
        self._doomed: set[bytes] = set()
        """Stored messages of the topic that is deleted."""
        self.used = 0.0
        """Share of the limit that was used, as measured by `use_fully`."""
        self._is_full = False
        """Whether the use of the limit is measured: consumers then ack at once."""

    @contextmanager
    def _replaced(self) -> Iterator[None]:
        with super()._replaced(), self.oracle.watching():
            yield

    # -- topics and limits ----------------------------------------------------------------------------------------

    async def _create_topics(self) -> None:
        until_s = trio.current_time() + REST_S
        asks: list[Callable[[Administrator], Awaitable[Any]]] = [lambda admin: self._set_limit(admin)]
        for topic, kind in self.topics.items():
            asks += [
                lambda admin, topic=topic, kind=kind: admin.create_topic(  # type: ignore[misc]
                    topic, kind, self._counts[topic], self.replicas, self._settings(kind)
                ),
                lambda admin, topic=topic: admin.limit_group(topic, GROUP, {"limit": LIMIT}),  # type: ignore[misc]
            ]
        while asks:
            assert trio.current_time() < until_s, f"no topics: {self._describe_pending()}"
            broker = self._metadata_leader()
            if broker is not None and await self._ask(asks[0](Administrator(broker))):
                del asks[0]
            else:
                await trio.sleep(0.2)

    def _settings(self, kind: str) -> dict[str, Any]:
        return super()._settings(kind) | {"lease": f"{LEASE_MS}ms"}

    async def _set_limit(self, admin: Administrator) -> None:
        rng = self.limits_rng
        rate, burst = rng.choice((30, 100, 300)), rng.choice((None, 5, 60))
        limits: dict[str, Any] = {"rate": rate, "unit": "tokens"} | ({} if burst is None else {"burst": burst})
        most = rng.choice((None, 3, 8))
        if most is not None:
            limits = {"max_in_flight": most} | (limits if rng.random() < 0.8 else {})
        self.note(f"limit {limits}")
        await admin.limit_group(LIMITS_TOPIC, LIMIT, limits)

    async def disturb(self) -> None:
        await super().disturb()
        rng = self.limits_rng
        for chance, action in (
            (0.04, self._change_limit),
            (0.04, self._leave_or_return),
            (0.03, self._lose_home),
            (0.02, self._delete_topic),
        ):
            if rng.random() < chance:
                await action()

    async def _change_limit(self) -> None:
        broker = self._metadata_leader()
        if broker is not None and await self._ask(self._set_limit(Administrator(broker))):
            self.counts["changes"] += 1

    async def _leave_or_return(self, *, returns: bool = False) -> None:
        """Let a group leave the limit, or use it again. `returns`: let all groups use it that do not."""
        broker, view = self._metadata_leader(), self._newest_view()
        if broker is None or view is None:
            return
        topics = [topic for topic in self.topics if topic in view.topics]
        for topic in topics if returns else [self.limits_rng.choice(topics)]:
            uses = GROUP in limits_of(view.topics[topic].settings)
            if returns and uses:
                continue
            self.note(f"{topic} leaves" if uses else f"{topic} returns")
            limits = {} if uses else {"limit": LIMIT}
            if await self._ask(Administrator(broker).limit_group(topic, GROUP, limits)):
                self.counts["uses"] += 1

    async def _lose_home(self) -> None:
        home = self.home()
        if home is not None:
            self.note(f"{home}, which leads the home, crashes")
            self.lose(home, power_loss=self.limits_rng.random() < 0.5)
            self.counts["homes"] += 1

    def home(self) -> str | None:
        """Return the node that leads the home of the limit."""
        for broker, host in self._hosts((LIMITS_TOPIC, 0)):
            if host.ready:
                return broker.node_log.node_id
        return None

    async def _delete_topic(self) -> None:
        broker, view = self._metadata_leader(), self._newest_view()
        if DOOMED not in self.topics or broker is None or view is None:
            return
        self.note(f"{DOOMED} is deleted")
        self.topics.pop(DOOMED)  # type: ignore[attr-defined]
        self.topic_partitions = [place for place in self.topic_partitions if place[0] != DOOMED]
        self.oracle.deleted({partition.group for partition in view.topics[DOOMED].partitions})
        await self._ask(Administrator(broker).delete_topic(DOOMED))
        self.stored -= self._doomed
        self.counts["deletions"] += 1

    # -- clients --------------------------------------------------------------------------------------------------

    async def _produce(self) -> None:
        while not self._is_over:
            self._produce_one()
            await trio.sleep(self.limits_rng.uniform(0.02, 0.3))

    def _note_stored(self, topic: str, payload: bytes) -> None:
        if topic == DOOMED:
            self._doomed.add(payload)
        if topic in self.topics:
            super()._note_stored(topic, payload)

    def _cells(self, kind: str, payload: bytes) -> dict[int, list[Any]]:
        if self._is_full:
            return {Column.VALUE: [payload], Column.COST: [self.limits_rng.choice(FULL_COSTS)]}
        delay_ms = self.limits_rng.choice((0, 0, 0, 200, 2000))
        cost = self.limits_rng.choice(self.costs)
        return {
            Column.VALUE: [payload],
            Column.DELIVER_MS: [self._now_ms() + delay_ms],
            Column.COST: [None if cost == 1 else cost],
        }

    def _pushed(self, life: Life, broker: Broker, topic: str, delivery: Delivery) -> None:
        if not life.is_lost and life.serving is not None:
            payloads = [payload for _, payload in self._messages(delivery)]
            if topic in self.topics:
                violation = self.oracle.pushed(
                    delivery.group_number, delivery.token, payloads, delivery.deadline_ms, self._now_ms()
                )
                if violation is not None:
                    self.violations.append(violation)
        super()._pushed(life, broker, topic, delivery)

    def _finish(self, life: Life, broker: Broker, topic: str, delivery: Delivery) -> None:
        self._nursery.start_soon(self._work, life, broker, topic, delivery)

    async def _work(self, life: Life, broker: Broker, topic: str, delivery: Delivery) -> None:
        """Work on messages, and ack them."""
        if self.hold_s and not self._is_full:
            await trio.sleep(self.limits_rng.uniform(0, self.hold_s))
        if not life.is_lost and life.serving is not None:
            self.oracle.settling(delivery.token, [payload for _, payload in self._messages(delivery)])
            super()._finish(life, broker, topic, delivery)

    # -- the end --------------------------------------------------------------------------------------------------

    def check(self) -> None:
        super().check()
        if self.rng.random() < 0.1:
            self._compare((LIMITS_TOPIC, 0))

    def check_rate(self) -> None:
        terms = [host.group.term for place in self._all_partitions() for _, host in self._hosts(place)]
        self.oracle.check_rate(sum(terms))

    def _all_partitions(self) -> list[tuple[str, int]]:
        return [(LIMITS_TOPIC, 0), *self.topic_partitions]

    async def _heal(self) -> None:
        self.hold_s = 0.0
        await super()._heal()
        self._compare((LIMITS_TOPIC, 0))
        self.check_rate()

    async def use_fully(self) -> None:
        """Instead of random steps: let many messages wait for the limit, and measure how much of it is used, before and
        after the loss of its home's leader."""
        broker = self._metadata_leader()
        assert broker is not None
        self._is_full = True
        limits = {"rate": FULL_RATE, "unit": "tokens", "max_in_flight": 20}
        assert await self._ask(Administrator(broker).limit_group(LIMITS_TOPIC, LIMIT, limits))
        for _ in range(FULL_MESSAGES):
            self._produce_one()
            await trio.sleep(0.001)
        await trio.sleep(3)
        from_ms = self._now_ms()
        await trio.sleep(FULL_S / 2)
        await self._lose_home()
        assert self.counts["homes"] == 1
        await trio.sleep(FULL_S / 2)
        until_ms = self._now_ms()
        self.used = self.oracle.used(from_ms, until_ms) / (FULL_RATE * (until_ms - from_ms) / 1000)

    def _describe_pending(self) -> Any:
        return super()._describe_pending(), self._describe_limits()

    def _describe_limits(self) -> Any:
        """Return the ledger, and the allowances of all groups, on the leaders."""
        found: dict[Any, Any] = {}
        for place in self._all_partitions():
            for _, host in self._hosts(place):
                if host.ready and host.status.limits is not None:
                    limits = host.status.limits
                    found[place] = host.number, limits.ledgers.get(LIMIT), limits.allowances.get(GROUP)
        return found
