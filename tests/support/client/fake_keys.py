"""Implement compacted topics for the fake server.

The log of a partition is a list of writes, and the last write of a key is its value. Nothing is compacted unless a test
calls `compact`."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from typing import Any, NamedTuple

from sandq.model import offsets
from sandq.model.batch import Batch, Column, encode
from sandq.model.errors import HistoryGone, InvalidRequest
from sandq.model.piece import Piece
from sandq.model.sequence import RESENT
from sandq.protocol.frames import Frame
from sandq.protocol.replies import Offsets, TopicRecord
from sandq.protocol.replies_messages import encode_pieces
from sandq.protocol.requests import Produce
from sandq.protocol.requests_keys import FLAG_HEADERS, VALUE_HEADER, KvGet, KvScan, KvWatch

NOW_MS = 1_700_000_000_000


class Write(NamedTuple):
    """One message of the log."""

    version: bytes
    key: bytes
    value: bytes | None
    headers: bytes | None = None
    expires_ms: int = 0

    def row(self) -> bytes:
        assert self.value is not None
        headers = self.headers or b""
        return VALUE_HEADER.pack(FLAG_HEADERS if headers else 0, len(headers), self.expires_ms, self.version) + (
            headers + self.value
        )


class FakeKeys:
    """The part of `FakeServer` that implements compacted topics."""

    now_ms: int
    index: int
    topics: dict[str, TopicRecord]
    produced: list[Produce]
    record: Callable[[str], TopicRecord]

    def __init__(self) -> None:
        super().__init__()
        self.writes: dict[tuple[str, int], list[Write]] = defaultdict(list)
        self.removed: dict[tuple[str, int], bytes] = {}
        self.answer_keys = 1_000_000  # limit of keys in one reply to KV_GET
        self.scan_rows = 1_000_000  # limit of rows in one reply to KV_SCAN
        self.watch_changes = 1_000_000  # limit of changes in one reply to KV_WATCH
        self.stale_ms = 17
        self.kv_watches: list[tuple[Any, int, KvWatch]] = []
        self._answered: dict[tuple[int, ...], Offsets] = {}

    def do_produce(self, connection: Any, frame: Frame) -> Any:
        request = Produce.parse(frame)
        if self.record(request.topic).kind != "compacted":
            return super().do_produce(connection, frame)  # type: ignore[misc]
        self.produced.append(request)
        sender = (request.partition, request.producer_id, request.epoch, request.sequence & ~RESENT)
        if sender not in self._answered:
            self._answered[sender] = self.store(request.topic, request.partition, Batch.parse(request.batch))
        self.answer_watches()
        return self._answered[sender].fields()

    def store(self, topic: str, partition: int, batch: Batch) -> Offsets:
        self.index += 1
        nulls: list[Any] = [None] * batch.count
        keys, headers, expected = (
            batch.bytes_column(column) or nulls for column in (Column.KEY, Column.HEADERS, Column.EXPECTED_VERSION)
        )
        given: list[bytes] = []
        conflicts = {}
        rows = zip(keys, batch.values(), headers, batch.int_column(Column.TTL_MS) or nulls, expected, strict=True)
        for place, (key, value, packed, ttl_ms, version) in enumerate(rows):
            present = self.latest(topic, partition).get(key)
            if version is not None and version != (present.version if present else b""):
                given.append(present.version if present else bytes(16))
                conflicts[place] = "changed"
                continue
            given.append(offsets.pack(self.now_ms, self.index, place, partition))
            expires_ms = self.now_ms + ttl_ms if ttl_ms else 0
            self.writes[topic, partition].append(Write(given[-1], key, value, packed, expires_ms))
        run = not conflicts
        return Offsets(given[0], len(given), None if run else b"".join(given), conflicts)

    def latest(self, topic: str, partition: int) -> dict[bytes, Write]:
        found = {write.key: write for write in self.writes[topic, partition]}
        return {key: write for key, write in found.items() if write.value is not None}

    def compact(self, topic: str, partition: int) -> None:
        """Keep only the last write of each key, and no deletions."""
        kept = set(self.latest(topic, partition).values())
        log = self.writes[topic, partition]
        gone = [write.version for write in log if write not in kept]
        self.removed[topic, partition] = max([*gone, self.removed.get((topic, partition), bytes(16))])
        self.writes[topic, partition] = [write for write in log if write in kept]

    def do_kv_get(self, connection: Any, frame: Frame) -> Any:
        request = KvGet.parse(frame)
        latest = self.of_keys(request)
        rows = [latest[key].row() if key in latest else None for key in request.keys[: self.answer_keys]]
        return self.stale_ms if request.stale else 0, rows

    def of_keys(self, request: KvGet | KvScan) -> dict[bytes, Write]:
        record = self.record(request.topic)
        if record.kind != "compacted":
            raise InvalidRequest(f"topic {request.topic!r} is a {record.kind} topic: only compacted ones have keys")
        return self.latest(request.topic, request.partition)

    def do_kv_scan(self, connection: Any, frame: Frame) -> Any:
        request = KvScan.parse(frame)
        latest = self.of_keys(request)
        keys = sorted(key for key in latest if request.start <= key and (request.stop is None or key < request.stop))
        count = min(request.limit, self.scan_rows)
        following = keys[count] if len(keys) > count else None
        rows = [cell for key in keys[:count] for cell in (key, latest[key].row())]
        return self.stale_ms if request.stale else 0, rows, following

    # Watching.

    def do_kv_watch(self, connection: Any, frame: Frame) -> Any:
        request = KvWatch.parse(frame)
        self.record(request.topic)
        if not self.answer_watch(connection, frame[1], request, is_late=not request.wait_ms):
            self.kv_watches.append((connection, frame[1], request))

    def end(self, request: KvWatch) -> bytes:
        return offsets.pack(self.now_ms, self.index, offsets.PLACE_MAX, request.partition)

    def answer_watch(self, connection: Any, number: int, request: KvWatch, *, is_late: bool = False) -> bool:
        """Reply to a watch if it has changes, or if its time is over. Return whether a reply was sent."""
        where, through = (request.topic, request.partition), self.end(request)
        mark = self.removed.get(where, bytes(16))
        after = through if request.after is None else request.after
        if bytes(16) < after < mark != request.mark:
            raise HistoryGone("changes are gone")
        last = {write.key: write.version for write in self.writes[where]}
        found = [
            write
            for write in self.writes[where]
            if after < write.version and request.start <= write.key
            if request.stop is None or write.key < request.stop
            if request.every or last[write.key] == write.version
        ]
        if len(found) > (most := min(self.watch_changes, request.max_messages)):
            found, through = found[:most], found[most - 1].version
        if not found and not is_late and request.after is not None:
            return False
        connection.send(
            b"".join(encode_pieces(number, (max(through, after), mark), [piece_of(found)] if found else []))
        )
        return True

    def answer_watches(self, *, is_late: bool = False) -> None:
        """Answer the watches that have changes. `is_late`: answer all of them, because their time is over."""
        waiting, self.kv_watches = self.kv_watches, []
        for connection, number, request in waiting:
            if connection.open and not self.answer_watch(connection, number, request, is_late=is_late):
                self.kv_watches.append((connection, number, request))


def piece_of(writes: list[Write]) -> Piece:
    columns = {
        Column.VALUE: [write.value for write in writes],
        Column.KEY: [write.key for write in writes],
        Column.HEADERS: [write.headers for write in writes],
    }
    return Piece(b"".join(write.version for write in writes), None, NOW_MS, None, encode(columns))
