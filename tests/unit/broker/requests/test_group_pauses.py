"""Tests of the paused parts of a group on one node: the lists of several partitions are merged."""

from __future__ import annotations

from sandq.broker.requests.group_pauses import PauseTable
from sandq.model.pauses import FOREVER, PAUSES_MAX
from sandq.partition.groups.part_pauses import PausedPart


def test_pause_table_of_several_partitions_has_latest_end_and_key() -> None:
    table = PauseTable()
    table.add([PausedPart("acme", 10), PausedPart(7, 30, b"k")], 0)
    table.add([PausedPart("acme", 20), PausedPart("beta", FOREVER), PausedPart(7, 5, None)], 0)
    table.add([PausedPart("beta", 5)], 0)
    assert table.keys == {7: b"k"}
    acme = {"tenant": "acme", "key": None, "key_hash": None, "until_ms": 20, "partitions": 2}
    beta = {"tenant": "beta", "key": None, "key_hash": None, "until_ms": None, "partitions": 2}
    key = {"tenant": None, "key": b"k", "key_hash": 7, "until_ms": 30, "partitions": 2}
    assert table.rows() == ([acme, beta, key], 0)


def test_pause_table_above_limit_keeps_first_parts_and_counts_others() -> None:
    table = PauseTable()
    table.add([PausedPart(number, 1) for number in range(PAUSES_MAX)], 2)
    table.add([PausedPart("acme", 1)], 0)
    rows, left_out = table.rows()
    assert len(rows) == PAUSES_MAX and rows[0]["tenant"] == "acme"
    assert left_out == 2, "there are at least as many as the first partition has"
    table.add([PausedPart(f"t{number}", 1) for number in range(4)], 0)
    rows, left_out = table.rows()
    assert [row["key_hash"] for row in rows[-2:]] == [PAUSES_MAX - 7, PAUSES_MAX - 6]
    assert left_out == 4
