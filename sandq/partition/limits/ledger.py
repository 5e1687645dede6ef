"""Who may have what of a group's limits: the ledger of the home partition, partition 0.

For each other partition it has an upper bound of what that one holds. To take from a partition it is told of less, and
only when it has said that it holds no more than that is the bound lowered; to give to one the bound is raised first,
and then it is told. What nobody else may have is the home partition's. So the sum is never above the limits, whatever
is lost, late or repeated, and whoever leads: each thing told has a *version*, the index of the entry that decided it,
and a partition goes by the newest one that it was told.

Limits that were set for a topic that had partitions begin with nobody knowing what those have in flight: until each of
them was heard of, nothing is given out.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from sandq.model.group_limits import GroupLimit
from sandq.partition.limits.allowance import Allowance
from sandq.partition.limits.buckets import Part, merge, owed_us, split


class Share(NamedTuple):
    """What another partition may have."""

    version: int = 0
    """Of what it was told last; 0: nothing yet."""
    target: int = 0
    """Messages in flight that it is to have, once nobody else has them; the home partition leaves them alone."""
    in_flight: int = 0
    """That it was told it may have."""
    held: int = 0
    """That it has at most."""
    units: int = 0
    """Of the rate, that it was told it may have."""
    held_units: int = 0
    """That it has at most."""
    given_us: int = 0
    """What the units owe that it is given with this version."""
    confirmed: bool = True
    """It has said that it goes by this version."""


NEW = Share()


class Confirmed(NamedTuple):
    """What a partition says of itself."""

    partition: int
    version: int
    in_flight: int
    """Messages that it has in flight."""
    returned_us: int
    """What the units owe that it gave back."""


class LedgerStatus(NamedTuple):
    """An immutable copy of a ledger."""

    limit: GroupLimit
    shares: dict[int, Share]
    """By partition."""
    unheard: tuple[int, ...]
    """Partitions of which it is not known yet what they have."""
    own_in_flight: int
    own_units: int

    @property
    def given(self) -> tuple[int, int]:
        """Messages in flight, and units of the rate, that other partitions have at most."""
        shares = self.shares.values()
        return sum([share.held for share in shares]), sum([share.held_units for share in shares])


class Ledger:
    """Of one group. `own` is what is left for the home partition."""

    def __init__(self, own: Allowance) -> None:
        self.own = own
        self.limit = own.limit
        self.shares: dict[int, Share] = {}
        self.look()

    def put(self, partition: int, share: Share) -> None:
        """Have a partition have a share; `look` comes after the last."""
        self.shares[partition] = share

    def unheard(self) -> list[int]:
        """Partitions of which it is not known yet what they have."""
        return [partition for partition in range(1, self.limit.partitions) if partition not in self.shares]

    def look(self) -> None:
        """Let the home partition have what is left of the messages in flight."""
        own, limit = self.own, self.limit
        own.is_waiting = len([one for one in self.shares if one < limit.partitions]) < limit.partitions - 1
        if limit.max_in_flight is not None:
            others = sum([max(share.target, share.held) for share in self.shares.values()])
            own.in_flight = max(limit.max_in_flight - others, 0)

    def status(self) -> LedgerStatus:
        """A copy."""
        unheard = tuple(self.unheard()) if self.own.is_waiting else ()
        return LedgerStatus(self.limit, dict(self.shares), unheard, self.own.in_flight, self.own.part.units)

    def confirm(self, told: Iterable[Confirmed], now_us: int) -> set[int]:
        """Lower the bounds by what partitions say. The partitions whose share has changed."""
        changed = set()
        for partition, version, in_flight, returned_us in told:
            share = self.shares.get(partition)
            if share is None:
                if 1 <= partition < self.limit.partitions and version == 0:
                    # It goes by these limits, and may have nothing new: it has what it had.
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
        self.look()
        return changed

    def share_out(self, targets: Iterable[Sequence[int]], own_leased: int, version: int, now_us: int) -> set[int]:
        """Have partitions have so much, each `(partition, messages in flight, units)`, as far as it is there. One that
        has not said yet that it goes by what it was told last keeps that. The partitions whose share has changed."""
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
        self.look()
        return changed

    def _open(self, partition: int) -> Share | None:
        """The share of a partition that may get another one."""
        share = self.shares.get(partition)
        if share is None and partition >= max(self.limit.partitions, 1):
            share = NEW  # it came later, and knew of the limits before it had anything
        return share if share is not None and share.confirmed else None

    def _aimed(self, share: Share, in_flight: int, units: int, now_us: int) -> Share:
        """A share that is to have so much: of messages in flight no more than it has, of the rate what there is."""
        target = min(in_flight, self.limit.max_in_flight or 0)
        more = min(units - share.units, 0 if self.own.is_waiting else self.own.part.units)
        share = share._replace(target=target, in_flight=min(share.in_flight, target), units=share.units + more)
        if more <= 0:
            return share
        self.own.part, given = split(self.limit, self.own.part, self.own.part.units - more, now_us)
        return share._replace(held_units=share.units, given_us=owed_us(self.limit, given, now_us))

    def _raise(self, own_leased: int) -> None:
        """Give to whoever is to have more, as far as nobody has it."""
        left = (self.limit.max_in_flight or 0) - own_leased - sum([share.held for share in self.shares.values()])
        for partition, share in list(self.shares.items()):
            if share.confirmed and share.in_flight < share.target:
                # What it still has beyond what it was told counts already.
                raised = min(share.target, share.held + max(left, 0))
                if raised > share.in_flight:
                    left -= max(raised - share.held, 0)
                    self.put(partition, share._replace(in_flight=raised, held=max(share.held, raised)))
