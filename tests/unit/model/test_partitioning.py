from __future__ import annotations

import pytest

from sandq.model.partitioning import partition_for


def test_the_numbers_are_what_they_were() -> None:
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


def test_one_partition_and_none() -> None:
    assert {partition_for(b"%d" % number, 1) for number in range(50)} == {0}
    with pytest.raises(ValueError, match="0 partitions"):
        partition_for(b"x", 0)
