"""Divide the limits of one group among the partitions of its topic, on the leader of the home partition (partition 0).

A named limit is divided among its members, groups in partitions of any topics, in the same way: the numbers of members
take the place of partitions, and the home has no messages of its own.

The leaders of the other partitions report their state. If the home partition needs a report earlier, it asks for the
report. The frames are `LIMITS_ASKED` and `LIMITS_TOLD` (`protocol.peer`). Each frame may be lost or late. So the ledger
(`partition.limits.ledger`) alone says which shares are current. `LimitHome` does no I/O, so tests can run it with
random reports.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Sequence
from typing import Any, Final, NamedTuple

from sandq.broker.delivery.limit_plan import LimitPlan, PartitionUse
from sandq.model.group_limits import limit_used, next_epoch
from sandq.model.row_fields import COUNT, integer, is_name
from sandq.partition import commands as c
from sandq.partition.groups.group_limits import HOME
from sandq.partition.limits.allowance import Definition
from sandq.partition.limits.ledger import LedgerStatus, Share
from sandq.partition.limits.limit_checks import DEBT_US, RISING_MOST, is_allowance, row_of
from sandq.partition.partition_status import Status

ASK_MS: Final = 200
"""Time in ms before an unanswered request is repeated, and before a starved partition reports again."""
FRESH_MS: Final = 3 * ASK_MS
"""Time in ms for which the report of a starved partition is valid."""
LEFT: Final = -1
"""Epoch in the report of a group that no longer uses a named limit."""


def _is_limit(name: Any) -> bool:
    """Return whether this is the name of a named limit, or empty."""
    return name == "" or is_name(name)


_is_report: Final = row_of(
    *(is_name, _is_limit, COUNT, integer(LEFT, RISING_MOST)), *[COUNT] * 3, DEBT_US, *[COUNT] * 4
)


class Offer(NamedTuple):
    """A share that the home partition sends to another partition: the fields of an item of `AllowLimit`, and the name
    of the limit."""

    group: str
    assigned: int
    """Epoch of the group's row in the settings of its topic."""
    epoch: int
    """Epoch of the limits. For the limits of a group, equal to `assigned`."""
    version: int
    in_flight: int
    """Number of messages that the partition may have in flight."""
    units: int
    given_us: int
    definition: tuple[int | None, int | None, int | None, str | None] | None = None
    """The fields of a `Definition`. None if the limits are the group's own."""
    pause: tuple[int, int, str] | None = None
    """The fields of the `LimitPause`. None if the limit was never paused."""
    limit: str = ""
    """Name of the named limit. Empty if the limits are the group's own."""

    @classmethod
    def parse(cls, row: Any) -> Offer | None:
        """Parse an offer from another node. Return None if the offer is malformed."""
        if not isinstance(row, tuple) or not row or not _is_limit(row[-1]) or not is_allowance(row[:-1]):
            return None
        return cls(*row)


class Report(NamedTuple):
    """The state of one partition, as reported by its leader."""

    group: str
    limit: str
    """Name of the named limit. Empty if the limits are the group's own."""
    assigned: int
    """Epoch of the group's row in the settings of its topic."""
    epoch: int
    """Epoch of the limits that the partition applies. 0 if it does not know the definition of the named limit. `LEFT`
    if the group no longer uses the named limit."""
    version: int
    leased: int
    """Number of messages in flight."""
    may_have: int
    """Maximum number of messages in flight, according to the share that the partition applies."""
    returned_us: int
    used: int
    wants_in_flight: int
    wants_units: int
    """Number of units of the rate that the next due message needs. 0 if it does not wait for the rate."""
    pause: int = 0
    """Version of the pause of the named limit that the partition applies."""

    @property
    def is_starved(self) -> bool:
        """True if messages of the partition wait for the limits."""
        return self.wants_in_flight > 0 or self.wants_units > 0

    @classmethod
    def parse(cls, row: Any) -> Report | None:
        """Parse a report from another node. Return None if the report is malformed."""
        return cls(*row) if _is_report(row) else None


def report_of(status: Status, group: str, is_hungry: bool, now_ms: int) -> Report | None:
    """Return the report of a partition about a group; None if the group has no limits there.

    `is_hungry`: True if a consumer would take more messages."""
    allowance = None if status.limits is None else status.limits.allowances.get(group)
    if allowance is None:
        return None
    leased, wants_in_flight, wants_units = 0, 0, 0
    found = status.groups.get(group)
    if found is not None:
        leased = found.leased
        if is_hungry and found.limit is not None:
            waits_for_acks, wants_units = found.limit.holds_up(now_ms)
            wants_in_flight = max(found.ready, 1) if waits_for_acks else 0
    return Report(
        group,
        allowance.name or "",
        allowance.assigned,
        allowance.epoch,
        allowance.version,
        leased,
        allowance.in_flight or 0,
        allowance.returned_us,
        allowance.used,
        wants_in_flight,
        wants_units,
        allowance.pause.version,
    )


