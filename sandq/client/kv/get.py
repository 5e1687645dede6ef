"""Read keys by name, in frames of up to 1,000 keys, several frames at a time. Request keys again that a reply left
out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from sandq.client.kv.entries import Entries, Entry
from sandq.client.transport.cluster import Cluster
from sandq.client.transport.requests import call_leader, call_replica, each
from sandq.model.errors import InvalidRequest, UnknownPartition
from sandq.model.partitioning import KeyPartitions
from sandq.protocol.requests_keys import KvGet, KvValues

FRAME_KEYS: Final = 1000
FRAME_BYTES: Final = 1 << 20
"""Maximum number of keys (`FRAME_KEYS`) per request, and of their bytes. A single key may be longer; a node accepts
4 MiB."""

LINEARIZABLE: Final = "linearizable"
STALE: Final = "stale"


def is_stale(consistency: str) -> bool:
    """Return whether a read is stale. Raises InvalidRequest for an unknown consistency."""
    if consistency not in (LINEARIZABLE, STALE):
        raise InvalidRequest(f"consistency: {LINEARIZABLE!r} or {STALE!r} is expected, not {consistency!r}")
    return consistency == STALE


async def read_latest(cluster: Cluster, topic: str, partition: int, keys: Sequence[bytes]) -> Entries:
    """Read keys of a partition from its leader; the result includes all writes acknowledged before the call."""
    return await _read(cluster, topic, partition, keys, stale=False)


async def read_stale(cluster: Cluster, topic: str, partition: int, keys: Sequence[bytes]) -> Entries:
    """Read keys of a partition from any of its replicas; the result may be old."""
    return await _read(cluster, topic, partition, keys, stale=True)


async def _read(cluster: Cluster, topic: str, partition: int, keys: Sequence[bytes], *, stale: bool) -> Entries:
    record = cluster.record(topic)
    if record is not None and partition >= record.initial_partitions:  # such a partition never gets a leader
        raise UnknownPartition(f"topic {topic!r} was recreated with {record.initial_partitions} partitions")
    call = call_replica if stale else call_leader
    rows: list[Entry | None] = []
    stale_ms = 0
    while len(rows) < len(keys):
        asked = _part(keys, len(rows))
        frame = await call(cluster, KvGet(topic, partition, stale, asked))
        age_ms, found = KvValues.parse(frame, len(asked))  # the reply may have only the first keys
        rows += [
            None if value is None else Entry(key, value, partition, age_ms)
            for key, value in zip(asked, found, strict=False)
        ]
        stale_ms = max(stale_ms, age_ms)
    return Entries(rows, stale_ms)


def _part(keys: Sequence[bytes], start: int) -> Sequence[bytes]:
    """Return the next keys that fit into one frame; at least one."""
    part = keys[start : start + FRAME_KEYS]
    if sum(map(len, part)) <= FRAME_BYTES:
        return part
    size = count = 0
    for key in part:
        size += len(key)
        if count and size > FRAME_BYTES:
            break
        count += 1
    return part[:count]


async def read_many(
    cluster: Cluster, topic: str, partitions: KeyPartitions, keys: Sequence[bytes], *, stale: bool
) -> Entries:
    """Read keys of any partitions; return the entries in the order of `keys`."""
    positions = _by_partition(keys, partitions)
    loads = [
        (partition, at[start : start + FRAME_KEYS])
        for partition, at in positions.items()
        for start in range(0, len(at), FRAME_KEYS)
    ]

    async def read(load: tuple[int, Sequence[int]]) -> Entries:
        partition, at = load
        return await _read(cluster, topic, partition, [keys[position] for position in at], stale=stale)

    found = [await read(loads[0])] if len(loads) == 1 else await each(read, loads)
    rows: list[Entry | None] = [None] * len(keys)
    for (_, at), entries in zip(loads, found, strict=True):
        for position, entry in zip(at, entries, strict=True):
            rows[position] = entry
    return Entries(rows, max((entries.stale_ms for entries in found), default=0))


def _by_partition(keys: Sequence[bytes], partitions: KeyPartitions) -> dict[int, Sequence[int]]:
    if partitions.partitions == 1:
        return {0: range(len(keys))}
    positions: dict[int, list[int]] = {}
    for position, key in enumerate(keys):
        positions.setdefault(partitions.of(key), []).append(position)
    return {**positions}
