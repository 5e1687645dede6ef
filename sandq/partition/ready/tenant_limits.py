"""What holds tenants of a group up: what they have in flight, their rates, and what waits for another attempt.

Decided between `begin` and `granted` of a lease alone, by what rows say too.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection

from sandq.partition.base.step import Step
from sandq.partition.limits.pacing import Pacing
from sandq.partition.limits.tenant_rules import TenantRule, TenantRules
from sandq.partition.ready import queue_keys
from sandq.partition.ready.crowding import Crowding
from sandq.partition.records.leases import Lease


class TenantLimits:
    """How tenants of one group stand with the rules that the topic has for them."""

    def __init__(self, rules: Callable[[], TenantRules]) -> None:
        """`rules()`: those of the topic's tenants, as they are."""
        self._rules = rules
        self._seen: TenantRules | None = None
        """By which it was decided who may have turns; None: rows were read, and turns are not yet as they would be had
        they not."""
        self.in_flight: Counter[str] = Counter()
        """By tenant: messages that are leased."""
        self.held_up: dict[str, int | None] = {}
        """Tenants that have something ready, and as much in flight as they may (None), or had as much as they may until
        then (ms)."""
        self.freed: set[str] = set()
        """Those of them that have less in flight by now, and tenants that are new."""
        self.pacing = Pacing()
        self.crowding = Crowding()
        self._filled: Counter[str] = Counter()
        """By tenant: those of the lease that is being filled."""
        self._half: int | None = None
        """So many messages in flight are many; None: any number is not."""
        self._many: set[str] = set()
        """Tenants that have so many."""
        self._now_us = 0
        """Of the lease that is being granted."""

    # -- the rules ------------------------------------------------------------------------------------------------

    @property
    def are_there(self) -> bool:
        """Whether the topic has rules for tenants."""
        return bool(self._rules())

    def rule_of(self, tenant: str) -> TenantRule:
        """Return what the topic says of a tenant."""
        return self._rules().find(tenant)

    def weight_of(self, path: str) -> int:
        """Behind a dot: of a tenant's own messages beside those of tenants whose names go on from its own."""
        rules = self._rules()
        return rules.find(path).weight if rules and not path.endswith(".") else 1

    def limit_of(self, tenant: str) -> TenantRule | None:
        """What may hold a tenant up; None: nothing does."""
        rules = self._rules()
        if not rules:
            return None
        rule = rules.find(tenant)
        return rule if rule.is_limit else None

    # -- who may have turns ---------------------------------------------------------------------------------------

    @property
    def are_known(self) -> bool:
        """Whether it was decided who may have turns by the rules that hold."""
        return self._rules() is self._seen

    @property
    def is_settled(self) -> bool:
        """Whether nobody may have been freed since."""
        return self.are_known and not (self.freed or self.crowding.is_stale)

    def begin(self, step: Step, tenants: Collection[str], most_waiting: int | None, in_flight: int) -> set[str]:
        """Return who is to be looked at, of the tenants that have something. `most_waiting`: so many ranges of messages
        may wait for another attempt, of which tenants may have as many as are free; None: any number. `in_flight`: so
        many the whole group may have after this lease, of which a tenant has half at most."""
        now_ms = step.now_ms
        self._now_us = now_ms * 1000
        self.pacing.forget(self._now_us)
        paced = {tenant for tenant, until_ms in self.held_up.items() if until_ms is not None and until_ms <= now_ms}
        again = self.freed | paced if self.are_known else set(tenants)
        half = None if most_waiting is None else most_waiting // 2
        if half != self._half:
            self._half = half
            self._many = {tenant for tenant, count in self.in_flight.items() if half is not None and count >= half}
        many = None if half is None else self._many
        changed = self.crowding.decide(most_waiting, self.in_flight, in_flight, many)
        return again | changed | {tenant for tenant in self.crowding.stopped if tenant not in self.held_up}

    def may_have_turns(self, tenant: str, has_back: Callable[[str], bool]) -> bool:
        """Look whether a limit holds a tenant up that has something. `has_back`: whether something was given back."""
        rule = self.limit_of(tenant)
        if rule is not None and rule.pace is not None:
            self.pacing.limit(tenant, rule.pace, self._now_us)
        if rule is not None and self._room(tenant, rule) == 0:
            until_ms = None
            if rule.pace is not None and not self.pacing.room(tenant, rule.pace, self._now_us):
                until_ms = -(-self.pacing.free_us(tenant, rule.pace, self._now_us) // 1000)
            self.held_up[tenant] = until_ms
        elif tenant in self.crowding.stopped and not has_back(tenant):
            self.held_up[tenant] = None
        else:
            self.held_up.pop(tenant, None)
        return tenant not in self.held_up

    def decided(self) -> bool:
        """All who were to be looked at were. Whether the rules are new."""
        self.freed.clear()
        are_new = not self.are_known
        self._seen = self._rules()
        return are_new

    def set_back(self) -> None:
        """The partition's time was set back: who may have turns is decided anew."""
        self._seen = None

    def clear(self) -> None:
        """Nobody has anything ready."""
        self.held_up.clear()
        self.freed.clear()

    # -- what may be given ----------------------------------------------------------------------------------------

    def _room(self, tenant: str, rule: TenantRule) -> int:
        rooms = []
        if rule.max_in_flight is not None:
            rooms.append(max(rule.max_in_flight - self.in_flight[tenant] - self._filled[tenant], 0))
        if rule.pace is not None:
            rooms.append(self.pacing.room(tenant, rule.pace, self._now_us))
        return min(rooms)

    def room_of(self, tenant: str) -> int | None:
        """Return how many more messages of a tenant may be put into the lease; None: any number."""
        rule = self.limit_of(tenant)
        return None if rule is None else self._room(tenant, rule)

    def room_for_new(self, tenant: str) -> int | None:
        """Return how many more of them may be such that were never given; None: any number."""
        return self.crowding.room(tenant, self.in_flight[tenant] + self._filled[tenant])

    def may_crowd(self, tenant: str) -> bool:
        """Return whether a tenant may come to get nothing new by what it is given in this lease."""
        return self.crowding.may_stop(tenant, self.in_flight.get(tenant, 0))

    def serve(self, tenant: str, messages: int) -> bool:
        """Count so many messages of a tenant that are put into a lease. Whether it may be held up from then on."""
        rule = self.limit_of(tenant)
        if rule is None and not self.may_crowd(tenant):
            return False
        self._filled[tenant] += messages
        if rule is not None and rule.pace is not None:
            self.pacing.serve(tenant, rule.pace, messages, self._now_us)
        if self.room_for_new(tenant) == 0:
            self.crowding.stopped.add(tenant)
        return True

    def granted(self) -> None:
        """Begin with the next lease: this one is filled, and was counted."""
        self._filled.clear()

    def count_lease(self, lease: Lease) -> None:
        """Count what is in flight of a lease that is new, or some of which is not live any more."""
        live, in_flight = lease.live, self.in_flight
        for queue, count in lease.count_by_queue(live & ~lease.flying):
            tenant = queue_keys.tenant_of(queue)
            in_flight[tenant] = in_flight.get(tenant, 0) + count
            if self._half is not None and in_flight[tenant] >= self._half:
                self._many.add(tenant)
        for queue, count in lease.count_by_queue(lease.flying & ~live):
            tenant = queue_keys.tenant_of(queue)
            left = in_flight[tenant] - count
            if left:
                in_flight[tenant] = left
            else:
                in_flight.pop(tenant)
            if self._half is not None and left < self._half:
                self._many.discard(tenant)
            if self.held_up.get(tenant, 0) is None:
                self.freed.add(tenant)
        lease.flying = live

    def paced_ms(self, tenant: str) -> int | None:
        """Return until when a tenant is held up by its rate, as far as was looked by the rules that hold; None: it is
        not."""
        return self.held_up.get(tenant) if self.are_known else None