class LimitHome:
    """The home partition's view of one group, while this node leads the home partition."""

    def __init__(self) -> None:
        self._plan = LimitPlan()
        self._reports: dict[int, tuple[Report, int]] = {}
        """Last report and its time in ms, by partition."""
        self._asked: dict[int, tuple[int, int, int, int]] = {}
        """Last request by partition: (epoch, version, version of the pause, time of the request in ms)."""

    def heard(self, partition: int, report: Report, now_ms: int) -> bool:
        """Record the report of a partition. Return True if it differs from the last report, or if the last report was
        not recent."""
        before, reported_ms = self._reports.get(partition, (None, 0))
        self._reports[partition] = report, now_ms
        return report != before or not 0 <= now_ms - reported_ms < FRESH_MS

    def decide(self, group: str, ledger: LedgerStatus, own: Report, now_ms: int) -> c.ShareLimit | None:
        """Return the command that changes the ledger; None if nothing changes."""
        limit = ledger.limit
        if limit.is_named:
            self._forget_others(ledger)
        confirmed, shares = self._confirmed(ledger)
        targets: list[tuple[int, int, int]] = []
        if not ledger.unheard:
            wanted = self._plan.plan(limit, self._uses(ledger, shares, own, now_ms), now_ms)
            targets = [(partition, *target) for partition, target in wanted.items()]
        if not targets and not confirmed and not _may_raise(ledger, shares, own):
            return None
        return c.ShareLimit(group, limit.epoch, confirmed, targets)

    def _forget_others(self, ledger: LedgerStatus) -> None:
        """Forget what is known of members of a named limit that have left."""
        gone = [number for number in self._reports if number not in ledger.members]
        for number in gone:
            del self._reports[number]
            self._asked.pop(number, None)
        if gone:
            self._plan = LimitPlan()

    def gone(self, ledger: LedgerStatus) -> list[int]:
        """Return the members of a named limit that have reported that they no longer use it."""
        return [
            number for number in ledger.members if number in self._reports and self._reports[number][0].epoch == LEFT
        ]

    def _confirmed(self, ledger: LedgerStatus) -> tuple[list[tuple[int, int, int, int]], dict[int, Share]]:
        """Return the confirmations that are in reports and not in the ledger yet, and the shares after these
        confirmations.

        Each confirmation is an item of `ShareLimit`: (partition, version, number of leased messages,
        `returned_us`)."""
        limit, shares = ledger.limit, dict(ledger.shares)
        confirmed: list[tuple[int, int, int, int]] = []
        for partition, (report, _) in self._reports.items():
            if report.epoch != limit.epoch:
                continue
            share = shares.get(partition)
            if share is None:
                # The first report since the limits were set: the partition has no share.
                if partition in ledger.unheard and report.version == 0:
                    confirmed.append((partition, 0, report.leased, 0))
            elif report.version == share.version:
                # The partition applies this share, so it leases no further messages beyond the share.
                held = min(share.held, max(share.in_flight, report.leased))
                if not share.confirmed or held < share.held:
                    confirmed.append((partition, report.version, report.leased, report.returned_us))
                shares[partition] = share._replace(held=held, held_units=share.units, confirmed=True)
        return confirmed, shares

    def _uses(
        self, ledger: LedgerStatus, shares: dict[int, Share], own: Report, now_ms: int
    ) -> dict[int, PartitionUse]:
        """Return the use of the limits in each partition, according to its last report.

        If the report of a partition is missing or older than its share, count all messages that it may have in flight
        as leased."""
        uses = {
            HOME: PartitionUse(
                own.leased, ledger.own_in_flight, ledger.own_units, own.used, own.wants_in_flight, own.wants_units
            )
        }
        for partition in sorted(shares.keys() | self._reports.keys()):
            share = shares.get(partition, Share())
            report, reported_ms = self._reports.get(partition, (None, 0))
            if report is None or report.epoch != ledger.limit.epoch or not share.confirmed:
                held = PartitionUse(share.held, share.target, share.units, -1, is_open=share.confirmed)
                uses[partition] = held
                continue
            is_fresh = 0 <= now_ms - reported_ms < FRESH_MS
            uses[partition] = PartitionUse(
                report.leased,
                share.target,
                share.units,
                report.used,
                report.wants_in_flight if is_fresh else 0,
                report.wants_units if is_fresh else 0,
            )
        return uses

    def asks(
        self, ledger: LedgerStatus, own: Report, now_ms: int, leaving: Container[int] = ()
    ) -> Iterator[tuple[int, Offer]]:
        """Yield each partition or member to ask for its state, with the share to send it.

        Skip partitions that were asked recently. `leaving`: members that must be asked whether they have left."""
        definition = Definition.of(ledger.limit) if ledger.limit.is_named else None
        is_any_starved = own.is_starved or self.is_any_starved(now_ms)
        unpaused = set(self.unpaused(ledger))
        all_shares = {partition: Share(confirmed=False) for partition in ledger.unheard} | ledger.shares
        for partition, share in all_shares.items():
            epoch, version = ledger.limit.epoch, share.version
            is_needed = self._needs_report(partition, share, epoch, is_any_starved, now_ms)
            if not is_needed and partition not in leaving and partition not in unpaused:
                continue
            asked, offered = self._asked.get(partition), (epoch, version, ledger.pause.version)
            if asked is None or asked[:3] != offered or not 0 <= now_ms - asked[3] < ASK_MS:
                self._asked[partition] = *offered, now_ms
                member = ledger.members.get(partition)
                yield (
                    partition,
                    Offer(
                        group=own.group if member is None else member.group,
                        assigned=epoch if member is None else member.assigned,
                        epoch=epoch,
                        version=version,
                        in_flight=share.in_flight,
                        units=share.units,
                        given_us=share.given_us,
                        definition=definition,
                        pause=ledger.pause if ledger.pause.version else None,
                        limit="" if member is None else own.group,
                    ),
                )

    def _needs_report(self, partition: int, share: Share, epoch: int, is_any_starved: bool, now_ms: int) -> bool:
        """Return whether the home partition needs a newer report of a partition with this share."""
        report, reported_ms = self._reports.get(partition, (None, 0))
        is_reported = report is not None and (report.epoch, report.version) == (epoch, share.version)
        if not share.confirmed:
            return not is_reported  # a report that has arrived will soon be recorded in the ledger
        if report is not None and report.epoch != epoch:
            return report.is_starved  # a new member that needs the definition of the limit
        # The share is confirmed. Ask the partition only if it could give something to a starved partition.
        could_give = is_any_starved and (share.held > 0 or share.held_units > 0)
        is_fresh = is_reported and 0 <= now_ms - reported_ms < ASK_MS
        return could_give and not is_fresh

    def needs_recheck(self, ledger: LedgerStatus, own: Report, now_ms: int) -> bool:
        """Return whether the home partition must be checked again after `ASK_MS`, even if nothing changes."""
        if ledger.unheard or any([not share.confirmed for share in ledger.shares.values()]):
            return True
        if self.unpaused(ledger):
            return True
        return own.is_starved or self.is_any_starved(now_ms)

    def unpaused(self, ledger: LedgerStatus) -> list[int]:
        """Return the members of a named limit that have not reported that they apply its pause, or its end."""
        version = ledger.pause.version
        if not version:
            return []
        return [
            number
            for number in ledger.members
            if number not in self._reports or self._reports[number][0].pause < version
        ]

    def is_any_starved(self, now_ms: int) -> bool:
        """Return whether another partition is starved, according to a report that is still valid."""
        return any(
            [
                report.is_starved
                for report, reported_ms in self._reports.values()
                if 0 <= now_ms - reported_ms < FRESH_MS
            ]
        )


