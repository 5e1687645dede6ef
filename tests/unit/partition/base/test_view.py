"""Tests of the view: stored rows with changes over them give the same answers as a naive copy."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from sandq.partition.base.view import View
from sandq.storage.stores import MemoryStores

KEYS = [tag + bytes([n]) for tag in (b"a", b"b", b"c") for n in range(4)] + [b"a", b"b", b"c"]
keys = st.sampled_from(KEYS)
values = st.integers(0, 4).map(lambda n: b"v" * n)
alike = st.sampled_from([b"a", b"b"]).flatmap(
    lambda tag: st.lists(st.tuples(st.sampled_from([key for key in KEYS if key[:1] == tag]), values), min_size=1)
)
changes = st.one_of(
    st.tuples(st.just("put"), keys, values),
    st.tuples(st.just("put_all"), alike),
    st.tuples(st.just("delete"), keys),
    st.tuples(st.just("drain")),
)
look_ups = st.tuples(st.just("get_ahead"), keys, keys)
bounds = st.tuples(keys, keys) | keys.map(lambda key: (key, key + b"\x00"))
vacancies = st.one_of(
    st.tuples(st.just("note_vacant"), st.lists(bounds, max_size=20).map(sorted)), st.tuples(st.just("forget_vacant"))
)
scans = st.tuples(st.just("scan"), keys, keys, st.integers(1, 5), st.integers(1, 9), st.booleans())


def naive(
    found: dict[bytes, bytes], start: bytes, stop: bytes, limit: int, max_bytes: int, reverse: bool
) -> list[tuple[bytes, bytes]]:
    """Return the rows of a scan, computed in the simplest way."""
    rows: list[tuple[bytes, bytes]] = []
    for key in sorted(found, reverse=reverse):
        if start <= key < stop:
            rows.append((key, found[key]))
            if len(rows) == limit or sum(len(value) for _, value in rows) >= max_bytes:
                break
    return rows


def test_view_counts_rows_and_bytes_until_the_drain() -> None:
    stores = MemoryStores()
    stores.write([(b"b1", b"four")])
    view = View(stores)
    view.put(b"a1", b"one")
    view.put_all([(b"a2", b"two"), (b"a3", b"3")])
    assert view.get_ahead(b"b0", b"c") is None and view.get_ahead(b"b1", b"c") == b"four"
    assert (len(view), view.bytes) == (4, 11)
    view.drain()
    assert (len(view), view.bytes) == (0, 0)


@given(st.lists(st.one_of(changes, scans, look_ups, vacancies), max_size=60))
def test_scans_are_those_of_a_naive_copy(steps: list[tuple[object, ...]]) -> None:
    stores = MemoryStores()
    view = View(stores)
    wanted: dict[bytes, bytes] = {}
    for name, *rest in steps:
        match name, rest:
            case "put", [bytes(key), bytes(value)]:
                view.put(key, value)
                wanted[key] = value
            case "put_all", [list(rows)]:
                view.put_all(rows)
                wanted.update(rows)
            case "delete", [bytes(key)]:
                view.delete(key)
                wanted.pop(key, None)
            case "drain", _:
                stores.write(view.drain())
            case "get_ahead", [bytes(key), bytes(stop)]:
                assert view.get_ahead(key, max(stop, key + b"\x00")) == wanted.get(key)
            case "note_vacant", [list(ranges)]:
                vacant = view.note_vacant(ranges)
                assert vacant == {one for one in ranges if not stores.scan(*one)}
                assert all(view.get(start) == wanted.get(start) for start, _ in ranges)
                for start, stop in ranges:
                    found = view.scan(start, stop, limit=9, max_bytes=9)
                    assert found == naive(wanted, start, stop, 9, 9, False)
            case "forget_vacant", _:
                view.forget_vacant()
            case "scan", [bytes(start), bytes(stop), int(limit), int(max_bytes), bool(reverse)]:
                found = view.scan(start, stop, limit=limit, max_bytes=max_bytes, reverse=reverse)
                assert found == naive(wanted, start, stop, limit, max_bytes, reverse)
    assert {key: view.get(key) for key in KEYS} == {key: wanted.get(key) for key in KEYS}
    everything = view.scan(b"\x00", b"\xff", limit=1000, max_bytes=1000)
    assert everything == sorted(wanted.items())


def test_changes_of_repeated_keys_keep_their_order() -> None:
    view = View(MemoryStores())
    view.put(b"a1", b"x")
    assert view.scan(b"a", b"b", limit=9, max_bytes=9) == [(b"a1", b"x")]
    view.put(b"a0", b"y")
    view.delete(b"a1")
    view.put(b"a1", b"z")
    assert view.scan(b"a", b"b", limit=9, max_bytes=9) == [(b"a0", b"y"), (b"a1", b"z")]
    assert view.drain() == [(b"a1", b"z"), (b"a0", b"y")]
    assert view.scan(b"a", b"b", limit=9, max_bytes=9) == []


def test_derived_object_is_kept_until_its_row_changes_or_drain() -> None:
    view = View(MemoryStores())
    view.note_made(b"a", 1)
    assert view.made_last is None, "reads alone leave nothing in memory"
    view.put(b"b", b"")
    view.note_made(b"a", 1)
    assert view.made_last == (b"a", 1)
    view.delete(b"a")
    assert view.made_last is None
    view.note_made(b"c", 2)
    view.drain()
    assert view.made_last is None
