"""Check the order in which the messages of a priority or fair topic were leased for the first time."""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from itertools import accumulate
from typing import NamedTuple

from sandq.broker.replication.replica import Delivery
from sandq.model import offsets
from sandq.model.batch import Batch, Column
from tests.support.simulation.oracle import messages_of


class Given(NamedTuple):
    """A message that was leased for the first time."""

    token: int
    at_ms: int
    """Time of the lease, in ms: the latest possible time if it is not known exactly."""
    offset: bytes
    payload: bytes
    tenant: bytes
    priority: int


class Order:
    """Checks the order of one partition.

    If two messages of a tenant are stored and due, the message with the better rank must be leased first."""

    def __init__(self, ageing_ms: int | None, lease_ms: int, margin_ms: int) -> None:
        """`margin_ms`: maximum difference between the clocks of two nodes, in ms."""
        self._ageing_ms, self._lease_ms, self._margin_ms = ageing_ms, lease_ms, margin_ms
        self._given: dict[str, list[Given]] = defaultdict(list)
        self._tokens: dict[str, set[int]] = defaultdict(set)
        self.changed: set[bytes] = set()
        """Payloads whose priority was changed at an unknown time."""
        self.overtaken = 0
        """Number of times that a message was leased before one with a smaller offset."""

    def delivered(self, group: str, delivery: Delivery) -> None:
        if delivery.returning or delivery.token in self._tokens[group]:
            return
        self._tokens[group].add(delivery.token)
        at_ms = delivery.deadline_ms - self._lease_ms
        ranks = [one for piece in delivery.pieces for one in _ranks(Batch.parse(piece.batch), piece.live)]
        for (offset, payload), (tenant, priority) in zip(messages_of(delivery), ranks, strict=True):
            self._given[group].append(Given(delivery.token, at_ms, offset, payload, tenant, priority))

    def check(self) -> None:
        """Check the order of all messages."""
        for group, given in self._given.items():
            given.sort(key=lambda one: one.token)
            # The partition ranks due messages in the order of the log. When a message was leased, at least all offsets
            # up to its own had been ranked.
            ranked_by: dict[int, bytes] = {}
            ranked = b""
            for one in given:
                ranked = ranked_by[one.token] = max(ranked, one.offset)
            by_tenant: dict[bytes, list[Given]] = defaultdict(list)
            for one in given:
                if one.payload not in self.changed:
                    by_tenant[one.tenant].append(one)
            for found in by_tenant.values():
                self._check_tenant(group, found, [ranked_by[one.token] for one in found])

    def _check_tenant(self, group: str, given: list[Given], ranked: list[bytes]) -> None:
        # All messages that were stored and due had been ranked, too.
        due = [self._due_by(one) for one in given]
        reached = list(accumulate(map(max, ranked, due), max))
        for at, one in enumerate(given):
            index = offsets.unpack(one.offset).index
            for place in range(bisect_left(reached, one.offset, hi=at), at):
                before = given[place]
                if one.offset <= ranked[place] or (one.offset <= due[place] and index < before.token >> 16):
                    assert self._rank(before) < self._rank(one), f"{before} came before {one} in {group}"
                    self.overtaken += before.offset > one.offset

    def _due_by(self, given: Given) -> bytes:
        """Return the offset up to which messages were certainly due when `given` was leased."""
        return offsets.pack(max(given.at_ms - self._margin_ms, 0), 0, 0, 0)

    def _rank(self, one: Given) -> tuple[int, int, bytes]:
        """Return the rank of a message. The message with the smallest rank is first."""
        if self._ageing_ms is None:
            return one.priority, one.priority, one.offset
        return offsets.deliver_ms(one.offset) + one.priority * self._ageing_ms, one.priority, one.offset


def _ranks(batch: Batch, live: list[tuple[int, int]] | None) -> list[tuple[bytes, int]]:
    """Return the tenant and the priority of each message."""
    tenants, priorities = batch.bytes_column(Column.TENANT), batch.int_column(Column.PRIORITY)
    chosen = range(batch.count) if live is None else [first + at for first, count in live for at in range(count)]
    return [((tenants and tenants[place]) or b"default", (priorities and priorities[place]) or 0) for place in chosen]
