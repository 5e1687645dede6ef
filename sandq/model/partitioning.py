"""Choose the partition of a key: xxh3_64, then jump consistent hash.

This choice is part of the protocol: producers in all languages must choose the same partition, so the constants never
change. When the number of partitions grows from n to n + 1, one key in n + 1 moves, and only to the new partition
(Lamping and Veach, "A Fast, Minimal Memory, Consistent Hash Algorithm", 2014).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

import xxhash

_MULTIPLIER = 2862933555777941757
_MASK = 2**64 - 1
_TWO_31 = float(1 << 31)


def partition_for(key: bytes, partitions: int) -> int:
    """Return the partition of a key, 0 to partitions - 1."""
    return _jump(xxhash.xxh3_64_intdigest(key), partitions)


PARTITION_DELIMITER: Final = "partition_delimiter"
"""Key in the record of a compacted topic's settings. PERSISTED."""


class KeyPartitions(NamedTuple):
    """Partitions of the keys of a compacted topic. The *partition key* chooses the partition: the part of a
    key before the first delimiter, or the whole key if it has no delimiter."""

    partitions: int
    """Number of partitions that the topic was created with."""
    delimiter: bytes = b""
    """Delimiter of partition keys. Empty: each key is its own partition key."""

    @classmethod
    def of_topic(cls, partitions: int, settings: Mapping[str, Any]) -> KeyPartitions:
        """Build it from the record of a topic's settings."""
        return cls(partitions, delimiter_of(settings))

    def of(self, key: bytes) -> int:
        """Return the partition of a key."""
        return partition_for(key.partition(self.delimiter)[0] if self.delimiter else key, self.partitions)

    def of_range(self, start: bytes, stop: bytes | None) -> int | None:
        """Return the partition of all keys from `start` up to, but excluding, `stop`; None if they may be in
        several."""
        if self.partitions == 1:
            return 0
        if not self.delimiter or stop is None:
            return None
        head, delimiter, _ = start.partition(self.delimiter)
        if not delimiter:
            return None
        shared = head + delimiter  # UTF-8 never ends with 0xff
        return partition_for(head, self.partitions) if stop <= shared[:-1] + bytes([shared[-1] + 1]) else None


def delimiter_of(settings: Mapping[str, Any]) -> bytes:
    """Return the delimiter that ends the partition key in the keys of a topic; empty if there is none."""
    return (settings.get(PARTITION_DELIMITER) or "").encode()


def _jump(key: int, buckets: int) -> int:
    """Return the bucket of a key, by jump consistent hashing (Lamping and Veach, 2014). A new bucket moves few keys."""
    if buckets < 1:
        raise ValueError(f"{buckets} partitions: at least one is needed")
    bucket, following = 0, 0
    # `following` is the next bucket to which the key moves as buckets are added: jump there without trying each bucket.
    while following < buckets:
        bucket = following
        key = (key * _MULTIPLIER + 1) & _MASK
        following = int((bucket + 1) * (_TWO_31 / ((key >> 33) + 1)))
    return bucket


def ordering_hash(key: bytes) -> int:
    """Return the hash that stands for a key in ordering. Messages of keys with the same hash are ordered together."""
    return xxhash.xxh3_64_intdigest(key) >> 1
