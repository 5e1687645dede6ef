"""A page of keys is read and encoded in parts, with a yield after each part."""

from __future__ import annotations

import pytest

from sandq.broker.replication.replica import PartitionReplica
from sandq.broker.requests import kv_requests
from sandq.model.batch import Column, encode
from sandq.model.names import COMPACTED
from sandq.model.settings import parse_settings
from sandq.partition import commands as c
from sandq.partition.kv.key_table import SCAN_BYTES, SCAN_ROWS
from sandq.protocol.frames import FrameReader, PackedArray, encode_packed
from sandq.protocol.requests_keys import KvPage, KvScan
from sandq.storage.stores import MemoryStores
from tests.support.partition.bench import T

ALL_BYTES = 8 << 20


@pytest.mark.parametrize("value_bytes", [10, 5000, 1 << 20])
def test_a_page_is_made_in_parts(value_bytes: int) -> None:
    gave_way = 0

    def yield_now() -> None:
        nonlocal gave_way
        gave_way += 1

    settings = parse_settings({}, kind=COMPACTED).record()
    replica = PartitionReplica(MemoryStores(), 1, 1, 0, settings, COMPACTED, yield_now=yield_now)
    keys = [b"%05d" % number for number in range(min(2000, (6 << 20) // value_bytes))]
    batch = encode({Column.KEY: [*keys], Column.VALUE: [bytes(value_bytes)] * len(keys)})
    replica.apply(1, c.Entry(T, [c.Append(batch)]).encode(), True)
    gave_way = 0
    page = kv_requests._page(replica, KvScan("t", 0, False, b"", None, 10_000, ALL_BYTES), 0)
    assert (page.keys, page.following) == (len(keys), None)
    assert max(len(rows) for rows in page.rows) <= max(SCAN_BYTES, SCAN_ROWS * 50) + value_bytes + 20_000
    assert (
        gave_way == len(page.rows) >= max(len(keys) // SCAN_ROWS, len(keys) * value_bytes // (SCAN_BYTES + value_bytes))
    )
    assert page.size == sum([len(rows) for rows in page.rows])
    parts = encode_packed(7, b"\0", PackedArray(2 * page.keys, page.rows), b"\xc0")
    (frame,) = FrameReader(control_bytes=2 * ALL_BYTES).feed(b"".join(parts))
    rows = KvPage.parse(frame).rows
    assert [key for key, _ in rows] == keys and {len(value.value) for _, value in rows} == {value_bytes}
