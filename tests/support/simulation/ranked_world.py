"""Simulate a partition of a priority or fair topic on three nodes."""

from __future__ import annotations

import random
from typing import Any

from sandq.metadata.records import Topic
from sandq.model.batch import Column
from sandq.model.names import FAIR, PRIORITY
from sandq.model.settings import parse_settings
from sandq.partition import commands as c
from sandq.partition.leasing import ranked_grants
from sandq.partition.limits.tenant_rules import TenantRules
from sandq.partition.log import sweep
from sandq.partition.ready import queue_entries
from tests.support.simulation.cluster_clients import Clients
from tests.support.simulation.cluster_node import topic_of
from tests.support.simulation.cluster_world import DRIFT_MS, NAMES, ClusterWorld
from tests.support.simulation.oracle import UNKNOWN, Sent
from tests.support.simulation.order import Order

PRIORITIES = (None, 0, -3, 5, 1000)
TENANTS = (None, b"a", b"a.x", b"a.y", b"b", b"default")
RULES: tuple[dict[str, Any], ...] = (
    {},
    {"a": {"weight": 3}, "b": {"max_in_flight": 2}},
    {"*": {"max_in_flight": 4}, "a.*": {"weight": 2, "max_in_flight": 1}},
    {"*": {"rate": 50, "burst": 3}, "a": {"rate": "20/s", "max_in_flight": 2}},
)


class RankedClients(Clients):
    """Clients whose messages have priorities and tenants. At times, the clients change priorities."""

    def __init__(self, *args: Any, topic: Topic, seed: int, **options: Any) -> None:
        super().__init__(*args, **options)
        self._is_fair = topic.kind == FAIR
        rules = TenantRules.of(topic.settings)
        self._rules_change = random.Random(f"rules of {seed}").random() < 0.3
        if not self._rules_change:
            self.oracle.per_tenant = lambda tenant: rules.find(tenant.decode()).max_in_flight
        self.order: Order | None = None
        if random.Random(f"order of {seed}").random() < 0.6:
            # Consumers must not leave here: a message that is given back unread counts as never leased, and the check
            # of the order could not see that.
            self.leaving = 0.0
            self.order = Order(topic.settings["ageing_ms"], self.lease_ms, 2 * DRIFT_MS + 1)
            self.oracle.watch = self.order.delivered
        self._rank_rng = random.Random(f"ranks of {seed}")
        self.ranked = 0
        """Number of messages whose priority was changed."""

    def messages(self) -> tuple[list[Sent], dict[int, list[Any]]]:
        sent, columns = super().messages()
        rng = self._rank_rng
        if rng.random() < 0.7:
            columns[Column.PRIORITY] = [rng.choice(PRIORITIES) for _ in sent]
        if self._is_fair and rng.random() < 0.8:
            one = rng.choice(TENANTS)
            columns[Column.TENANT] = [one if rng.random() < 0.5 else rng.choice(TENANTS) for _ in sent]
            for message, tenant in zip(sent, columns[Column.TENANT], strict=True):
                message.tenant = tenant or b"default"
        return sent, columns

    def act(self) -> None:
        super().act()
        if self._rank_rng.random() < 0.04:
            self._rank()
        if self._is_fair and self._rules_change and self._rank_rng.random() < 0.01:
            self._change_rules()

    def _rank(self) -> None:
        """Change the priority of a message. Its offset is unknown until the answer arrives."""
        message = self.owner._some()
        if message is None or message.vague:
            return
        message.moving += 1
        message.vague = True
        if self.order is not None:
            self.order.changed.add(message.payload)

        def done(result: Any) -> None:
            if isinstance(result, UNKNOWN):
                return
            message.moving -= 1
            message.vague = False
            verdict, detail = result[0]
            if verdict == "moved":
                message.offset = detail
                self.ranked += 1

        item = ([c.TARGET_ID, message.id], None, False, self._rank_rng.choice((-7, 0, 2, 5)))
        self.submit(c.Move([item]), done)

    def _change_rules(self) -> None:
        leader = self.leader()
        if leader is not None:
            rules = parse_settings({"tenants": self._rank_rng.choice(RULES)}, FAIR).record()["tenants"]
            self.submit(c.Configure(leader.host.status.settings | {"tenants": rules}), lambda result: None)


class RankedWorld(ClusterWorld):
    def __init__(self, seed: int) -> None:
        self._seed = seed
        super().__init__(seed)
        rng = random.Random(f"ranked {seed}")
        self.set(ranked_grants, "PROMOTED", rng.choice((3, 10_000)))
        self.set(ranked_grants, "PART_ENTRIES", rng.choice((1, 256)))
        self.set(queue_entries, "HEAD_ENTRIES", rng.choice((1, 8)))
        self.set(queue_entries, "MOST_ENTRIES", rng.choice((2, 1024)))
        self.set(sweep, "LEAST_SETTLED", rng.choice((1, 50)))
        self.set(sweep, "SWEEP_ROWS", rng.choice((2, 1000)))
        self.set(sweep, "FEW_QUEUES", rng.choice((0, 16)))

    def heal(self) -> None:
        super().heal()
        if self.clients.order is not None:
            self.clients.order.check()

    def make_topic(self) -> Topic:
        rng = random.Random(f"topic {self._seed}")
        kind = rng.choice((PRIORITY, FAIR))
        settings: dict[str, Any] = {
            "lease": "1s",
            "max_attempts": "none",
            "backoff": {"first": "100ms"},
            "dedup_window": rng.choice(("0s", "10m")),
            "retention": rng.choice(("0s", "0s", "1s")),
            "ageing": rng.choice(("none", "1s")),
        }
        if kind == FAIR:
            settings["tenants"] = rng.choice(RULES)
        return topic_of(NAMES, parse_settings(settings, kind).record(), kind)

    def make_clients(self) -> RankedClients:
        return RankedClients(
            self.rng,
            self.clock,
            self.nodes,
            self._moments,
            ordered=False,
            margin_ms=DRIFT_MS,
            topic=self.topic,
            seed=self._seed,
        )
