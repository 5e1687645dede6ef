"""Tests of the entries that claim to need no stored rows.

Every partition test checks that they read none, see `Bench`.
"""

from __future__ import annotations

from typing import Any

import pytest

from sandq.partition import commands as c
from sandq.partition.in_memory import GROUPS, ITEMS
from sandq.partition.kv import key_table
from tests.support.partition.bench import Bench, batch_of
from tests.support.partition.key_bench import KeyBench

HOUR_MS = 3_600_000


def bench(**settings: Any) -> Bench:
    return Bench(**settings)


def test_append_without_groups_needs_no_disk() -> None:
    b = bench()
    b.append("a", at=1)
    assert b.needed_no_disk
    b.append("a", "b", at=2, due=[5000, 9000])
    assert b.needed_no_disk
    b.append(*["a"] * (ITEMS + 1), at=3)
    assert not b.needed_no_disk


def test_messages_with_a_unique_key_are_looked_up() -> None:
    b = bench()
    b.put("a", unique="u")
    assert not b.needed_no_disk


def test_due_messages_are_known_for_one_hour() -> None:
    b = bench()
    b.append("a", at=0, due=[2 * HOUR_MS])
    b.append("b", at=1000)
    assert not b.needed_no_disk
    b.append("b", at=2000)
    assert b.needed_no_disk
    b.append("b", at=2000 + HOUR_MS)
    assert not b.needed_no_disk


def test_append_for_groups_with_known_status_needs_no_disk() -> None:
    b = bench()
    b.open("g")
    b.append("a", at=1)
    assert not b.needed_no_disk  # the ready messages are not counted yet
    b.status()
    b.append("b", at=2)
    assert b.needed_no_disk
    for number in range(GROUPS):
        b.open(f"g{number}", at=3)
    b.status()
    b.append("c", at=4)
    assert not b.needed_no_disk


def test_acks() -> None:
    b = bench()
    b.open("g")
    b.append("a", "b", at=1)
    token = b.one(at=2).token
    b.status()
    b.ack(token, at=3)
    assert b.needed_no_disk
    b.ack(token, at=4)
    assert b.needed_no_disk
    b.ack(token + 1, at=5)
    assert b.needed_no_disk


def scheduled(**settings: Any) -> Bench:
    """Return a partition with messages that are due each ms, of which the group has leased the first ones."""
    b = bench(**settings)
    b.open("g")
    b.append(*["a"] * 400, at=0, due=range(1000, 1400))
    b.status()
    for at in range(1000, 1100, 10):
        b.lease(at=at)
        b.status()
    return b


def test_lease_of_messages_read_ahead_needs_no_disk() -> None:
    b = scheduled()
    assert len(b.lease(at=1110)) == 1 and b.needed_no_disk
    b.status()
    b.lease(at=1111 + ITEMS)
    assert not b.needed_no_disk


def test_lease_after_all_rows_were_read_needs_no_disk() -> None:
    b = scheduled()
    for at in range(1100, 1400, 20):
        b.lease(at=at)
        b.status()
    b.lease(at=1410)
    assert not b.needed_no_disk  # this lease looks for more rows
    b.status()
    b.lease(at=1500)
    assert b.needed_no_disk


@pytest.mark.parametrize("settings", [{"ordering": "key"}, {"ttl": "1h"}])
def test_lease_under_rules_of_the_topic_needs_the_disk(settings: dict[str, Any]) -> None:
    b = scheduled(**settings)
    b.lease(at=1110)
    assert not b.needed_no_disk


def test_lease_of_waiting_messages_needs_the_disk() -> None:
    b = scheduled()
    (lease,) = b.lease(at=1101)
    b.nack(lease.token, at=1102)
    b.status()
    b.lease(at=1103)
    assert b.needed_no_disk
    b.status()
    b.lease(at=5000)
    assert not b.needed_no_disk


def test_ack_of_message_with_blocked_key_needs_the_disk() -> None:
    b = bench(ordering="key")
    b.open("g")
    b.put("a", key="k")
    token = b.one(at=2).token
    b.status()
    b.ack(token, at=3)
    assert not b.needed_no_disk


@pytest.mark.parametrize("number", [1, 2])
def test_batch_that_may_be_stored_needs_the_disk(number: int) -> None:
    b = bench()
    for sequence in (1, number):
        b.apply(sequence, c.Append(batch_of(["a"]), 7, 1, sequence))
    assert b.needed_no_disk == (number == 2)


def test_other_commands_may_need_the_disk() -> None:
    b = bench()
    b.open("g")
    assert not b.needed_no_disk
    b.lease(at=1)
    assert not b.needed_no_disk
    b.apply(2, c.Append(batch_of(["a"])), c.Lease("g", 0, ()))
    assert not b.needed_no_disk


def test_keys_are_looked_up_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(key_table, "KNOWN_KEYS", 2)
    b = KeyBench()
    for key, is_known in (
        ("k", False),
        ("k", True),
        ("l", False),
        ("l", True),
        ("l", True),
        ("m", False),
        ("k", False),
    ):
        b.set(key, "v")
        assert b.needed_no_disk == is_known, key
    b.set("l", None)
    assert not b.needed_no_disk
    b.set("l", "v")
    assert not b.needed_no_disk
