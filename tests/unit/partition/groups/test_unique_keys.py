"""Tests of messages whose unique key belongs to a different message."""

from __future__ import annotations

import pytest

from sandq.model import offsets
from sandq.partition import commands as c
from sandq.partition.groups.unique_keys import (
    CANCELLED,
    DELIVERED,
    HELD,
    IGNORED,
    REFUSED,
    REPLACES,
    STORED,
    Named,
    Sender,
    resolve_conflict,
    state_of,
)
from sandq.partition.records.claim import LEASED, Claim

FIRST, OTHER = (7, 1, 1, 0), (7, 1, 2, 0)
PENDING, HELD_BY_A_GROUP = Claim(True, False, None), Claim(False, False, LEASED)


@pytest.mark.parametrize("sender", [None, OTHER])
@pytest.mark.parametrize(
    ("state", "claim", "reject", "replace", "ignore", "debounce"),
    [
        (HELD, PENDING, REFUSED, REPLACES, IGNORED, REPLACES),
        (HELD, None, STORED, STORED, STORED, STORED),
        (DELIVERED, None, REFUSED, STORED, IGNORED, STORED),
        (DELIVERED, HELD_BY_A_GROUP, REFUSED, REFUSED, IGNORED, STORED),
        (CANCELLED, None, STORED, STORED, STORED, STORED),
    ],
)
def test_conflict_with_another_message_is_resolved_by_state(
    state: int,
    claim: Claim | None,
    reject: int,
    replace: int,
    ignore: int,
    debounce: int,
    sender: Sender | None,
) -> None:
    rules = {c.REJECT: reject, c.REPLACE: replace, c.IGNORE: ignore, c.DEBOUNCE: debounce}
    rules |= {c.THROTTLE: ignore, c.THROTTLE_BOTH: ignore}  # the other message was not throttled
    for on_conflict, expected in rules.items():
        for before in (FIRST, None):
            assert resolve_conflict(Named(state, bytes(16), before, b"uk"), claim, on_conflict, sender) == expected


@pytest.mark.parametrize("on_conflict", range(c.THROTTLE_BOTH + 1))
def test_a_message_that_is_sent_again_is_answered_and_neither_refused_nor_replaced(on_conflict: int) -> None:
    assert resolve_conflict(Named(HELD, bytes(16), FIRST, b"uk"), PENDING, on_conflict, FIRST) == IGNORED
    assert resolve_conflict(Named(DELIVERED, bytes(16), FIRST, b"uk"), None, on_conflict, FIRST) == IGNORED


def test_state_of_the_message_that_keeps_the_key() -> None:
    offset = offsets.pack(1000, 1, 0, 0)
    assert (state_of(offset, 999), state_of(offset, 1000), state_of(None, 1000)) == ("delayed", "ready", "delivered")
