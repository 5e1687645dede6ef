"""Tests that in-memory stores restart from any prefix of the writes since the last flush."""

from __future__ import annotations

import random
import threading

from sandq.storage.stores import MemoryStores


def numbered(stores: MemoryStores) -> list[int]:
    return [int(key) for key, _ in stores.scan(b"0", b"9", limit=99)]


def test_a_crash_keeps_a_prefix_from_the_last_flush_on() -> None:
    stores = MemoryStores()
    for number in range(3):
        stores.write([(b"%02d" % number, b"")])
    stores.flush()
    for number in range(3, 6):
        stores.write([(b"%02d" % number, b""), (b"last", b"%d" % number)])
    seen = set()
    for seed in range(60):
        after = stores.crash(random.Random(seed))
        found = numbered(after)
        assert found == list(range(len(found))) and len(found) >= 3
        assert after.get(b"last") == (b"%d" % found[-1] if len(found) > 3 else None)
        seen.add(len(found))
    assert seen == {3, 4, 5, 6}
    assert numbered(stores.after(1)) == [0, 1, 2, 3]


def test_data_found_at_a_restart_is_durable() -> None:
    stores = MemoryStores()
    stores.write([(b"1", b"")])
    again = stores.after(1)
    again.write([(b"1", None), (b"2", b"")])
    assert numbered(again.after(0)) == [1]
    assert numbered(again.after(1)) == [2]
    assert numbered(stores) == [1]


def test_rows_that_are_read_are_not_written_meanwhile() -> None:
    class Rows(dict[bytes, bytes]):
        """Start the write of another thread in the middle of a scan."""

        def __getitem__(self, key: bytes) -> bytes:
            if writer.ident is None:
                writer.start()
                writer.join(0.1)  # as far as the write comes
            return super().__getitem__(key)

    stores = MemoryStores([(b"a", b"1"), (b"b", b"2")])
    writer = threading.Thread(target=stores.write, args=([(b"a", None), (b"b", None)],))
    stores._rows = Rows(stores._rows)
    assert stores.scan(b"a", b"c") == [(b"a", b"1"), (b"b", b"2")]
    writer.join()
    assert stores.scan(b"a", b"c") == []
