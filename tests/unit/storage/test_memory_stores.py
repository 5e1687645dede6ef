"""The memory twin restarts from any prefix of the writes since the last flush."""

from __future__ import annotations

import random

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


def test_what_a_restart_found_is_durable() -> None:
    stores = MemoryStores()
    stores.write([(b"1", b"")])
    again = stores.after(1)
    again.write([(b"1", None), (b"2", b"")])
    assert numbered(again.after(0)) == [1]
    assert numbered(again.after(1)) == [2]
    assert numbered(stores) == [1]