def _may_raise(ledger: LedgerStatus, shares: dict[int, Share], own: Report) -> bool:
    """Return whether the share of at least one other partition can be raised now: the share is below its target, and
    there is free capacity."""
    if ledger.unheard or ledger.limit.max_in_flight is None:
        return False
    # Part of `max_in_flight` that no partition uses.
    left = ledger.limit.max_in_flight - own.leased - sum([share.held for share in shares.values()])
    return left >= 0 and any(
        [
            share.confirmed and share.in_flight < share.target and max(left, share.held - share.in_flight) > 0
            for share in shares.values()
        ]
    )


def newer(status: Status, offers: Sequence[Offer]) -> list[Offer]:
    """Return the offers whose share or pause is newer than the one that the partition applies."""
    allowances = status.limits.allowances if status.limits is not None else {}
    found = []
    for offer in offers:
        allowance = allowances.get(offer.group)
        if allowance is None or (allowance.assigned, allowance.name or "") != (offer.assigned, offer.limit):
            continue
        is_later = offer.pause is not None and offer.pause[0] > allowance.pause.version
        if is_later or (allowance.epoch, allowance.version) < (offer.epoch, offer.version):
            found.append(offer)
    return found


def left(status: Status, offer: Offer) -> Report | None:
    """Return the report that a group no longer uses a named limit; None if it uses the limit, or may do so soon."""
    if not offer.limit or limit_used(status.settings, offer.group) == (offer.assigned, offer.limit):
        return None
    if next_epoch(status.settings) <= offer.assigned:
        return None  # these settings are older than the use of the limit
    return Report(offer.group, offer.limit, offer.assigned, LEFT, *[0] * 7)
