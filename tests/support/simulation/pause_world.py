"""Simulate pauses of groups, tenants and keys on three nodes, by an operator and by the holders of leases.

Only the pauses without an end are resumed in the end. All other pauses end by themselves."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

from sandq.broker.replication.applier import Apply
from sandq.broker.replication.replica import Delivery
from sandq.metadata.records import Topic
from sandq.model.errors import SandqError
from sandq.model.names import FAIR
from sandq.model.partitioning import ordering_hash
from sandq.model.pauses import FOREVER, GROUP, KEY, TENANT
from sandq.model.settings import parse_settings
from sandq.partition import commands as c
from sandq.partition.groups import group_table, spilling
from tests.support.simulation import cluster_world
from tests.support.simulation.cluster_clients import KEYS as KEYS_OR_NONE
from tests.support.simulation.cluster_clients import Clients
from tests.support.simulation.cluster_node import topic_of
from tests.support.simulation.cluster_world import DRIFT_MS, NAMES, ClusterWorld
from tests.support.simulation.oracle import GROUPS
from tests.support.simulation.pauses_oracle import Pauses, Target
from tests.support.simulation.ranked_world import RULES, RankedClients
from tests.support.simulation.ranked_world import TENANTS as TENANTS_OR_NONE

KEYS = [key for key in KEYS_OR_NONE if key is not None]
TENANTS = [tenant for tenant in TENANTS_OR_NONE if tenant is not None]
OPERATOR_MS = (200, 1000, 4000, FOREVER)
"""Durations of an operator's pauses, in ms."""
LEASE_MS = (100, 500, 3000)
"""Durations of pauses by the holders of leases, in ms."""
ENDED_MS = 20_000
"""Time after the last fault within which all pauses must have ended and all messages must be acked, in ms."""

RECALLED_MS = 2_000
"""Time after which spilled messages of a tenant that was paused or at its limits are recalled, in ms."""


class Pausing(Clients):
    """Clients that pause and resume parts of the topic."""

    def add_pauses(self, seed: int, is_fair: bool) -> None:
        self._pause_rng = random.Random(f"pauses of {seed}")
        """Random numbers only for pauses."""
        self._is_fair = is_fair
        self.pauses = Pauses(self.oracle, self.lease_ms, self._last_index)
        watch = self.oracle.watch

        def watch_both(group: str, delivery: Delivery) -> None:
            watch(group, delivery)
            self.pauses.delivered(group, delivery)

        self.oracle.watch = watch_both

    def _last_index(self) -> int:
        return max([node.replica.applied_index for node in self._nodes.values()], default=0)

    def act(self) -> None:
        super().act()
        if self._pause_rng.random() < 0.05:
            self._administer()
        if self._pause_rng.random() < 0.05:
            self._pause_by_lease()

    def finish(self) -> None:
        """Resume only the targets that may be paused without an end."""
        super().finish()
        for target in sorted(self.pauses.endless - self.pauses.unanswered.keys(), key=str):
            self._change(target, None)

    # -- pauses of an operator ------------------------------------------------------------------------------------

    def _administer(self) -> None:
        rng = self._pause_rng
        group = rng.choice(GROUPS)
        target = Target(group)
        if rng.random() < 0.7:
            target = Target(group, tenant=rng.choice(TENANTS)) if self._is_fair else Target(group, key=rng.choice(KEYS))
        end_ms: int | None = None
        if rng.random() >= 0.3:
            duration_ms = rng.choice(OPERATOR_MS)
            end_ms = FOREVER if duration_ms == FOREVER else self.clock.ms + duration_ms
        if target not in self.pauses.unanswered:
            self._change(target, end_ms)

    def _change(self, target: Target, end_ms: int | None) -> None:
        """Pause a target up to a time, or resume it (`end_ms` is None)."""
        self.pauses.requested(target, end_ms)

        def done(result: Any) -> None:
            self.pauses.answered(target, end_ms, is_confirmed=not isinstance(result, SandqError))

        self.submit(_command(target, end_ms), done)

    # -- pauses by leases -----------------------------------------------------------------------------------------

    def _pause_by_lease(self) -> None:
        """Pause a part to which a held message belongs: a part that is paused already, if there is one."""
        parts = [
            (held.token, offset, target)
            for consumer in self.consumers
            for held in consumer.held
            for offset, payload in held.messages
            for target in self._parts_of(held.group, payload)
            if target not in self.pauses.unanswered
        ]
        paused = [one for one in parts if one[2] in self.pauses.known]
        if not parts:
            return
        token, offset, target = self._pause_rng.choice(paused or parts)
        until_ms = self.clock.ms + self._pause_rng.choice(LEASE_MS)
        version = self.pauses.version(target)

        def done(result: Any) -> None:
            if not isinstance(result, SandqError) and result[0] is not None:
                end_ms = result[0].until_ms
                assert end_ms >= until_ms, "a lease shortened a pause"
                self.pauses.paused_by_lease(target, end_ms, version)

        part = TENANT if target.tenant is not None else KEY if target.key is not None else GROUP
        self.submit(c.PauseByLease([(token, offset, part, until_ms, target.group)]), done)

    def _parts_of(self, group: str, payload: bytes) -> list[Target]:
        """Return the parts that the holder of a message may pause."""
        sent = self.oracle.sent[payload]
        if self._is_fair:
            return [Target(group), Target(group, tenant=sent.tenant)]
        return [Target(group)] if sent.key is None else [Target(group), Target(group, key=sent.key)]


def _command(target: Target, end_ms: int | None) -> c.Command:
    if target.tenant is not None:
        return c.PausePart(target.group, target.tenant.decode(), end_ms)
    if target.key is not None:
        return c.PausePart(target.group, ordering_hash(target.key), end_ms)
    return c.PauseGroup(target.group, end_ms is not None, None if end_ms == FOREVER else end_ms)


class FairPausing(Pausing, RankedClients):
    """Clients of a fair topic that pause groups and tenants."""


class PauseWorld(ClusterWorld):
    """A fair topic whose tenants are paused, or a topic with ordered keys that are paused."""

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._is_fair = seed % 2 == 0
        super().__init__(seed)
        self.set(group_table, "PAUSES_ENDED", 1 + seed % 3)
        self.set(cluster_world, "HEALED_MS", ENDED_MS)
        for name in ("POSTPONED_MS", "HELD_UP_MS"):
            self.set(spilling, name, RECALLED_MS)

    def make_topic(self) -> Topic:
        settings: dict[str, Any] = {"lease": "1s", "max_attempts": "none", "backoff": {"first": "100ms"}}
        if not self._is_fair:
            return topic_of(NAMES, parse_settings(settings | {"ordering": "key"}).record())
        settings["tenants"] = random.Random(f"tenants of {self._seed}").choice(RULES)
        return topic_of(NAMES, parse_settings(settings, FAIR).record(), FAIR)

    def make_clients(self) -> Pausing:
        options: dict[str, Any] = {"ordered": not self._is_fair, "margin_ms": DRIFT_MS}
        make: Callable[..., Pausing] = Pausing
        if self._is_fair:
            make, options = FairPausing, options | {"topic": self.topic, "seed": self._seed}
        clients = make(self.rng, self.clock, self.nodes, self._moments, **options)
        clients.add_pauses(self._seed, self._is_fair)
        return clients

    def _note_reset(self, task: Apply) -> None:
        before = self.clients.oracle.set_back_token
        super()._note_reset(task)
        if self.clients.oracle.set_back_token != before:
            self.clients.pauses.set_back()
