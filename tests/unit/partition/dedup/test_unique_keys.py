"""What becomes of a message whose unique key was found with another one."""

from __future__ import annotations

import pytest

from sandq.model import offsets
from sandq.partition import commands as c
from sandq.partition.dedup.unique_keys import (
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

FIRST, OTHER = (7, 1, 1, 0), (7, 1, 2, 0)


@pytest.mark.parametrize("sender", [None, OTHER])
@pytest.mark.parametrize(
    ("state", "is_pending", "reject", "replace", "ignore"),
    [
        (HELD, True, REFUSED, REPLACES, IGNORED),
        (HELD, False, STORED, STORED, STORED),
        (DELIVERED, False, REFUSED, REPLACES, IGNORED),
        (CANCELLED, False, STORED, STORED, STORED),
    ],
)
def test_another_message_has_the_key(
    state: int,
    is_pending: bool,
    reject: int,
    replace: int,
    ignore: int,
    sender: Sender | None,
) -> None:
    for on_conflict, expected in ((c.REJECT, reject), (c.REPLACE, replace), (c.IGNORE, ignore)):
        for before in (FIRST, None):
            assert resolve_conflict(Named(state, bytes(16), before, b"uk"), is_pending, on_conflict, sender) == expected


@pytest.mark.parametrize("on_conflict", [c.REJECT, c.REPLACE, c.IGNORE])
def test_a_message_that_is_sent_again_is_answered_and_neither_refused_nor_replaced(on_conflict: int) -> None:
    assert resolve_conflict(Named(HELD, bytes(16), FIRST, b"uk"), True, on_conflict, FIRST) == IGNORED
    assert resolve_conflict(Named(DELIVERED, bytes(16), FIRST, b"uk"), False, on_conflict, FIRST) == IGNORED


def test_state_of_the_message_that_keeps_the_key() -> None:
    offset = offsets.pack(1000, 1, 0, 0)
    assert (state_of(offset, 999), state_of(offset, 1000), state_of(None, 1000)) == ("delayed", "ready", "delivered")
