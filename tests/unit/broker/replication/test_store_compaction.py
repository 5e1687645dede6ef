"""Tests of the compaction of a partition's store: it starts when the obsolete data is worth the work."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sandq.broker.replication.store_compaction import COMPACT_BYTES, COMPACT_ROWS, MOST_BYTES, REST_BYTES, is_due
from sandq.partition.base.garbage import Garbage
from sandq.partition.base.rows import LOG, log_key, tag_bounds
from sandq.partition.partition_status import Status
from sandq.partition.records.metrics import Counted

IDLE = Status(
    applied_index=1,
    now_ms=0,
    floor_ms=0,
    next_expiry_ms=None,
    upkeep_ms=None,
    messages=0,
    later=0,
    trimmed=b"",
    bytes=0,
    dead=0,
    garbage_rows=0,
    garbage_bytes=0,
    settings={},
    groups=(),
    counted=Counted(*[0] * len(Counted._fields)),
)


@pytest.mark.parametrize(
    ("changes", "due"),
    [
        ({}, False),
        ({"garbage_rows": COMPACT_ROWS}, True),
        ({"garbage_bytes": COMPACT_BYTES - 1}, False),
        ({"garbage_bytes": COMPACT_BYTES}, True),
        ({"garbage_bytes": COMPACT_BYTES, "bytes": COMPACT_BYTES, "keys_bytes": 1}, False),
        ({"garbage_bytes": MOST_BYTES, "bytes": 1}, False),
        ({"garbage_bytes": MOST_BYTES, "bytes": 1, "garbage_rows": COMPACT_ROWS}, True),
        ({"garbage_bytes": REST_BYTES}, False),
        ({"garbage_bytes": REST_BYTES, "is_resting": True}, True),
        ({"garbage_bytes": REST_BYTES - 1, "is_resting": True}, False),
        ({"garbage_bytes": REST_BYTES, "is_resting": True, "keys_bytes": 2 * REST_BYTES}, True),
        ({"garbage_bytes": REST_BYTES, "is_resting": True, "keys_bytes": 2 * REST_BYTES + 2}, False),
    ],
)
def test_compaction_is_due_if_worth_the_work(changes: dict[str, int], due: bool) -> None:
    assert is_due(replace(IDLE, **changes)) is due  # type: ignore[arg-type]


def test_compaction_covers_the_obsolete_ranges() -> None:
    garbage = Garbage()
    assert garbage.take() == []
    first, last = b"a" * 16, b"b" * 16
    garbage.deleted(LOG + last, 10)
    garbage.deleted(LOG + first, 5)
    garbage.overwritten(b"v", 7)
    assert (garbage.rows, garbage.bytes) == (2, 22)
    (start, stop), values = garbage.take()
    assert start == log_key(first) and log_key(last) < stop
    assert values == tag_bounds(b"v")
    assert (garbage.rows, garbage.bytes, garbage.take()) == (0, 0, [])
