"""Divides a group's limits over partitions. The home partition, partition 0, keeps the ledger.

For each other partition, the ledger keeps an upper bound of its holdings. To take something away, the home partition
sends a lower share, and lowers the bound only after the partition has confirmed it. To add something, it raises the
bound first, and then sends the share. The home partition itself uses the rest of the limits. So all partitions together
never exceed the limits, even if messages between nodes are lost, late or repeated, or leaders change. Each share has a
*version*: the index of the entry that decided the share. A partition applies the newest version that it has received.

If limits are set for a topic that already has several partitions, the ledger does not know their messages in flight.
Nothing is leased or shared out until all of these partitions have reported.

The ledger of a named limit is in the partition of the topic `sandq.limits`. Its shares are of *members*: groups in
partitions of any topics. A member gets a number when it reports for the first time, and the ledger names it by this
number in the place of a partition. A change of the limit keeps the members, and all of them must report again.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import NamedTuple

from sandq.model.group_limits import GroupLimit
from sandq.model.limits import FIXED
from sandq.partition.limits.allowance import NO_PAUSE, Allowance, LimitPause
from sandq.partition.limits.buckets import Part, merge, owed_us, split


class Share(NamedTuple):
    """The share of another partition."""

    version: int = 0
    """Version of the last share that was sent. 0 if none was sent yet."""
    target: int = 0
    """Number of messages in flight that the partition will get, once no other partition holds them. The home partition
    leaves them free."""
    in_flight: int = 0
    """Number of messages in flight in the last share that was sent."""
    held: int = 0
    """Upper bound of the messages in flight that the partition may have now."""
    units: int = 0
    """Units of the rate in the last share that was sent."""
    held_units: int = 0
    """Upper bound of the units of the rate that the partition may have now."""
    given_us: int = 0
    """Debt of the units that this version adds, in µs."""
    confirmed: bool = True
    """Whether the partition has confirmed this version."""


NEW = Share()


class Member(NamedTuple):
    """A group in a partition that uses a named limit."""

    raft_group: int
    """Raft group of the partition. Raft groups of deleted partitions are never used again."""
    assigned: int
    """Epoch of the group's row in the settings of its topic. If the group ceases to use the limit and uses it again, it
    is another member."""
    group: str


class Confirmed(NamedTuple):
    """The report of a partition about its share."""

    partition: int
    """Number of the partition, or of the member."""
    version: int
    in_flight: int
    """Number of messages that the partition has in flight."""
    returned_us: int
    """Debt of the units that the partition returned, in µs."""


class LedgerStatus(NamedTuple):
    """An immutable copy of a ledger."""

    limit: GroupLimit
    shares: dict[int, Share]
    """Shares by partition."""
    unheard: tuple[int, ...]
    """Partitions that have not reported yet what they hold."""
    own_in_flight: int
    own_units: int
    members: dict[int, Member]
    """Members of a named limit, by number. Empty for the limits of a group."""
    numbers: dict[Member, int]
    """Numbers of these members."""
    pause: LimitPause = NO_PAUSE
    """Pause of the named limit."""

    @property
    def given(self) -> tuple[int, int]:
        """Upper bound of the holdings of all other partitions: messages in flight, and units of the rate."""
        shares = self.shares.values()
        return sum([share.held for share in shares]), sum([share.held_units for share in shares])


class Ledger:
    """The ledger of one group, or of a named limit. `own`: the rest of the limits, for the home partition."""

    def __init__(self, own: Allowance, members: dict[int, Member] | None = None) -> None:
        self.own = own
        self.limit = own.limit
        self.shares: dict[int, Share] = {}
        self.members = members or {}
        """Members of a named limit, by number. Empty for the limits of a group."""
        self.distribute()

    @property
    def _expected(self) -> Collection[int]:
        """Partitions or members that must report before anything is leased."""
        return self.members if self.limit.is_named else range(1, self.limit.partitions)

    def join(self, joined: Iterable[Member], first: int) -> list[int]:
        """Add members of a named limit, with numbers from `first` on. Return their numbers. Members that the ledger has
        already are not added, and no more than `limit_members` are."""
        found, there = list[int](), set(self.members.values())
        for member in joined:
            if self.limit.is_named and member not in there and len(self.members) < FIXED.limit_members:
                self.members[first + len(found)] = member
                found.append(first + len(found))
                there.add(member)
        return found

    def leave(self, gone: Iterable[int], now_us: int) -> list[int]:
        """Remove members of a named limit. Return the numbers of those that were there.

        Their messages in flight no longer count. Their units return, with a debt of a whole window, as it is unknown
        how many they have used."""
        found = []
        for number in gone:
            if self.members.pop(number, None) is None:
                continue
            found.append(number)
            share = self.shares.pop(number, NEW)
            if share.held_units:
                back = Part(share.held_units, now_us + self.limit.window_us)
                self.own.part = merge(self.limit, self.own.part, back, now_us)
        return found

    def put(self, partition: int, share: Share) -> None:
        """Set the share of a partition. Call `distribute` after the last share is set."""
        self.shares[partition] = share

    def unheard(self) -> list[int]:
        """Return the partitions that have not reported yet what they hold."""
        return [partition for partition in self._expected if partition not in self.shares]

    def distribute(self) -> None:
        """Recompute how many messages in flight are left for the home partition."""
        own, limit = self.own, self.limit
        own.is_waiting = any([one not in self.shares for one in self._expected])
        if limit.max_in_flight is not None:
            others = sum([max(share.target, share.held) for share in self.shares.values()])
            own.in_flight = max(limit.max_in_flight - others, 0)

    def status(self) -> LedgerStatus:
        """Return an immutable copy."""
        unheard = tuple(self.unheard()) if self.own.is_waiting else ()
        return LedgerStatus(
            limit=self.limit,
            shares=dict(self.shares),
            unheard=unheard,
            own_in_flight=self.own.in_flight,
            own_units=self.own.part.units,
            members=dict(self.members),
            numbers={member: number for number, member in self.members.items()},
            pause=self.own.pause,
        )

    def confirm(self, reports: Iterable[Confirmed], now_us: int) -> set[int]:
        """Lower the upper bounds according to the reports of partitions. Return the partitions whose share has
        changed."""
        changed = set()
        for partition, version, in_flight, returned_us in reports:
            share = self.shares.get(partition)
            if share is None:
                if partition in self._expected and version == 0:
                    # The partition applies these limits, and may lease nothing new: it holds what it had in flight.
                    self.put(partition, Share(held=in_flight if self.limit.max_in_flight is not None else 0))
                    changed.add(partition)
                continue
            if version != share.version:
                continue
            back = share.held_units - share.units
            if back:
                self.own.part = merge(self.limit, self.own.part, Part(back, now_us + returned_us), now_us)
            held = min(share.held, max(share.in_flight, in_flight))
            lower = share._replace(held=held, held_units=share.units, given_us=0, confirmed=True)
            if lower != share:
                self.put(partition, lower)
                changed.add(partition)
        self.distribute()
        return changed

    def share_out(self, targets: Iterable[Sequence[int]], own_leased: int, version: int, now_us: int) -> set[int]:
        """Set the targets of partitions, each `(partition, messages in flight, units)`, and share out free capacity.

        If a partition has not confirmed its last share, its share does not change. Return the partitions whose share
        has changed.
        """
        before = dict(self.shares)
        for partition, in_flight, units in targets:
            share = self._open(partition)
            if share is not None:
                self.put(partition, self._aimed(share, in_flight, units, now_us))
        if not self.own.is_waiting:
            self._raise(own_leased)
        changed = {partition for partition, share in self.shares.items() if share != before.get(partition)}
        for partition in changed:
            share, was = self.shares[partition], before.get(partition, NEW)
            if (share.in_flight, share.units) != (was.in_flight, was.units):
                self.put(partition, share._replace(version=version, confirmed=False))
        self.distribute()
        return changed

    def _open(self, partition: int) -> Share | None:
        """Return the share of a partition. None if the share may not be changed now."""
        share = self.shares.get(partition)
        if share is None and not self.limit.is_named and partition >= max(self.limit.partitions, 1):
            # The partition was added after the limits were set, so it has no messages that the ledger does not know: it
            # needs no report before its first share.
            share = NEW
        return share if share is not None and share.confirmed else None

    def _aimed(self, share: Share, in_flight: int, units: int, now_us: int) -> Share:
        """Return a share with new targets. Messages in flight can only fall here; `_raise` raises them later. Units
        rise as far as the home partition has free units."""
        target = min(in_flight, self.limit.max_in_flight or 0)
        more = min(units - share.units, 0 if self.own.is_waiting else self.own.part.units)
        share = share._replace(target=target, in_flight=min(share.in_flight, target), units=share.units + more)
        if more <= 0:
            return share
        self.own.part, given = split(self.limit, self.own.part, self.own.part.units - more, now_us)
        return share._replace(held_units=share.units, given_us=owed_us(self.limit, given, now_us))

    def _raise(self, own_leased: int) -> None:
        """Raise shares towards their targets, as far as the limit of messages in flight has free capacity."""
        left = (self.limit.max_in_flight or 0) - own_leased - sum([share.held for share in self.shares.values()])
        if left < 0:
            return  # the limit was lowered: until enough messages are settled, no others may take their place
        # In the order of numbers: the order of `shares` depends on when the replica loaded them from its rows.
        for partition, share in sorted(self.shares.items()):
            if share.confirmed and share.in_flight < share.target:
                # `held` already includes messages that the partition still holds beyond its share.
                raised = min(share.target, share.held + left)
                if raised > share.in_flight:
                    left -= max(raised - share.held, 0)
                    self.put(partition, share._replace(in_flight=raised, held=max(share.held, raised)))
