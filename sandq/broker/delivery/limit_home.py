"""What the leader of a home partition knows of one group's limits, and decides: pure, so that a test can walk it.

It is told by the leaders of the other partitions how they stand, and asks those of which it has to know. All of that
may be lost, or late: what counts is in the ledger (`partition.limits.ledger`). The frames are `LIMITS_ASKED` and
`LIMITS_TOLD` (`protocol.peer`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple

from sandq.broker.delivery.limit_plan import LimitPlan, Standing
from sandq.partition import commands as c
from sandq.partition.groups.group_limits import HOME
from sandq.partition.limits.ledger import LedgerStatus, Share
from sandq.partition.partition_status import Status

ASK_MS: Final = 200
"""Before what was not answered is asked again, and somebody who waits says so again."""
FRESH_MS: Final = 3 * ASK_MS
"""So long it is believed that somebody waits."""


class Asked(NamedTuple):
    """What the home partition lets another one have: an item of `AllowLimit`."""

    group: str
    epoch: int
    version: int
    in_flight: int
    """Messages in flight."""
    units: int
    given_us: int


class Told(NamedTuple):
    """How one partition stands, as its leader tells."""

    group: str
    epoch: int
    version: int
    leased: int
    may_have: int
    """Messages in flight."""
    returned_us: int
    used: int
    wants_in_flight: int
    wants_rate: bool

    @property
    def is_starved(self) -> bool:
        """Whether it waits for the limits."""
        return self.wants_in_flight > 0 or self.wants_rate

    @classmethod
    def parse(cls, row: Any) -> Told | None:
        """From what another node sent; None when it is nothing of the kind."""
        if not isinstance(row, tuple) or [type(part) for part in row] != [str, *[int] * 7, bool]:
            return None
        return cls(*row)


def told_of(status: Status, group: str, is_hungry: bool, now_ms: int) -> Told | None:
    """How a partition stands; None when the group has no limits there. `is_hungry`: some consumer would take more."""
    allowance = None if status.limits is None else status.limits.allowances.get(group)
    if allowance is None:
        return None
    leased, wants_in_flight, wants_rate = 0, 0, False
    found = status.groups.get(group)
    if found is not None:
        leased = found.leased
        if is_hungry and found.limit is not None:
            waits_for_room, wants_rate = found.limit.holds_up(now_ms)
            wants_in_flight = max(found.ready, 1) if waits_for_room else 0
    return Told(
        group,
        allowance.epoch,
        allowance.version,
        leased,
        allowance.in_flight or 0,
        allowance.returned_us,
        allowance.used,
        wants_in_flight,
        wants_rate,
    )


class LimitHome:
    """Of one group, while this node leads the home partition."""

    def __init__(self) -> None:
        self._plan = LimitPlan()
        self._told: dict[int, tuple[Told, int]] = {}
        """By partition, and when."""
        self._asked: dict[int, tuple[int, int, int]] = {}
        """By partition: the epoch and the version that were asked for last, and when."""

    def heard(self, partition: int, told: Told, now_ms: int) -> bool:
        """A partition says how it stands. Whether that is news, and not what it is believed to be anyhow."""
        before, heard_ms = self._told.get(partition, (None, 0))
        self._told[partition] = told, now_ms
        return told != before or not 0 <= now_ms - heard_ms < FRESH_MS

    def decide(self, group: str, ledger: LedgerStatus, own: Told, now_ms: int) -> c.ShareLimit | None:
        """What to write into the ledger; None: nothing."""
        limit, confirmed = ledger.limit, []
        shares = dict(ledger.shares)
        for partition, (told, _) in self._told.items():
            if told.epoch != limit.epoch:
                continue
            share = shares.get(partition)
            if share is None:
                if partition in ledger.unheard and told.version == 0:
                    confirmed.append((partition, 0, told.leased, 0))
            elif told.version == share.version:
                held = min(share.held, max(share.in_flight, told.leased))
                if not share.confirmed or held < share.held:
                    confirmed.append((partition, told.version, told.leased, told.returned_us))
                shares[partition] = share._replace(held=held, held_units=share.units, confirmed=True)
        targets: list[tuple[int, int, int]] = []
        if not ledger.unheard:
            wanted = self._plan.plan(limit, self._standings(ledger, shares, own, now_ms), now_ms)
            targets = [(partition, *target) for partition, target in wanted.items()]
        if not targets and not confirmed and not _may_raise(ledger, shares, own):
            return None
        return c.ShareLimit(group, limit.epoch, confirmed, targets)

    def _standings(self, ledger: LedgerStatus, shares: dict[int, Share], own: Told, now_ms: int) -> dict[int, Standing]:
        standings = {
            HOME: Standing(
                own.leased, ledger.own_in_flight, ledger.own_units, own.used, own.wants_in_flight, own.wants_rate
            )
        }
        for partition in sorted(shares.keys() | self._told.keys()):
            share = shares.get(partition, Share())
            told, heard_ms = self._told.get(partition, (None, 0))
            if told is None or told.epoch != ledger.limit.epoch or not share.confirmed:
                held = Standing(share.held, share.target, share.units, -1, is_open=share.confirmed)
                standings[partition] = held
                continue
            is_fresh = 0 <= now_ms - heard_ms < FRESH_MS
            standings[partition] = Standing(
                told.leased,
                share.target,
                share.units,
                told.used,
                told.wants_in_flight if is_fresh else 0,
                told.wants_rate and is_fresh,
            )
        return standings

    def asks(self, ledger: LedgerStatus, own: Told, now_ms: int) -> Iterator[tuple[int, Asked]]:
        """Whom to ask how they stand, and what they may have. Of those who were asked lately none."""
        is_any_starved = own.is_starved or self.is_any_starved(now_ms)
        open_shares = {partition: Share(confirmed=False) for partition in ledger.unheard} | ledger.shares
        for partition, share in open_shares.items():
            epoch, version = ledger.limit.epoch, share.version
            told, heard_ms = self._told.get(partition, (None, 0))
            is_told = told is not None and (told.epoch, told.version) == (epoch, version)
            is_fresh = is_told and 0 <= now_ms - heard_ms < ASK_MS
            if share.confirmed:
                holds = share.held > 0 or share.held_units > 0
                if is_fresh or not (is_any_starved and holds):
                    continue
            elif is_told:
                continue  # what it said comes into the ledger
            asked = self._asked.get(partition)
            if asked is None or asked[:2] != (epoch, version) or not 0 <= now_ms - asked[2] < ASK_MS:
                self._asked[partition] = epoch, version, now_ms
                yield partition, Asked(own.group, epoch, version, share.in_flight, share.units, share.given_us)

    def is_restless(self, ledger: LedgerStatus, own: Told, now_ms: int) -> bool:
        """Whether to look again before long, though nothing happens."""
        if ledger.unheard or any([not share.confirmed for share in ledger.shares.values()]):
            return True
        return own.is_starved or self.is_any_starved(now_ms)

    def is_any_starved(self, now_ms: int) -> bool:
        """Whether another partition waits for the limits."""
        return any([told.is_starved for told, heard_ms in self._told.values() if 0 <= now_ms - heard_ms < FRESH_MS])


def _may_raise(ledger: LedgerStatus, shares: dict[int, Share], own: Told) -> bool:
    """Whether somebody who is to have more in flight can get some of it now."""
    if ledger.unheard or ledger.limit.max_in_flight is None:
        return False
    left = ledger.limit.max_in_flight - own.leased - sum([share.held for share in shares.values()])
    return any(
        [
            share.confirmed and share.in_flight < share.target and (left > 0 or share.held > share.in_flight)
            for share in shares.values()
        ]
    )


def newer(status: Status, asked: Sequence[Asked]) -> list[Asked]:
    """Those of what a partition is told that it does not go by yet."""
    allowances = status.limits.allowances if status.limits is not None else {}
    found = []
    for one in asked:
        allowance = allowances.get(one.group)
        if allowance is not None and allowance.epoch == one.epoch and allowance.version < one.version:
            found.append(one)
    return found
