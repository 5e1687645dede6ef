"""`client.kv(topic)`: a compacted topic as a map of keys to values."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any, Final, TypeVar

import anyio
import anyio.abc

from sandq.client.arguments import suggesting
from sandq.client.kv.entries import Change, Entries, Entry
from sandq.client.kv.get import LINEARIZABLE, is_stale, read_latest, read_many, read_stale
from sandq.client.kv.scan import KeyRange, Scan
from sandq.client.kv.watch import Watch
from sandq.client.kv.watch_positions import NOW, WatchStart
from sandq.client.messages.messages import check_limit
from sandq.client.producer.batches import Receipt, Receipts
from sandq.client.producer.producer import Producer
from sandq.client.producer.validation import EXPECTED_BIT, Headers, MessageValidation, Value, as_bytes
from sandq.client.timeouts import timed_change, timed_read
from sandq.client.transport.cluster import Cluster
from sandq.client.transport.request_batcher import Counter, RequestBatcher
from sandq.client.transport.requests import fresh_topic, used_topic
from sandq.model import offsets as offset_model
from sandq.model.errors import BELONGS_TO, InvalidRequest, UnknownPartition
from sandq.model.json_values import MISSING, content_of
from sandq.model.names import COMPACTED
from sandq.model.partitioning import KeyPartitions
from sandq.model.times import Duration
from sandq.protocol.replies import TopicRecord

__all__ = ["Change", "Entries", "Entry", "Keys", "Watch"]

T = TypeVar("T")
_ATTEMPTS: Final = 4
"""Maximum number of attempts to read or write a key with a newly fetched record of the topic."""
_ABSENT: Final = b""
"""The expected version of a key that must have no value."""

Pairs = Mapping[Value, Value | None] | Mapping[str, Value | None] | Mapping[bytes, Value | None]
"""Keys and their values; None deletes the key."""


@suggesting
class Keys:
    """The keys of one compacted topic. Created by `client.kv`; may be used by any number of tasks.

    Keys and values are bytes, or text that is encoded as UTF-8. A *version* is the offset of a write (26 characters);
    no two values of a key have the same version. Writes use the same producer as `client.produce`: each write is stored
    once, even if it is retried, and concurrent writes share batches. Retriable errors are raised after
    `delivery_timeout` (writes) and `timeout` (reads). Raises InvalidRequest if the topic is of another kind.

    A read is "linearizable" or "stale". A linearizable read includes all writes that were acknowledged before it. For a
    stale read, any replica replies from its own state, and `stale_ms` is the maximum age of the result.
    """

    def __init__(
        self,
        cluster: Cluster,
        tasks: anyio.abc.TaskGroup,
        batcher: RequestBatcher,
        producer_of: Callable[[str], Awaitable[Producer]],
        topic: str,
    ) -> None:
        self.topic = topic
        self._cluster = cluster
        self._tasks = tasks
        self._batcher = batcher
        self._producer_of = producer_of
        self._checks = MessageValidation(cluster.limits)

    # Writing.

    @timed_change
    async def put(
        self,
        key: Value,
        value: Value = MISSING,
        *,
        json: Any = MISSING,
        headers: Headers | None = None,
        ttl: Duration | None = None,
        timeout: Duration | None = None,
    ) -> str:
        """Set the value of a key, and return the new version once it is safely stored.

        `ttl`: time to live (None: the topic's setting). `json`: a value in JSON, as in `produce`.
        """
        value, headers = content_of(value, json, headers)
        return await self._write(key, _no_null(value), headers, ttl)

    @timed_change
    async def put_many(
        self, items: Pairs | Iterable[tuple[Value, Value | None]], *, timeout: Duration | None = None
    ) -> list[str]:
        """Set many keys in batches; return their versions, in the given order.

        `items`: a mapping of keys to values, or an iterable of such pairs. A value of None deletes the key. Writes to
        the same key are stored in this order. An invalid item raises an error immediately, with its position in the
        text. The items before it are written nevertheless.
        """
        producer = await self._producer()
        receipts = Receipts()
        index = 0
        try:
            for index, item in enumerate(items.items() if isinstance(items, Mapping) else items):  # noqa: B007
                key, value = _pair(item)
                message = producer.checks.message(value, key=self._key(key))
                await producer.wait_for_capacity()
                batch, position, sealed = producer.add(*message)
                receipts.add(batch, position)
                if sealed:
                    await anyio.lowlevel.checkpoint()  # let the connection send the sealed batches
        except InvalidRequest as error:
            raise error.again(f"item {index} of put_many: {error.message}") from None
        return await receipts

    @timed_change
    async def delete(self, key: Value, *, expected: str | None = None, timeout: Duration | None = None) -> str:
        """Delete a key, and return the version of the deletion. A key without a value can be deleted, too.

        `expected`: delete only if the key has this version. Otherwise VersionChanged is raised; its
        `details["version"]` is the current version, or None if the key has no value.
        """
        return await self._write(key, None, expected=None if expected is None else _version(expected))

    @timed_change
    async def cas(
        self,
        key: Value,
        value: Value | None = MISSING,
        *,
        expected: str | None,
        json: Any = MISSING,
        headers: Headers | None = None,
        ttl: Duration | None = None,
        timeout: Duration | None = None,
    ) -> str:
        """Compare and set: `put` (a value of None: `delete`) only if the key has the version `expected` (None: has no
        value).

        Otherwise VersionChanged is raised; its `details["version"]` is the current version, or None if the key has no
        value.

        The write takes effect once: a retry after a lost reply gets the first reply. If TimedOut or ConnectionLost is
        raised after `delivery_timeout`, the outcome is unknown.
        """
        value, headers = content_of(value, json, headers)
        condition = _ABSENT if expected is None else _version(expected)
        return await self._write(key, value, headers, ttl, expected=condition)

    # Reading.

    @timed_read
    async def get(
        self, key: Value, *, consistency: str = LINEARIZABLE, timeout: Duration | None = None
    ) -> Entry | None:
        """Return the entry of a key; None if it has no value. Concurrent calls share frames."""
        ask = read_stale if is_stale(consistency) else read_latest
        data = self._key(key)

        async def read(routing: KeyPartitions) -> Entry | None:
            return await self._batcher.run(Counter(ask, self.topic, routing.of(data)), data)

        return await self._with_routing(self._record, lambda record: read(_routing(record)))

    @timed_read
    async def get_many(
        self, keys: Iterable[Value], *, consistency: str = LINEARIZABLE, timeout: Duration | None = None
    ) -> Entries:
        """Return the entries of many keys, in the given order. Keys are read at different times: the result is no
        snapshot."""
        stale = is_stale(consistency)
        if isinstance(keys, (str, bytes, bytearray, memoryview)):
            raise InvalidRequest(f"keys: several are expected, not {type(keys).__name__}: one key is for `get`")
        wanted = [self._key(key) for key in keys]

        async def read(routing: KeyPartitions) -> Entries:
            return await read_many(self._cluster, self.topic, routing, wanted, stale=stale)

        return await self._with_routing(self._record, lambda record: read(_routing(record)))

    def scan(
        self,
        *,
        prefix: Value | None = None,
        start: Value | None = None,
        stop: Value | None = None,
        limit: int | None = None,
        partition: int | None = None,
        consistency: str = LINEARIZABLE,
        timeout: Duration | None = None,
    ) -> Scan:
        """Iterate over the keys that have a value, in byte order: `async for entry in kv.scan(prefix="user/"):`.

        The scan covers all partitions, or only `partition`. It returns either keys that begin with `prefix`, or keys
        from `start` up to, but excluding, `stop`. To continue after an entry later, use `start=entry.key + b"\\0"`. In
        a topic with a `partition_delimiter`, keys that begin with one partition key and the delimiter are read from its
        partition only.
        """
        check_limit(limit)
        stale, keys = is_stale(consistency), key_range(prefix, start, stop)

        async def partitions() -> Sequence[int]:
            routing = _routing(await self._fresh_record())
            count = routing.partitions
            if partition is None:
                only = routing.of_range(keys.start, keys.stop)
                return range(count) if only is None else (only,)
            if not 0 <= partition < count:
                raise UnknownPartition(f"topic {self.topic!r} has partitions 0..{count - 1}, there is no {partition}")
            return (partition,)

        return Scan(self._cluster, self._tasks, self.topic, partitions, keys, limit, stale=stale, timeout=timeout)

    def watch(
        self,
        key: Value | None = None,
        *,
        prefix: Value | None = None,
        start: WatchStart = NOW,
        latest: bool = False,
    ) -> Watch:
        """Watch the writes to one key, to the keys with a prefix, or to all keys.

        Use it as `async with kv.watch(prefix="user/") as watch: async for change in watch:`. `start` is one of:

        - "now": writes after the block was entered;
        - "earliest";
        - a version: writes after it in its partition, and from its time on in the other partitions;
        - a former `watch.position`.

        Changes of one key are returned in order, and each change once, also across reconnects and failovers.

        With `latest=False`, every change is returned. HistoryGone is raised if changes were compacted before the watch
        read them (see the topic's `history`), for example because the watch is too slow. With `latest=True`, a change
        may be left out if its key has a later write; a watch from "earliest" begins with the current values.
        HistoryGone then means that deletions may have been missed (`tombstone_retention`).
        """
        if key is not None and prefix is not None:
            raise InvalidRequest("watch: one of key and prefix, not both")
        if key is not None:
            only = self._key(key)
            return Watch(self._cluster, self._tasks, self.topic, self._fresh_record, KeyRange(only, only + b"\0"),
                         only, start, latest)  # fmt: skip
        keys = key_range(prefix, None, None)
        return Watch(self._cluster, self._tasks, self.topic, self._fresh_record, keys, None, start, latest)

    # Private methods.

    def _key(self, key: Value) -> bytes:
        data = self._checks.key(key)
        if not data:
            raise InvalidRequest("key: it must not be empty" if data is not None else "key: it is missing")
        return data

    async def _record(self) -> TopicRecord:
        self._cluster.check_open()
        return self._compacted(await self._cluster.topic(self.topic))

    async def _fresh_record(self) -> TopicRecord:
        """Return a newly fetched record, for requests whose partition the node cannot check: the topic may have been
        recreated."""
        self._cluster.check_open()
        return self._compacted(await fresh_topic(self._cluster, self.topic))

    async def _with_routing(
        self, record_of: Callable[[], Awaitable[TopicRecord]], work: Callable[[TopicRecord], Awaitable[T]]
    ) -> T:
        """Call `work` with the topic's record. Repeat it with a newer record if a node reports that a key belongs to
        another partition.

        In that case the topic was recreated with other partitions or another delimiter, and nothing was done.
        """
        for attempt in range(_ATTEMPTS):
            record = await record_of()
            try:
                return await work(record)
            except (InvalidRequest, UnknownPartition) as error:
                is_elsewhere = isinstance(error, UnknownPartition) or BELONGS_TO in error.details
                if not is_elsewhere or attempt == _ATTEMPTS - 1:
                    raise
            if self._cluster.record(self.topic) is record:  # no newer record was fetched
                fresh = await fresh_topic(self._cluster, self.topic)
                if _routing(fresh) == _routing(record):  # the node that refused the key lags behind
                    await anyio.sleep(self._cluster.options.back_off_s(attempt))
        raise AssertionError("the last attempt raises")

    def _compacted(self, record: TopicRecord) -> TopicRecord:
        if record.kind != COMPACTED:
            text = f"topic {self.topic!r} is a {record.kind} topic: only compacted ones have keys"
            raise InvalidRequest(text, topic=self.topic)
        return record

    async def _producer(self) -> Producer:
        await self._used_record()
        return await self._producer_of(self.topic)

    async def _used_record(self) -> TopicRecord:
        self._cluster.check_open()
        return self._compacted(await used_topic(self._cluster, self.topic))

    async def _write(
        self,
        key: Value,
        value: Value | None,
        headers: Headers | None = None,
        ttl: Duration | None = None,
        expected: bytes | None = None,
    ) -> str:
        data, key_bytes, packed, traits, time, partition, ttl_ms, unique, *_ = self._checks.message(
            value, key=self._key(key), headers=headers, ttl=ttl
        )
        if expected is not None:
            traits |= EXPECTED_BIT

        async def write(record: TopicRecord) -> str:
            producer = await self._producer_of(self.topic)
            await producer.wait_for_capacity()
            message = data, key_bytes, packed, traits, time, partition, ttl_ms, unique, None, None, expected
            batch, position, _ = producer.add(*message)
            return await Receipt(batch, position)

        return await self._with_routing(self._used_record, write)


def key_range(prefix: Value | None, start: Value | None, stop: Value | None) -> KeyRange:
    """Return the range of keys that the arguments of a scan or watch describe. Raises InvalidRequest."""
    if prefix is not None:
        if start is not None or stop is not None:
            raise InvalidRequest("prefix: it cannot be combined with start and stop")
        return KeyRange.of_prefix(as_bytes("prefix", prefix))
    first = b"" if start is None else as_bytes("start", start)
    return KeyRange(first, None if stop is None else as_bytes("stop", stop))


def _routing(record: TopicRecord) -> KeyPartitions:
    return KeyPartitions.of_topic(record.initial_partitions, record.settings)


def _no_null(value: Value) -> Value:
    if value is None:
        raise InvalidRequest("value: bytes or str is expected, not NoneType: use `delete` to delete a key")
    return value


def _version(text: str) -> bytes:
    try:
        return offset_model.from_text(text)
    except InvalidRequest as error:
        raise InvalidRequest(f"expected: a version: {error.message}") from None


def _pair(item: Any) -> tuple[Value, Value | None]:
    if not isinstance(item, (tuple, list)) or len(item) != 2:
        raise InvalidRequest(f"a pair of key and value is expected, not {str(item)[:80]}")
    return item[0], item[1]
