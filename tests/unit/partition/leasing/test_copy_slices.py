"""Tests that the budget of an entry also limits work within a lease and within waiting messages."""

from __future__ import annotations

from typing import Any

import pytest

from sandq.model import offsets
from sandq.model.batch import Column, encode
from sandq.model.limits import FIXED
from sandq.model.nack_ends import DEAD, RETRY
from sandq.partition import commands as c
from sandq.partition.base import rows
from sandq.partition.leasing.lease_reclaim import RECLAIMS_MOST
from sandq.partition.leasing.settlement import Part
from sandq.partition.records.leases import Lease
from sandq.partition.shared_state import NOT_YET
from tests.support.partition import in_parts
from tests.support.partition.bench import Bench, T

VALUE = b"0" * (1 << 20)
COUNT = 40
FIT = 16
"""Number of messages that fill the budget of an entry."""
HEADERS = b"\x81\xa1a\x01"
LEASE = c.Lease("g", T + 10_000, (c.Grant("c", COUNT, 60_000),))
CHANGE: dict[int, int | bytes] = {Column.HEADERS.value: HEADERS}


class Zeros(Bench):
    """One lease of many large messages that are small in storage."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.open()
        for _ in range(COUNT // 8):
            self.apply(0, c.Append(encode({Column.VALUE: [VALUE] * 8}, compress=True)))
        self.most = 0
        """Maximum number of bytes that one entry wrote."""

    def do(self, command: c.Command, at: int = 0) -> Any:
        (result,) = self.apply(at, command)
        self.most = max(self.most, self.written)
        self.restart()
        return result

    def one(self, **options: Any) -> Lease:
        lease = super().one(limit=COUNT, **options)
        assert lease.total == COUNT
        return lease

    def is_bounded(self) -> bool:
        return FIXED.entry_copied_bytes <= self.most < FIXED.entry_copied_bytes + len(VALUE) + 20_000


def live(bench: Bench) -> int:
    return sum(lease.live.bit_count() for lease in bench.held())


def test_a_nack_that_changes_headers_is_cut() -> None:
    bench = Zeros()
    token = bench.one().token
    (part,) = bench.do(c.Nack([(token, None, 5, "no", True, CHANGE)]))
    assert isinstance(part, Part) and part.lost is None and bench.is_bounded()
    assert sum(length for _, length in part.left) == live(bench) == COUNT - FIT
    assert bench.do(c.Nack([(token, part.left, 5, "no", True, CHANGE)]))[0].lost is None
    assert in_parts.nack(bench.do, c.Nack([(token, None, 5, "no", True, CHANGE)])) != [None], (
        "a part of the nack was already applied"
    )
    assert live(bench) == 0 and bench.is_bounded()
    assert bench.machine.shared.totals.nacked == 0, "of this process"
    again = [message for lease in bench.lease(limit=COUNT, at=5) for message in bench.messages(lease)]
    while lease := bench.lease(limit=COUNT, at=5):
        again += [message for one in lease for message in bench.messages(one)]
    assert len({message.offset for message in again}) == len(again) == COUNT
    assert {message.fields[Column.HEADERS] for message in again} == {HEADERS}


@pytest.mark.parametrize("end, change", [(DEAD, None), (RETRY, None), (RETRY, CHANGE)])
def test_large_final_nack_is_done_in_parts(end: int, change: dict[int, int | bytes] | None) -> None:
    bench = Zeros(max_attempts=1)
    token = bench.one().token
    nacked = c.Nack([(token, None, None, "no", True, change, end)])
    assert in_parts.nack(bench.do, nacked) == [None]
    assert bench.is_bounded()
    dead = bench.dead()
    assert len({message.offset for message in dead}) == len(dead) == COUNT
    assert {message.fields.get(Column.HEADERS) for message in dead} == {HEADERS if change else None}
    assert not bench.held() and not bench.rows(rows.KEPT)
    assert in_parts.nack(bench.do, nacked) == [[]], "nothing is done twice"
    assert len(bench.dead()) == COUNT


def test_later_nack_of_lease_waits_for_the_earlier_part() -> None:
    bench = Zeros()
    lease = bench.one()
    last = [[offsets.shift(lease.ranges[-1].base, 7), 1]]
    copying, dead = (lease.token, None, 5, "no", True, CHANGE), (lease.token, last, None, "no", True, None, DEAD)
    part, put_off = bench.do(c.Nack([copying, dead]))
    assert (isinstance(part, Part), put_off) == (True, NOT_YET)
    assert in_parts.nack(bench.do, c.Nack([copying, dead]))[1] == last, "the first item already had the message"
    assert not bench.dead()


def test_a_lease_that_runs_out_for_the_last_time_is_cut() -> None:
    bench = Zeros(max_attempts=1)
    lease = bench.one(ms=1000)
    assert bench.do(c.Expire(), 1000) == FIT and bench.is_bounded()
    assert bench.status().next_expiry_ms == T + 1000, "the remaining messages expire at once"
    assert bench.do(c.Extend([(lease.token, 60_000)]), 1000) == [None], "the lease is lost for its consumer"
    kept = bench.held()[0].select(bench.held()[0].live)[-1]
    assert bench.do(c.Ack([(lease.token, [[kept.base, 1]])]), 1000) == [None], (
        "a message that is not dead can still be acked"
    )
    assert bench.do(c.Expire(), 1000) == FIT
    assert bench.do(c.Expire(), 1000) == COUNT - 2 * FIT - 1
    assert (bench.do(c.Expire(), 1000), len(bench.dead()), bench.held()) == (0, COUNT - 1, [])
    assert bench.status().next_expiry_ms is None and bench.is_bounded()
    lost = bench.do(c.Ack([(lease.token, None)]), 1000)[0]
    assert sum(length for _, length in lost) == COUNT - 1, "and the consumer learns which acks were too late"


def test_coming_back_too_often_is_cut() -> None:
    bench = Zeros(max_attempts=1)
    bench.one()
    for epoch in range(RECLAIMS_MOST):
        assert bench.do(c.Reclaim("g", "c", epoch + 1, 60_000)) == (1, 0)
    last = c.Reclaim("g", "c", RECLAIMS_MOST + 1, 60_000)
    assert bench.do(last) == (0, 1)
    assert len(bench.dead()) == FIT and live(bench) == COUNT - FIT
    assert in_parts.reclaim(bench.do, last) == (0, 0)
    assert (len(bench.dead()), bench.held()) == (COUNT, []) and bench.is_bounded()


def test_waiting_messages_that_expire_are_handled_in_slices() -> None:
    bench = Zeros(ttl="10s", backoff={"kind": "fixed", "first": "60s", "jitter_percent": 0})
    bench.do(c.Nack([(bench.one().token, None, None, "no")]))
    assert bench.do(c.Expire(), 10_000) == FIT
    assert len(bench.dead()) == FIT
    assert [bench.do(c.Expire(), 10_000) for _ in range(3)] == [FIT, COUNT - 2 * FIT, 0]
    assert len(bench.dead()) == COUNT and bench.is_bounded()


def test_expiry_before_a_lease_stops_at_the_budget() -> None:
    bench = Zeros(ttl="10s")
    assert bench.do(LEASE, 10_000) == []
    assert len(bench.dead()) == FIT, "whole rows"
    bench.do(LEASE, 10_000)
    bench.do(LEASE, 10_000)
    assert len(bench.dead()) == COUNT
