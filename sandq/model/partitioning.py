"""Which partition a key belongs to: xxh3_64, then jump consistent hash.

Part of the protocol: producers in any language must agree, so the numbers never change. When the partitions
grow from n to n + 1, one key in n + 1 moves, and only to the new partition (Lamping and Veach, "A Fast,
Minimal Memory, Consistent Hash Algorithm", 2014).
"""

from __future__ import annotations

import xxhash

_MULTIPLIER = 2862933555777941757
_MASK = 2**64 - 1
_TWO_31 = float(1 << 31)


def partition_for(key: bytes, partitions: int) -> int:
    """The partition of a key, 0 to partitions - 1."""
    return _jump(xxhash.xxh3_64_intdigest(key), partitions)


def _jump(key: int, buckets: int) -> int:
    if buckets < 1:
        raise ValueError(f"{buckets} partitions: at least one is needed")
    bucket, following = 0, 0
    while following < buckets:
        bucket = following
        key = (key * _MULTIPLIER + 1) & _MASK
        following = int((bucket + 1) * (_TWO_31 / ((key >> 33) + 1)))
    return bucket


def ordering_hash(key: bytes) -> int:
    """What stands for a key where messages of one key follow one another: two keys with one hash share their order."""
    return xxhash.xxh3_64_intdigest(key) >> 1
