from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandq.client.kv.scan import KeyRange
from sandq.model.partitioning import KeyPartitions, partition_for


def test_partition_numbers_are_unchanged() -> None:
    keys = [b"", b"a", b"order-1", b"order-2", bytes(range(256))]
    assert [partition_for(key, 16) for key in keys] == [0, 14, 3, 12, 15]
    assert [partition_for(key, 4096) for key in keys] == [241, 3294, 2798, 3777, 559]


def test_spread_and_movement() -> None:
    keys = [b"key-%d" % number for number in range(4000)]
    before = [partition_for(key, 16) for key in keys]
    counts = [before.count(partition) for partition in range(16)]
    assert min(counts) > 180
    assert max(counts) < 320
    after = [partition_for(key, 17) for key in keys]
    moved = [new for old, new in zip(before, after, strict=True) if old != new]
    assert set(moved) == {16}  # to the new partition only
    assert 0.04 < len(moved) / len(keys) < 0.08


def test_one_partition_is_zero_and_no_partitions_is_an_error() -> None:
    assert {partition_for(b"%d" % number, 1) for number in range(50)} == {0}
    with pytest.raises(ValueError, match="0 partitions"):
        partition_for(b"x", 0)


PARTS = st.lists(st.sampled_from([b"a", b"b", b"/", b"0", b"::"]), min_size=1, max_size=6)
KEYS = st.binary(min_size=1, max_size=6) | PARTS.map(b"".join)


def test_partition_key_ends_at_the_first_delimiter() -> None:
    places = KeyPartitions.of_topic(16, {"partition_delimiter": "/"})
    assert {places.of(key) for key in (b"ada", b"ada/", b"ada/lamp", b"ada/radio/left")} == {partition_for(b"ada", 16)}
    assert {places.of(key) for key in (b"/", b"/a", b"//")} == {partition_for(b"", 16)}
    assert places.of(b"ad") == partition_for(b"ad", 16)
    long = KeyPartitions.of_topic(16, {"partition_delimiter": "::"})
    assert long.of(b"a:b::c") == partition_for(b"a:b", 16)
    none = KeyPartitions.of_topic(16, {})
    assert none.of(b"ada/lamp") == partition_for(b"ada/lamp", 16)


@given(st.lists(KEYS, max_size=20), KEYS, KEYS | st.none(), st.sampled_from(["", "/", "::", "ü"]))
def test_a_range_of_one_partition_has_no_key_in_another(
    keys: list[bytes], start: bytes, stop: bytes | None, delimiter: str
) -> None:
    places = KeyPartitions(7, delimiter.encode())
    only = places.of_range(start, stop)
    if only is not None:
        assert {places.of(key) for key in [start, *keys] if key >= start and (stop is None or key < stop)} <= {only}


@given(KEYS, st.sampled_from(["/", "::", "ü"]))
def test_a_prefix_with_the_delimiter_is_of_one_partition(key: bytes, delimiter: str) -> None:
    places, prefix = KeyPartitions(7, delimiter.encode()), key + delimiter.encode()
    keys = KeyRange.of_prefix(prefix)
    assert places.of_range(keys.start, keys.stop) == places.of(prefix) == places.of(prefix + b"x")
    assert places.of_range(b"", None) is None and KeyPartitions(1).of_range(b"", None) == 0
