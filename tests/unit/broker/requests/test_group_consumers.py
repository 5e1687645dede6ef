"""Tests of the consumers of a group on one node: subscriptions and leases of several partitions."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from sandq.broker.requests.group_consumers import CONSUMERS_MAX, ConsumerTable


def subscription(credit: int) -> Any:
    return SimpleNamespace(address="192.0.2.7:4711", since_ms=5, credit=credit)


def test_partitions_are_added_up_and_credit_counts_once() -> None:
    table, ada = ConsumerTable(), subscription(7)
    table.add({"ada": ada}, {"ada": (2, 30), "bob": (4, 20)})
    table.add({"ada": ada}, {"ada": (1, 10)})
    (bob, of_ada), left_out = table.rows()
    assert left_out == 0
    assert (of_ada["consumer"], of_ada["credit"], of_ada["partitions"]) == ("ada", 7, 2)
    assert (of_ada["messages"], of_ada["leased_ms"]) == (3, 10)
    assert (bob["consumer"], bob["messages"], bob["address"], bob["partitions"]) == ("bob", 4, None, 0)


def test_answer_has_a_bounded_number_of_rows_and_counts_the_others() -> None:
    table = ConsumerTable()
    table.add({f"c{number:04}": subscription(-1) for number in range(CONSUMERS_MAX + 3)}, {"c1002": (1, 1)})
    rows, left_out = table.rows()
    assert len(rows) == CONSUMERS_MAX and left_out == 3
    assert rows[0]["consumer"] == "c1002" and rows[1]["consumer"] == "c0000", "consumers with messages come first"
    assert rows[0]["credit"] == 0, "messages that were pushed again beyond the credit are no credit"
