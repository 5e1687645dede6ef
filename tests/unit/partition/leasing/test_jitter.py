"""The jitter of retries: each message has its own, computed from its offset, the group and the attempt."""

from __future__ import annotations

from collections import Counter

import pytest

from sandq.model import offsets
from sandq.partition import commands as c
from sandq.partition.leasing.retry import WAITS, Wait, wait_of
from tests.support.partition.bench import Bench, T

BACKOFF = {"kind": "fixed", "first": "10s", "jitter_percent": 20}
MESSAGES = 1000


def leased(count: int = MESSAGES) -> Bench:
    bench = Bench(max_attempts=None, backoff=BACKOFF)
    bench.open()
    bench.append(*[f"m{n}" for n in range(count)])
    return bench


def waits(bench: Bench, failed_at: int = 0) -> dict[bytes, int]:
    """Return the wait of each message after the failure, in ms."""
    group = bench.machine.groups.named("g")
    return {
        offset: entry.due_ms - T - failed_at
        for entry in group.waiting.values()
        for base, length in entry.ranges
        for offset in offsets.run(base, length)
    }


def check_spread(found: dict[bytes, int]) -> None:
    """The waits of 1,000 messages are spread evenly over 8 to 12 s."""
    assert len(found) == MESSAGES and 8000 <= min(found.values()) < 8100 and 11_900 < max(found.values()) <= 12_000
    assert len(set(found.values())) > 0.9 * WAITS
    assert max(Counter(found.values()).values()) < 0.02 * MESSAGES
    by_quarter = Counter(min((wait - 8000) // 1000, 3) for wait in found.values())
    assert all(0.2 * MESSAGES < count < 0.3 * MESSAGES for count in by_quarter.values()), by_quarter


def test_messages_nacked_in_one_call_wait_differently() -> None:
    bench = leased()
    bench.nack(bench.one(limit=MESSAGES).token)
    check_spread(waits(bench))


def test_messages_of_an_expired_lease_wait_differently() -> None:
    bench = leased()
    bench.lease(MESSAGES)
    bench.expire(30_000)
    check_spread(waits(bench, 30_000))


def test_snoozed_messages_wait_differently() -> None:
    bench = leased()
    bench.snooze(bench.one(limit=MESSAGES).token)
    check_spread(waits(bench))


def test_wait_follows_from_message_and_attempt_alone() -> None:
    together, apart = leased(), leased()
    lease, other = together.one(limit=MESSAGES), apart.one(limit=MESSAGES)
    together.nack(lease.token)
    apart.restart()
    (base, _) = other.ranges[0]
    for offset in reversed(offsets.run(base, MESSAGES)):
        apart.apply(0, c.Nack([(other.token, [[offset, 1]], None, None)]))
    assert waits(together) == waits(apart)


def test_next_attempt_has_another_jitter() -> None:
    bench = leased()
    bench.nack(bench.one(limit=MESSAGES).token)
    first = waits(bench)
    for lease in bench.lease(MESSAGES, at=20_000):
        bench.nack(lease.token, at=20_000)
    second = waits(bench, 20_000)
    assert first.keys() == second.keys() and sum(first[one] == second[one] for one in first) < 0.05 * MESSAGES


def test_given_delay_has_no_jitter() -> None:
    bench = leased()
    bench.nack(bench.one(limit=MESSAGES).token, delay=5000)
    assert set(waits(bench).values()) == {5000}


def test_ranges_are_cut_only_while_few_messages_wait() -> None:
    bench = leased(count=5000)
    leases = [bench.one(limit=MESSAGES) for _ in range(5)]
    for lease in leases:
        bench.nack(lease.token)
    group = bench.machine.groups.named("g")
    # 2,500 ranges are a quarter of the number that halts the group. From there on each range of a lease has one wait.
    assert group.waiting_ranges < 2500 and group.metrics.waiting == 5000
    assert len(set(waits(bench).values())) > 0.9 * WAITS


@pytest.mark.parametrize(("spread_ms", "expected"), [(0, {100}), (1, {99, 100, 101}), (100, set(range(201)))])
def test_wait_reaches_every_step_of_a_small_spread(spread_ms: int, expected: set[int]) -> None:
    wait = Wait(100, spread_ms)
    assert {wait.of(offset << 12, 1, 1) for offset in range(10_000)} == expected


def test_wait_of_a_backoff_without_delay_is_none() -> None:
    none = {"kind": "none", "first_ms": 1000, "factor_permille": 2000, "cap_ms": 9000, "jitter_percent": 20}
    assert wait_of(none, 3) == (0, 0) and wait_of({**none, "kind": "exponential"}, 3) == (4000, 800)
