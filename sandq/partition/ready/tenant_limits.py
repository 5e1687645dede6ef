"""Decides which tenants of a group are held up: by pauses, by limits of messages in flight, by rates, or by messages
that wait for a retry.

Decisions are made only between `begin` and `granted` of a lease command. They depend only on replicated state.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection

from sandq.model.offsets import U48_MAX
from sandq.partition.base.step import Step
from sandq.partition.limits.pacing import Pacing
from sandq.partition.limits.tenant_rules import TenantRule, TenantRules
from sandq.partition.ready import queue_keys
from sandq.partition.ready.crowding import Crowding
from sandq.partition.ready.tenant_pauses import TenantPauses
from sandq.partition.records.leases import Lease


class TenantLimits:
    """The tenants of one group, with the rules of the topic applied to them."""

    def __init__(self, rules: Callable[[], TenantRules]) -> None:
        """`rules()` returns the current rules of the topic's tenants."""
        self._rules = rules
        self._seen: TenantRules | None = None
        """Rules of the last decision about which tenants may have turns. None after a restart: until the next decision,
        turns may differ from those of other replicas."""
        self.in_flight: Counter[str] = Counter()
        """Number of leased messages, by tenant."""
        self.held_up: dict[str, int | None] = {}
        """Tenants that have ready messages but may not have turns. Value: time in ms at which the tenant's pause ends,
        or its rate allows the next message; None if the tenant has its maximum in flight."""
        self.freed: set[str] = set()
        """Tenants in `held_up` that may have turns again because fewer of their messages are in flight, and new
        tenants."""
        self.pauses = TenantPauses()
        self.are_pauses_new = False
        """Whether pauses have changed since the last decision."""
        self.pacing = Pacing()
        self.crowding = Crowding()
        self._filled: Counter[str] = Counter()
        """By tenant: number of messages in the lease that is being filled."""
        self._half: int | None = None
        """Tenants with at least this many messages in flight are in `_many`. None if there is no such number."""
        self._many: set[str] = set()
        """Tenants with at least `_half` messages in flight."""
        self._now_us = 0
        """Time of the lease that is being granted, in µs."""

    # -- the rules ------------------------------------------------------------------------------------------------

    @property
    def are_there(self) -> bool:
        """Return whether the topic has rules for tenants."""
        return bool(self._rules())

    def rule_of(self, tenant: str) -> TenantRule:
        """Return the rule for a tenant."""
        return self._rules().find(tenant)

    def weight_of(self, path: str) -> int:
        """Return the weight of a path in the tree of tenants. A path that ends with a dot stands for a tenant's own
        messages, as opposed to the tenants below it, and always has weight 1."""
        rules = self._rules()
        return rules.find(path).weight if rules and not path.endswith(".") else 1

    def limit_of(self, tenant: str) -> TenantRule | None:
        """Return the rule that may hold up a tenant. None if there is none."""
        rules = self._rules()
        if not rules:
            return None
        rule = rules.find(tenant)
        return rule if rule.is_limit else None

    # -- eligible tenants -----------------------------------------------------------------------------------------

    @property
    def are_known(self) -> bool:
        """Whether the current rules were used to decide which tenants may have turns."""
        return self._rules() is self._seen

    @property
    def is_settled(self) -> bool:
        """Whether the last decision still holds: no tenant may have been freed since then."""
        return self.are_known and not (self.freed or self.crowding.is_stale or self.are_pauses_new)

    def begin(self, step: Step, tenants: Collection[str], most_waiting: int | None, in_flight: int) -> set[str]:
        """Return the tenants for which the caller must call `may_be_served`, if they have messages. `tenants`: all
        tenants with messages.

        `most_waiting`: maximum number of waiting ranges of messages in the group, which the tenants share (`Crowding`);
        None if there is no maximum. `in_flight`: maximum number of messages in flight in the group after this lease. A
        tenant may have at most half of `most_waiting`.
        """
        now_ms = step.now_ms
        self._now_us = now_ms * 1000
        self.pacing.forget(self._now_us)
        paced = {tenant for tenant, until_ms in self.held_up.items() if until_ms is not None and until_ms <= now_ms}
        again = self.freed | paced if self.are_known and not self.are_pauses_new else set(tenants)
        half = None if most_waiting is None else most_waiting // 2
        if half != self._half:
            self._half = half
            self._many = {tenant for tenant, count in self.in_flight.items() if half is not None and count >= half}
        many = None if half is None else self._many
        changed = self.crowding.decide(most_waiting, self.in_flight, in_flight, many)
        return again | changed | {tenant for tenant in self.crowding.stopped if tenant not in self.held_up}

    def may_be_served(self, tenant: str, has_back: Callable[[str], bool]) -> bool:
        """Decide whether a tenant with messages may have turns. `has_back`: returns whether a tenant has returned
        messages."""
        paused_ms = self.pauses.until_ms(tenant, self._now_us // 1000)
        if paused_ms is not None:
            self.held_up[tenant] = None if paused_ms == U48_MAX else paused_ms
            return False
        rule = self.limit_of(tenant)
        if rule is not None and rule.pace is not None:
            self.pacing.limit(tenant, rule.pace, self._now_us)
        if rule is not None and self._capacity(tenant, rule) == 0:
            until_ms = None
            if rule.pace is not None and not self.pacing.available(tenant, rule.pace, self._now_us):
                until_ms = -(-self.pacing.free_us(tenant, rule.pace, self._now_us) // 1000)
            self.held_up[tenant] = until_ms
        elif tenant in self.crowding.stopped and not has_back(tenant):
            self.held_up[tenant] = None
        else:
            self.held_up.pop(tenant, None)
        return tenant not in self.held_up

    def decided(self) -> bool:
        """Note that the caller has checked all tenants that `begin` returned. Return whether the rules are new."""
        self.freed.clear()
        self.are_pauses_new = False
        are_new = not self.are_known
        self._seen = self._rules()
        return are_new

    def set_back(self) -> None:
        """Decide again which tenants may have turns, after a clock reset."""
        self._seen = None

    def clear(self) -> None:
        """Forget all tenants: no tenant has ready messages."""
        self.held_up.clear()
        self.freed.clear()

    # -- capacity -------------------------------------------------------------------------------------------------

    def _capacity(self, tenant: str, rule: TenantRule) -> int:
        """Return how many more messages of a tenant its rule allows in the lease that is being filled."""
        free = []
        if rule.max_in_flight is not None:
            free.append(max(rule.max_in_flight - self.in_flight[tenant] - self._filled[tenant], 0))
        if rule.pace is not None:
            free.append(self.pacing.available(tenant, rule.pace, self._now_us))
        return min(free)

    def capacity_of(self, tenant: str) -> int | None:
        """Return how many more messages of a tenant may be added to the lease. None if there is no limit."""
        rule = self.limit_of(tenant)
        return None if rule is None else self._capacity(tenant, rule)

    def capacity_for_new(self, tenant: str) -> int | None:
        """Return how many more new messages (never leased before) of a tenant may be added. None if there is no
        limit."""
        return self.crowding.available(tenant, self.in_flight[tenant] + self._filled[tenant])

    def may_crowd(self, tenant: str) -> bool:
        """Return whether this lease may stop a tenant, so that it gets no new messages."""
        return self.crowding.may_stop(tenant, self.in_flight.get(tenant, 0))

    def serve(self, tenant: str, messages: int) -> bool:
        """Count messages of a tenant that are added to a lease. Return whether the tenant may be held up now."""
        rule = self.limit_of(tenant)
        if rule is None and not self.may_crowd(tenant):
            return False
        self._filled[tenant] += messages
        if rule is not None and rule.pace is not None:
            self.pacing.serve(tenant, rule.pace, messages, self._now_us)
        if self.capacity_for_new(tenant) == 0:
            self.crowding.stopped.add(tenant)
        return True

    def granted(self) -> None:
        """Prepare for the next lease, after this lease was filled and counted."""
        self._filled.clear()

    def count_lease(self, lease: Lease) -> None:
        """Update the numbers in flight for a new lease, or for a lease with fewer live messages than before."""
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
        """Return until when the rate holds up a tenant, in ms, as of the last decision. None if the rate does not hold
        it up, or if the rules have changed since then."""
        return self.held_up.get(tenant) if self.are_known else None
