"""Renews the leases of a consumer that has restarted: the consumer gets the messages again, and its old tokens become
invalid.

A renewal does not count as an attempt, so that a rolling restart uses up no attempts. But a message may crash its
consumer again and again. So a lease counts its renewals. After too many of them it expires, which counts as an attempt.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from sandq.model import offsets
from sandq.model.errors import ConsumerFenced
from sandq.model.limits import FIXED
from sandq.partition import commands as c
from sandq.partition.base.step import Step
from sandq.partition.groups.group import Group
from sandq.partition.groups.group_state import GroupState
from sandq.partition.leasing.settlement import LeaseSettlement
from sandq.partition.records.leases import Lease
from sandq.partition.shared_state import SharedState

RECLAIMED_LEASES: Final = 256
"""Maximum number of leases that one command renews."""
RECLAIMED_RANGES: Final = 20_000
"""A command renews no more leases after this number of ranges, because each range is written."""


RECLAIMS_MOST: Final = FIXED.lease_reclaims
"""Maximum number of times that a lease is renewed."""


class Reclaimed(NamedTuple):
    """The result of renewing the leases of a consumer."""

    renewed: int
    left: int
    """Number of leases that are left for the next command."""
    ended: int
    """Number of leases that expired instead, because they were renewed too often."""


class LeaseReclaim:
    def __init__(self, shared: SharedState, group_state: GroupState, settlement: LeaseSettlement) -> None:
        self._shared = shared
        self._groups = group_state.groups
        self._leases = group_state.leases
        self._settlement = settlement

    def reclaim(self, step: Step, command: c.Reclaim) -> Reclaimed:
        """Renew the leases that the consumer holds under lower epochs, in the order of their grants. Raise
        UnknownGroup, or ConsumerFenced if a later epoch exists."""
        group = self._groups.named(command.group)
        held = self._leases.live_of(command.group, command.consumer)
        check_newest(command.group, command.consumer, command.epoch, max([lease.epoch for lease in held], default=0))
        stale = [lease for lease in held if lease.epoch < command.epoch]
        renewed = ended = ranges = 0
        most = min(RECLAIMED_LEASES, FIXED.entry_grants - step.grants)
        for lease in stale[: max(most, 0)]:
            if ranges >= RECLAIMED_RANGES or self._shared.is_budget_spent:
                break
            if lease.reclaims >= RECLAIMS_MOST:
                self._settlement.expire_lease(step, lease, given_up(lease))
                if not lease.ended:
                    break  # the next entry ends the rest of the lease
                ended += 1
            else:
                self._renew(step, group, lease, offsets.token(step.index, step.grants), command)
                step.grants += 1
                renewed += 1
            ranges += len(lease.ranges)
        return Reclaimed(renewed, len(stale) - renewed - ended, ended)

    def _renew(self, step: Step, group: Group, lease: Lease, token: int, command: c.Reclaim) -> None:
        """Grant the live messages of a lease again under a new token, and revoke the old lease."""
        live = lease.live
        renewed = Lease(
            token,
            lease.group_id,
            lease.consumer,
            lease.attempt,
            step.now_ms + command.lease_ms,
            lease.due_ms,
            list(lease.select(live)),
            step.now_ms,
            lease.since_ms,
            lease.kept,
            lease.past,
            _merged(lease, live),
        )
        renewed.snoozes, renewed.epoch, renewed.handlers = lease.snoozes, command.epoch, lease.handlers
        renewed.retry = lease.retry
        # One of the messages may have crashed the consumer, so the next consumer reports each before it begins it.
        renewed.crashes = max(lease.crashes, 1) if lease.handlers else 0
        renewed.reclaims = lease.reclaims + 1
        self._leases.revoke(step, lease)
        self._leases.add(step, group, renewed)


def given_up(lease: Lease) -> str:
    """Return the error of messages whose consumer restarted too often without settling them."""
    return f"consumer {lease.consumer!r} was started again {lease.reclaims + 1} times and has not settled it"


def check_newest(group: str, consumer: str, epoch: int, newest: int) -> None:
    """Raise ConsumerFenced if the consumer has a later epoch than the caller."""
    if newest > epoch:
        raise fenced(group, consumer, newest)


def fenced(group: str, consumer: str, epoch: int) -> ConsumerFenced:
    """Return the error for an older process of a consumer. `epoch`: epoch of the newer process that has subscribed."""
    return ConsumerFenced(
        f"group {group!r}: another process has subscribed as consumer {consumer!r} since, and holds what this one "
        "held; give each process that runs at the same time a consumer id of its own",
        group=group,
        consumer=consumer,
        epoch=epoch,
    )


def _merged(lease: Lease, live: int) -> list[tuple[bytes, int]]:
    """Return (ready queue, number of messages) for the live messages of a lease, in order."""
    queues: list[tuple[bytes, int]] = []
    if lease.queues:
        for queue, count in lease.count_by_queue(live):
            if queues and queues[-1][0] == queue:
                queues[-1] = queue, queues[-1][1] + count
            else:
                queues.append((queue, count))
    return queues
