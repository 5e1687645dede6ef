"""Encode the records of topics for replies. An encoded record is cached until the metadata or the leader of a partition
changes."""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import msgpack

from sandq.broker.event_loop import TimeSlice
from sandq.broker.peers.routes import Routes
from sandq.metadata.records import Topic
from sandq.model.names import AUTO_CREATED

KEPT_BYTES: Final = 8 << 20
"""Maximum bytes of encoded topics that are cached: enough for about as many topics as a cluster may have.

The oldest entries are dropped first."""
PARTITION_WORK: Final = 1


class _Kept(NamedTuple):
    record: Topic
    version: int
    """Version of `Routes` (which node leads each partition) when the encoding began."""
    encoded: bytes


class TopicRecords:
    """The cache of one node."""

    def __init__(self, routes: Routes) -> None:
        self._routes = routes
        self._kept: dict[str, _Kept] = {}
        self._kept_bytes = 0

    async def encoded(self, record: Topic, time_slice: TimeSlice) -> bytes:
        """Return the map that describes a topic, in MessagePack. Encode it in time slices."""
        kept = self._kept.get(record.name)
        if kept is not None and kept.record is record and kept.version == self._routes.version:
            return kept.encoded
        version = self._routes.version
        encoded = await self._encode(record, time_slice)
        self._keep(_Kept(record, version, encoded))
        return encoded

    async def _encode(self, record: Topic, time_slice: TimeSlice) -> bytes:
        """Encode a record as a map in MessagePack, one member after the other, in time slices."""
        packer, leader = msgpack.Packer(autoreset=False), self._routes.leader
        packer.pack_map_header(7 if record.owner is None else 8)

        def member(name: str, value: Any) -> None:
            """Pack one member of the record."""
            packer.pack(name)
            packer.pack(value)

        member("name", record.name)
        member("number", record.number)
        member("kind", record.kind)
        packer.pack("partitions")
        packer.pack_array_header(len(record.partitions))
        for number, partition in enumerate(record.partitions):
            packer.pack((number, partition.group, leader(partition.group), partition.nodes, partition.moving))
            await time_slice.spend(PARTITION_WORK)
        member("initial_partitions", record.initial_partitions)
        member("replicas", record.replicas)
        # AUTO_CREATED is internal: a client that copies a topic with these settings could not send it.
        member("settings", {name: value for name, value in record.settings.items() if name != AUTO_CREATED})
        if record.owner is not None:
            member("owner", record.owner)
        encoded: bytes = packer.bytes()
        return encoded

    def _keep(self, new: _Kept) -> None:
        """Cache an encoded record, and drop the oldest ones beyond the limit."""
        self._drop(new.record.name)
        self._kept[new.record.name] = new
        self._kept_bytes += len(new.encoded)
        while self._kept_bytes > KEPT_BYTES:
            self._drop(next(iter(self._kept)))

    def _drop(self, name: str) -> None:
        """Drop a record from the cache."""
        kept = self._kept.pop(name, None)
        if kept is not None:
            self._kept_bytes -= len(kept.encoded)
