"""Tests of the changes that a nack makes to its messages: checked by column, and bounded without a partition budget."""

from __future__ import annotations

from typing import Any

import pytest

from sandq.broker.delivery.nack_changes import with_columns
from sandq.model.batch import Column
from sandq.model.errors import InvalidRequest, TooLarge
from sandq.model.limits import Limits
from sandq.protocol.requests import Nack
from tests.support.hostile_rows import NO_HEADERS

BASE = b"\0" * 16
CHANGE = {"headers": b"\x80"}
MANY = [
    [[5, None, None, None, True, CHANGE]] * 2,
    [[5, [[BASE, 900]], None, None, True, CHANGE]] * 2,
    [[5, [[BASE, b"\xff" * 40]], None, None, True, {"headers": b"\x81\xa1a\xc5\xea\x60" + b"x" * 60_000}]],
]


def items_of(items: list[list[Any]]) -> list[list[Any]]:
    return with_columns(Nack(1, 0, items), Limits(), None, lambda: None)


def test_changes_are_named_by_their_columns() -> None:
    plain = [7, None, 5, "no"]
    ended = [8, [[BASE, 3]], None, None, True, {"priority": -4, "headers": b"\x80"}, 2]
    rejected = [9, None, None, None, True, None, 1]
    columns = {Column.PRIORITY: -4, Column.HEADERS: b"\x80"}
    assert items_of([plain, ended, rejected]) == [plain, [*ended[:5], columns, 2], rejected]


@pytest.mark.parametrize("items", MANY)
def test_nack_may_change_the_messages_of_whole_leases(items: list[list[Any]]) -> None:
    assert len(items_of(items)) == len(items)


def test_headers_have_their_limit() -> None:
    with pytest.raises(TooLarge, match="headers: 100000 bytes, 65536 are allowed"):
        items_of([[5, [[BASE, 1]], None, None, True, {"headers": b"x" * 100_000}]])


def test_a_priority_is_for_topics_that_have_them() -> None:
    def refuse() -> None:
        raise InvalidRequest("no priorities")

    with_columns(Nack(1, 0, [[5, None, None, None, True, CHANGE]]), Limits(), None, refuse)
    with pytest.raises(InvalidRequest, match="no priorities"):
        with_columns(Nack(1, 0, [[5, None, None, None, True, {"priority": 1}]]), Limits(), None, refuse)


def test_headers_that_are_no_map_are_refused() -> None:
    for cell in NO_HEADERS.values():
        if cell:
            with pytest.raises(InvalidRequest, match=r"^item 1: headers: "):
                items_of([[5, [[BASE, 1]], None, None, True, {"headers": cell}]])
    assert items_of([[5, [[BASE, 1]], None, None, True, {"headers": b""}]])[0][5] == {Column.HEADERS: b""}
