"""One suite over every implementation of the `Stores` port."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sandq.model.errors import ClosedError
from sandq.storage.keys import store_range
from sandq.storage.stores import Change, LevelStores, MemoryStores, Row, Stores
from sandq.storage.write_behind import WriteBehindStores


class HalfWritten(WriteBehindStores):
    """Stores whose thread writes the submitted rows every second time."""

    def __init__(self, base: Stores) -> None:
        super().__init__(base, 1 << 20)
        self._calls = 0

    def write(self, changes: Sequence[Change]) -> None:
        super().write(changes)
        self._calls += 1
        if self._calls % 2:
            self.write_one()


IMPLEMENTATIONS: dict[str, Callable[[Path], Stores]] = {
    "memory": lambda path: MemoryStores(),
    "leveldb": lambda path: LevelStores(path / "stores"),
    "unwritten": lambda path: WriteBehindStores(MemoryStores(), 1 << 20),
    "half written": lambda path: HalfWritten(LevelStores(path / "stores")),
}


@pytest.fixture(params=IMPLEMENTATIONS)
def stores(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Stores]:
    stores = IMPLEMENTATIONS[request.param](tmp_path)
    yield stores
    stores.close()


def rows(*keys: str) -> list[Row]:
    return [(key.encode(), key.encode() * 2) for key in keys]


def test_an_empty_store(stores: Stores) -> None:
    assert stores.get(b"a") is None
    assert stores.scan(b"", b"\xff", limit=10) == []
    assert stores.scan(b"", b"\xff", limit=10, reverse=True) == []
    stores.flush()


def test_write_and_get(stores: Stores) -> None:
    stores.write([(b"a", b"1"), (b"b", b""), (b"\0\xff", bytes(range(256)))])
    assert stores.get(b"a") == b"1"
    assert stores.get(b"b") == b"", "an empty value is not a missing one"
    assert stores.get(b"\0\xff") == bytes(range(256))
    assert stores.get(b"c") is None


def test_changes_are_applied_in_their_order(stores: Stores) -> None:
    stores.write([(b"a", b"1"), (b"a", None), (b"b", None), (b"b", b"2"), (b"c", b"3"), (b"c", b"4")])
    assert stores.scan(b"a", b"z", limit=9) == [(b"b", b"2"), (b"c", b"4")]
    stores.write([(b"b", None), (b"nothing", None)])
    assert stores.scan(b"a", b"z", limit=9) == [(b"c", b"4")]
    stores.write([])


def test_scan_takes_start_and_leaves_stop(stores: Stores) -> None:
    stores.write(rows("a", "b", "ba", "c", "d"))
    assert stores.scan(b"b", b"d", limit=9) == rows("b", "ba", "c")
    assert stores.scan(b"b", b"d", limit=2) == rows("b", "ba")
    assert stores.scan(b"aa", b"b", limit=9) == []
    assert stores.scan(b"b", b"b", limit=9) == []
    assert stores.scan(b"c", b"b", limit=9) == []
    assert stores.scan(b"b", b"d", limit=0) == []
    assert stores.scan(b"d", b"\xff\xff", limit=9) == rows("d")
    assert stores.scan(b"a", b"z") == rows("a", "b", "ba", "c", "d")


def test_scan_backwards_begins_below_stop(stores: Stores) -> None:
    stores.write(rows("a", "b", "ba", "c", "d"))
    assert stores.scan(b"b", b"d", limit=9, reverse=True) == rows("c", "ba", "b")
    assert stores.scan(b"b", b"d", limit=2, reverse=True) == rows("c", "ba")
    assert stores.scan(b"b", b"zzz", limit=1, reverse=True) == rows("d")
    assert stores.scan(b"", b"a", limit=9, reverse=True) == []
    assert stores.scan(b"bb", b"bz", limit=9, reverse=True) == []


def test_scan_ends_with_the_row_that_reaches_the_bytes(stores: Stores) -> None:
    stores.write([(b"a", b"12345"), (b"b", b""), (b"c", b"12345"), (b"d", b"1")])
    assert [key for key, _ in stores.scan(b"a", b"z", max_bytes=1)] == [b"a"]
    assert [key for key, _ in stores.scan(b"a", b"z", max_bytes=5)] == [b"a"]
    assert [key for key, _ in stores.scan(b"a", b"z", max_bytes=6)] == [b"a", b"b", b"c"]
    assert [key for key, _ in stores.scan(b"a", b"z", max_bytes=99)] == [b"a", b"b", b"c", b"d"]
    assert [key for key, _ in stores.scan(b"a", b"z", max_bytes=6, limit=2)] == [b"a", b"b"]
    assert [key for key, _ in stores.scan(b"a", b"z", max_bytes=6, reverse=True)] == [b"d", b"c"]


def test_vacant_ranges(stores: Stores) -> None:
    assert stores.vacant([]) == []
    assert stores.vacant([(b"a", b"b"), (b"b", b"c")]) == [True, True]
    stores.write([*rows("a", "b", "ba", "c", "d", "e"), (b"d", None)])
    stores.flush()
    stores.write([*rows("f"), (b"c", None)])
    ranges = [
        (b"a", b"a\0"),
        (b"a\0", b"b"),
        (b"a\1", b"b\0"),
        (b"b", b"c"),
        (b"bb", b"c\0"),
        (b"bc", b"d"),
        (b"d", b"d\0"),
    ]
    assert stores.vacant(ranges) == [False, True, False, False, True, True, True]
    assert stores.vacant([(b"c", b"e\0"), (b"e", b"c"), (b"f", b"f\0"), (b"g", b"h"), (b"h", b"i")]) == [
        False,
        True,
        False,
        True,
        True,
    ]


def test_stores_do_not_see_each_other(stores: Stores) -> None:
    one, two = store_range(1), store_range(2)
    stores.write([(one[0] + b"\xff\xff", b"1"), (two[0], b"2"), (two[0] + b"a", b"3")])
    assert stores.scan(*one, limit=9) == [(one[0] + b"\xff\xff", b"1")]
    assert stores.scan(*two, limit=9) == [(two[0], b"2"), (two[0] + b"a", b"3")]


def test_empty_key_is_refused(stores: Stores) -> None:
    with pytest.raises(ValueError, match="empty key"):
        stores.write([(b"a", b"1"), (b"", b"2")])
    assert stores.get(b"a") is None, "all or nothing"


def test_flush_and_compact_change_nothing_that_is_read(stores: Stores) -> None:
    content = rows(*(f"{number:04}" for number in range(500)))
    stores.write(content)
    stores.flush()
    stores.write([(key, None) for key, _ in content[100:400]])
    stores.flush()
    stores.compact(b"0100", b"0400")
    assert stores.scan(b"0", b"9", limit=999) == content[:100] + content[400:]
    assert stores.approximate_bytes() > 0


CHANGES = st.lists(
    st.tuples(
        st.sampled_from([bytes([a, b]) for a in range(1, 5) for b in range(4)]), st.none() | st.binary(max_size=3)
    ),
    max_size=6,
)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(CHANGES, max_size=8), st.integers(0, 2**32))
def test_real_and_fake_agree(tmp_path_factory: pytest.TempPathFactory, writes: list[list[Change]], seed: int) -> None:
    rng = random.Random(seed)
    memory, level = MemoryStores(), LevelStores(tmp_path_factory.mktemp("agree"))
    try:
        for changes in writes:
            for stores in (memory, level):
                stores.write(changes)
            if rng.randrange(4) == 0:
                level.flush()
            start, stop = rng.randbytes(1), rng.randbytes(2)
            limit, size = rng.choice([None, 1, 3]), rng.choice([None, 0, 1, 4])
            for reverse in (False, True):
                for bounds in ((start, stop), (b"", b"\xff"), (b"\2", b"\3")):
                    one, two = (
                        stores.scan(*bounds, limit=limit, max_bytes=size, reverse=reverse) for stores in (memory, level)
                    )
                    assert one == two
    finally:
        level.close()


# Snapshots


def test_snapshot_does_not_show_later_writes(stores: Stores) -> None:
    stores.write(rows("a", "b", "c"))
    snapshot = stores.snapshot()
    stores.write([(b"a", b"new"), (b"b", None), (b"bb", b"new"), (b"d", b"new")])
    stores.flush()
    stores.compact(b"a", b"z")
    assert snapshot.scan(b"", b"\xff") == rows("a", "b", "c")
    later = stores.snapshot()
    snapshot.close()
    stores.write([(b"a", None)])
    assert later.scan(b"", b"\xff") == [(b"a", b"new"), (b"bb", b"new"), *rows("c"), (b"d", b"new")]
    later.close()


def test_a_snapshot_is_scanned_as_the_stores_are(stores: Stores) -> None:
    stores.write([(b"a", b"12345"), (b"b", b""), (b"c", b"12345"), (b"d", b"1")])
    snapshot = stores.snapshot()
    for start, stop in ((b"a", b"z"), (b"aa", b"d"), (b"b", b"b"), (b"c", b"b"), (b"", b"\xff")):
        for limit in (None, 0, 1, 2, 9):
            for size in (None, 0, 1, 5, 6, 99):
                expected = stores.scan(start, stop, limit=limit, max_bytes=size)
                assert snapshot.scan(start, stop, limit=limit, max_bytes=size) == expected
    snapshot.close()


def test_a_snapshot_knows_its_size_roughly(stores: Stores) -> None:
    stores.write([(b"a%03d" % number, b"x" * 1000) for number in range(500)])
    stores.flush()
    snapshot = stores.snapshot()
    assert 400_000 < snapshot.approximate_bytes(b"a", b"b") < 700_000
    assert 100_000 < snapshot.approximate_bytes(b"a", b"a200") < 300_000
    assert snapshot.approximate_bytes(b"b", b"c") < 1000
    snapshot.close()


def test_a_closed_snapshot_is_not_read(stores: Stores) -> None:
    stores.write(rows("a"))
    snapshot = stores.snapshot()
    snapshot.close()
    snapshot.close()
    for read in (lambda: snapshot.scan(b"a", b"b"), lambda: snapshot.approximate_bytes(b"a", b"b")):
        with pytest.raises(ClosedError, match="snapshot"):
            read()
    assert stores.scan(b"a", b"b") == rows("a")


def test_closing_the_stores_ends_their_snapshots(stores: Stores) -> None:
    stores.write(rows("a"))
    kept, forgotten = stores.snapshot(), stores.snapshot()
    del forgotten
    stores.close()
    with pytest.raises(ClosedError):
        kept.scan(b"a", b"b")
    kept.close()


def test_a_snapshot_is_read_while_another_thread_writes(stores: Stores) -> None:
    content = rows(*(f"{number:04}" for number in range(300)))
    stores.write(content)
    snapshot = stores.snapshot()
    written = threading.Event()

    def write() -> None:
        for number in range(300):
            stores.write([(b"%04d" % number, None), (b"%04d-" % number, b"")])
        written.set()

    thread = threading.Thread(target=write)
    thread.start()
    try:
        while not written.is_set():
            assert snapshot.scan(b"0", b"9") == content
    finally:
        thread.join()
    assert snapshot.scan(b"0", b"9") == content
    snapshot.close()
