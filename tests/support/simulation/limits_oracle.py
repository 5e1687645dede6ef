"""Check that the groups with a named limit stay within it, by the leases that replicas apply and consumers receive."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from sandq.broker.replication.replica import PartitionReplica
from sandq.model.group_limits import GroupLimit
from sandq.partition.base.step import Step
from sandq.partition.groups.group_limits import GroupLimits
from sandq.partition.leasing.lease_grants import LeaseGrants
from sandq.partition.limits.allowance import Allowance

Member = tuple[int, int]
"""The Raft group of a partition, and the epoch of the group's row in the settings of its topic."""


class Granted(NamedTuple):
    """The leases of an entry under the named limit."""

    at_ms: int
    """Stamp of the entry: the time of the leader's clock."""
    limit: GroupLimit
    cost: int
    """Number of units of the rate that the leases use."""


class Held(NamedTuple):
    """A message that a consumer works on."""

    token: int
    deadline_ms: int
    member: Member


class LimitsOracle:
    """Knows all leases under the named limit, and the messages that consumers hold.

    A partition counts a message from its lease until its ack. A consumer holds the message for a part of this time, so
    consumers never hold more messages than the limit allows."""

    def __init__(self, margin_ms: int) -> None:
        """`margin_ms`: maximum difference between a leader's clock and the true time."""
        self.margin_ms = margin_ms
        self.granted: list[Granted] = []
        self.most_held = 0
        self._newest: GroupLimit | None = None
        """The newest definition under which anything was leased."""
        self._leases: dict[tuple[int, int], Member] = {}
        """Leases under the named limit: the member, by Raft group and token."""
        self._excess_us: dict[Member, tuple[int, int]] = {}
        """Epoch of the last lease of each member, and its debt beyond a window after this lease, in µs."""
        self._forgotten_us: Counter[int] = Counter()
        """Sum of the debts that the home has cut to a window because members left (ADR 57), in µs, by epoch."""
        self._left: set[Member] = set()
        """Members that no longer use the limit. Their messages in flight no longer count."""
        self._held: dict[bytes, Held] = {}
        self._applying = (0, 0)
        """Raft group and index of the entry that is being applied."""
        self._seen: set[tuple[int, int, str]] = set()

    # -- replicas -------------------------------------------------------------------------------------------------

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Watch the leases and settings that replicas apply. Each entry counts once, for all replicas."""
        apply: Any = PartitionReplica.apply
        grant, configure = LeaseGrants.grant, GroupLimits.configure

        def watched_apply(replica: Any, index: int, *args: Any, **options: Any) -> Any:
            self._applying = replica._group, index
            return apply(replica, index, *args, **options)

        def watched_grant(grants: Any, step: Step, command: Any) -> Any:
            allowance = grants._groups.named(command.group).allowance
            before = 0 if allowance is None else allowance.used
            leases = grant(grants, step, command)
            if leases and allowance is not None and allowance.limit.name is not None:
                self._lease(step, allowance, allowance.used - before, [lease.token for lease in leases])
            return leases

        def watched_configure(limits: Any, step: Step) -> None:
            before = {name: one.assigned for name, one in limits._allowances.items() if one.limit.name is not None}
            configure(limits, step)
            for name, assigned in before.items():
                after = limits._allowances.get(name)
                if after is None or after.assigned != assigned:
                    self._leave((self._applying[0], assigned))

        PartitionReplica.apply = watched_apply  # type: ignore[method-assign]
        LeaseGrants.grant = watched_grant  # type: ignore[method-assign]
        GroupLimits.configure = watched_configure  # type: ignore[method-assign]
        try:
            yield
        finally:
            PartitionReplica.apply = apply  # type: ignore[method-assign]
            LeaseGrants.grant, GroupLimits.configure = grant, configure  # type: ignore[method-assign]

    def _lease(self, step: Step, allowance: Allowance, cost: int, tokens: list[int]) -> None:
        raft_group, _ = self._applying
        if (raft_group, tokens[0]) in self._leases:
            return  # another replica has applied the entry
        assert allowance.limit.epoch > 0, "a partition that does not know the limit leases nothing"
        for token in tokens:
            self._leases[raft_group, token] = raft_group, allowance.assigned
        self.granted.append(Granted(step.stamp_ms, allowance.limit, cost))
        if allowance.limit.interval_us is not None:
            excess_us = allowance.part.arrival_us - step.stamp_ms * 1000 - allowance.limit.window_us
            self._excess_us[raft_group, allowance.assigned] = allowance.limit.epoch, max(excess_us, 0)
        if self._newest is None or allowance.limit.epoch > self._newest.epoch:
            self._newest = allowance.limit

    def _leave(self, member: Member) -> None:
        epoch, excess_us = self._excess_us.pop(member, (0, 0))
        self._forgotten_us[epoch] += excess_us
        self._left.add(member)
        self._held = {payload: held for payload, held in self._held.items() if held.member != member}

    def deleted(self, raft_groups: set[int]) -> None:
        """Forget the messages of deleted partitions: they no longer count."""
        for member in {*self._leases.values()}:
            if member[0] in raft_groups:
                self._leave(member)

    # -- consumers ------------------------------------------------------------------------------------------------

    def pushed(self, raft_group: int, token: int, payloads: list[bytes], deadline_ms: int, now_ms: int) -> str | None:
        """Note the messages of a lease that a consumer received. Return a violation of `max_in_flight`."""
        member = self._leases.get((raft_group, token))
        if member is None or member in self._left:
            for payload in payloads:
                self._held.pop(payload, None)
            return None
        for payload in payloads:
            self._held[payload] = Held(token, deadline_ms, member)
        held = sum(now_ms < one.deadline_ms - self.margin_ms for one in self._held.values())
        self.most_held = max(self.most_held, held)
        most = self._newest.max_in_flight if self._newest is not None else None
        return f"{held} messages are in flight, of {most}" if most is not None and held > most else None

    def settling(self, token: int, payloads: list[bytes]) -> None:
        """Note that a consumer acks messages."""
        for payload in payloads:
            held = self._held.get(payload)
            if held is not None and held.token == token:
                del self._held[payload]

    # -- rates ----------------------------------------------------------------------------------------------------

    def check_rate(self, changes: int) -> None:
        """Check that no time window has more leases than rate and burst allow, or than the largest message.

        `changes`: number of elections. In each of them, the new leader's clock may be ahead of the previous one, and a
        partition's time then passes faster."""
        tolerance_us = 2 * self.margin_ms * 1000 * (changes + 1) if self.margin_ms else 0
        for epoch in {one.limit.epoch for one in self.granted}:
            found = sorted([one for one in self.granted if one.limit.epoch == epoch], key=lambda one: one.at_ms)
            limit = found[0].limit
            if limit.interval_us is None or limit.burst is None:
                continue
            largest = max(one.cost for one in found) if limit.unit else 0
            ahead_us, last_ms = 0, 0
            for at_ms, _, cost in found:
                ahead_us = max(ahead_us - (at_ms - last_ms) * 1000, 0) + cost * limit.interval_us
                last_ms = at_ms
                most_us = max(limit.burst, largest) * limit.interval_us + tolerance_us + self._forgotten_us[epoch]
                assert ahead_us <= most_us, f"{ahead_us / limit.interval_us} units at {at_ms}, of {limit}"

    def used(self, from_ms: int, until_ms: int) -> int:
        """Return the number of units that were used in a time."""
        return sum(one.cost for one in self.granted if from_ms <= one.at_ms < until_ms)
