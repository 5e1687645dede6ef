"""sandq itself: one node, one topic of 4 partitions."""

from __future__ import annotations

import contextlib
import platform
import struct
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import sandq
from benchmarks.peers.peer import Client, Consumer, Link, Peer, PeerError
from benchmarks.wire import Wire
from demo.node import Node
from sandq.model import offsets
from sandq.model.batch import Column, encode, peek
from sandq.protocol.frames import FrameReader, Type
from sandq.protocol.replies import Deliver
from sandq.protocol.requests import Ack, Credit, Produce, Subscribe
from sandq.protocol.requests_admin import GroupList, TopicStats

TOPIC = "bench"
GROUP = "workers"
PARTITIONS = 4
LEASE_MS = 60_000
SUBSCRIPTION = 1_000_000
_SUBSCRIBED = 1
_LENGTH = struct.Struct(">I")


class Sandq(Peer):
    name = "sandq"
    program = sys.executable
    package = ""
    durability = "fdatasync before each response"
    notes = "one topic, 4 partitions, batches as they are; an ack request has an entry for each message"

    def executable(self) -> str | None:
        return sys.executable

    def version(self) -> str:
        return f"sandq {sandq.__version__}, Python {platform.python_version()}"

    @contextlib.contextmanager
    def serving(self, directory: Path) -> Iterator[tuple[int, int]]:
        node = Node(directory)
        try:
            node.start()
            node.wait_until_it_serves()
            assert node.pid is not None
            yield node.pid, node.port
            node.check()
        finally:
            node.stop()

    def client(self, port: int) -> Client:
        return SandqClient(port)


class SandqClient(Client):
    def ping(self) -> None:
        Wire(self.port).close()

    def create(self, scheduled: bool) -> None:
        wire = Wire(self.port)
        wire.create_topic(TOPIC, PARTITIONS, lease=f"{LEASE_MS // 1000}s")
        wire.close()

    def link(self, at: int, size: int, scheduled: bool) -> Link:
        return SandqLink(self.port, at % PARTITIONS)

    def consumer(self, messages: int, scheduled: bool, window: int) -> Consumer:
        return SandqConsumer(Wire(self.port), window)

    def stored(self) -> int:
        return sum(row["messages"] for row in self._rows(TopicStats(TOPIC)))

    def unconsumed(self) -> int:
        return sum(row["lag"] for row in self._rows(GroupList(TOPIC)) if row["group"] == GROUP)

    def _rows(self, request: TopicStats | GroupList) -> list[dict[str, Any]]:
        wire = Wire(self.port)
        rows: list[dict[str, Any]] = wire.call(request.frame)[2]
        wire.close()
        return rows


class SandqLink(Link):
    def __init__(self, port: int, partition: int) -> None:
        super().__init__(Wire(port).socket)
        self._partition = partition
        self._kept = b""

    def request(self, number: int, values: Sequence[bytes], dues_ms: Sequence[int] | None) -> bytes:
        columns: dict[int, Sequence[bytes] | Sequence[int]] = {Column.VALUE: values}
        if dues_ms is not None:
            columns[Column.DELIVER_MS] = dues_ms
        return Produce(TOPIC, self._partition, 0, 0, 0, 0, encode(columns)).frame(number)

    def count(self, data: bytes) -> int:
        data = self._kept + data
        at, end, found = 0, len(data) - 4, 0
        length_at = _LENGTH.unpack_from
        while at <= end:
            stop = at + 4 + length_at(data, at)[0]
            if stop > end + 4:
                break
            if data[at + 5] != Type.REPLY:  # the body: an array's head, then the type
                raise PeerError(f"not a reply: {data[at : at + 200]!r}")
            at = stop
            found += 1
        self._kept = data[at:]
        return found


class SandqConsumer(Consumer):
    def __init__(self, wire: Wire, credit: int) -> None:
        super().__init__(wire.socket)
        self._credit = credit
        self._reader = FrameReader()
        self._requests = _SUBSCRIBED
        self._unanswered: dict[int, int] = {}

    def start(self) -> bytes:
        request = Subscribe(SUBSCRIPTION, TOPIC, GROUP, "benchmarks-1", self._credit, LEASE_MS, "earliest", [])
        return request.frame(_SUBSCRIBED)

    def receive(self, data: bytes) -> bytes:
        out, came = [], 0
        for frame in self._reader.feed(data):
            if frame[0] == Type.DELIVER:
                ack, count = self._ack(Deliver.parse(frame))
                out.append(ack)
                came += count
            elif frame[0] != Type.REPLY:
                raise PeerError(f"not a reply: {frame}")
            elif frame[1] != _SUBSCRIBED:
                if frame[2] != [None]:
                    raise PeerError(f"an ack was refused: {frame}")
                self.done += self._unanswered.pop(frame[1])
        if came:
            out.append(Credit(SUBSCRIPTION, came).frame())
        return b"".join(out)

    def _ack(self, delivery: Deliver) -> tuple[bytes, int]:
        """Return the request, and how many messages it acks."""
        count = peek(delivery.batch).count
        if len(delivery.offsets) == offsets.OFFSET_BYTES:
            column = offsets.run(delivery.offsets, count)
        else:
            column = [delivery.offsets[at : at + 16] for at in range(0, 16 * count, 16)]
        if delivery.live is not None:
            column = [offset for first, length in delivery.live for offset in column[first : first + length]]
        self._requests += 1
        self._unanswered[self._requests] = len(column)
        ack = Ack(delivery.group_number, delivery.partition, [[delivery.token, [[offset, 1] for offset in column]]])
        return ack.frame(self._requests), len(column)
