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
from sandq.client.options import again
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
_LOOKS: Final = 4
"""So often a key is looked for, or written, with the topic as it is known to be by then."""
_ABSENT: Final = b""
"""What is expected of a key that is to have no value."""

Pairs = Mapping[Value, Value | None] | Mapping[str, Value | None] | Mapping[bytes, Value | None]
"""Keys and their values; None deletes."""


@suggesting
class Keys:
    """The keys of one compacted topic; made by `client.kv`. Any number of tasks may use it.

    Keys and values are bytes, or text as UTF-8. A *version* is the offset of a write (26 characters): no two values of
    a key ever have the same one. Writes go through the topic's producer of `client.produce`, so each is stored once
    however often it is sent, and those at the same time share batches. Retriable errors are raised after
    `delivery_timeout` (writes) and `timeout` (reads). InvalidRequest: the topic is of another kind.

    A read is "linearizable" (it shows at least what was acknowledged before it was asked for) or "stale": what some
    node that holds the key knows, the leader or another one, and `stale_ms` says how old that is at most.
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
        """Let a key have a value, whatever it had; its version, once it is safe. `ttl`: after that it has none (None:
        the topic's setting). `json` is put in place of a value, as `produce` sends it."""
        value, headers = content_of(value, json, headers)
        return await self._write(key, _no_null(value), headers, ttl)

    @timed_change
    async def put_many(
        self, items: Pairs | Iterable[tuple[Value, Value | None]], *, timeout: Duration | None = None
    ) -> list[str]:
        """`put` many, in batches: a mapping of keys to values, or an iterable of such pairs. A value of None deletes.
        Their versions, in this order; writes to one key happen in it.

        A mistake in one raises at once, naming its place; those before it are written all the same.
        """
        producer = await self._producer()
        receipts = Receipts()
        place = 0
        try:
            for place, item in enumerate(items.items() if isinstance(items, Mapping) else items):  # noqa: B007
                key, value = _pair(item)
                message = producer.checks.message(value, key=self._key(key))
                await producer.wait_for_capacity()
                batch, position, sealed = producer.add(*message)
                receipts.add(batch, position)
                if sealed:
                    await anyio.lowlevel.checkpoint()  # so that the batches leave
        except InvalidRequest as error:
            raise again(error, f"item {place} of put_many: {error.message}") from None
        return await receipts

    @timed_change
    async def delete(self, key: Value, *, expected: str | None = None, timeout: Duration | None = None) -> str:
        """Let a key have no value; the version of that. No error when it has none.

        `expected`: only if the key has this version; VersionChanged (`details["version"]`: what it has, None for no
        value) otherwise.
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
        """Compare and set: `put` (`delete` with None) only if the key has the version `expected`; None: only if it has
        no value. VersionChanged (`details["version"]`: what it has, None for no value) otherwise.

        It is done once: sent again after a lost answer, it is answered as the first time. TimedOut and ConnectionLost
        after `delivery_timeout` leave open whether it was done.
        """
        value, headers = content_of(value, json, headers)
        condition = _ABSENT if expected is None else _version(expected)
        return await self._write(key, value, headers, ttl, expected=condition)

    # Reading.

    @timed_read
    async def get(
        self, key: Value, *, consistency: str = LINEARIZABLE, timeout: Duration | None = None
    ) -> Entry | None:
        """What a key has; None when it has no value. Calls at the same time share frames."""
        ask = read_stale if is_stale(consistency) else read_latest
        data = self._key(key)

        async def read(places: KeyPartitions) -> Entry | None:
            return await self._batcher.run(Counter(ask, self.topic, places.of(data)), data)

        return await self._where_keys_are(self._record, lambda record: read(_places(record)))

    @timed_read
    async def get_many(
        self, keys: Iterable[Value], *, consistency: str = LINEARIZABLE, timeout: Duration | None = None
    ) -> Entries:
        """What many keys have, in the order in which they are given. Each is read for itself: this is no snapshot."""
        stale = is_stale(consistency)
        if isinstance(keys, (str, bytes, bytearray, memoryview)):
            raise InvalidRequest(f"keys: several are expected, not {type(keys).__name__}: one key is for `get`")
        wanted = [self._key(key) for key in keys]

        async def read(places: KeyPartitions) -> Entries:
            return await read_many(self._cluster, self.topic, places, wanted, stale=stale)

        return await self._where_keys_are(self._record, lambda record: read(_places(record)))

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
        """`async for entry in kv.scan(prefix="user/"):` keys that have a value, in their order (of bytes), those of all
        partitions, or of one.

        Either those that begin with `prefix`, or those from `start` up to `stop`, which is not included. To go on
        behind an entry later, begin with `start=entry.key + b"\\0"`. In a topic with a `partition_delimiter`, keys that
        all begin with the same partition key and the delimiter are asked of its partition alone.
        """
        check_limit(limit)
        stale, keys = is_stale(consistency), key_range(prefix, start, stop)

        async def partitions() -> Sequence[int]:
            places = _places(await self._fresh_record())
            count = places.partitions
            if partition is None:
                only = places.of_range(keys.start, keys.stop)
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
        """`async with kv.watch(prefix="user/") as watch: async for change in watch:` what is written from then on, of
        one key, of those with a prefix, or of all.

        `start`: "now"; "earliest"; a version, to go on behind it (in its partition; the others begin at its time); or
        what `watch.position` gave. What is written after the block was entered is seen. Changes of one key come in
        their order, each once, also across reconnects and failovers.

        `latest=False` is every change; HistoryGone when some of them are compacted away (the topic's `history`), also
        for a watch from "earliest" that is overtaken by that.
        `latest=True` leaves out what a later change of the key has overtaken: from "earliest" on, the present values
        come first. HistoryGone then says that deletions may be missed (`tombstone_retention`).
        """
        if key is not None and prefix is not None:
            raise InvalidRequest("watch: one of key and prefix, not both")
        if key is not None:
            only = self._key(key)
            return Watch(self._cluster, self._tasks, self.topic, self._fresh_record, KeyRange(only, only + b"\0"),
                         only, start, latest)  # fmt: skip
        keys = key_range(prefix, None, None)
        return Watch(self._cluster, self._tasks, self.topic, self._fresh_record, keys, None, start, latest)

    # Below: how.

    def _key(self, key: Value) -> bytes:
        data = self._checks.key(key)
        if not data:
            raise InvalidRequest("key: it must not be empty" if data is not None else "key: it is missing")
        return data

    async def _record(self) -> TopicRecord:
        self._cluster.check_open()
        return self._compacted(await self._cluster.topic(self.topic))

    async def _fresh_record(self) -> TopicRecord:
        """For what asks partitions that nobody can say are the wrong ones: the topic may have been made anew."""
        self._cluster.check_open()
        return self._compacted(await fresh_topic(self._cluster, self.topic))

    async def _where_keys_are(
        self, record_of: Callable[[], Awaitable[TopicRecord]], work: Callable[[TopicRecord], Awaitable[T]]
    ) -> T:
        """What is to be done with keys where the topic has them; again where a node says that they belong elsewhere:
        the topic was made anew, with other partitions or another delimiter. Nothing was done then."""
        for attempt in range(_LOOKS):
            record = await record_of()
            try:
                return await work(record)
            except (InvalidRequest, UnknownPartition) as error:
                is_elsewhere = isinstance(error, UnknownPartition) or BELONGS_TO in error.details
                if not is_elsewhere or attempt == _LOOKS - 1:
                    raise
            if self._cluster.record(self.topic) is record:  # nobody has asked since
                fresh = await fresh_topic(self._cluster, self.topic)
                if _places(fresh) == _places(record):  # the node that refused it has not heard yet
                    await anyio.sleep(self._cluster.options.back_off_s(attempt))
        raise AssertionError("the last one raises")

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
        data, key_bytes, packed, lot, time, partition, ttl_ms, unique, _ = self._checks.message(
            value, key=self._key(key), headers=headers, ttl=ttl
        )
        if expected is not None:
            lot |= EXPECTED_BIT

        async def write(record: TopicRecord) -> str:
            producer = await self._producer_of(self.topic)
            await producer.wait_for_capacity()
            message = data, key_bytes, packed, lot, time, partition, ttl_ms, unique, None, expected
            batch, position, _ = producer.add(*message)
            return await Receipt(batch, position)

        return await self._where_keys_are(self._used_record, write)


def key_range(prefix: Value | None, start: Value | None, stop: Value | None) -> KeyRange:
    """The keys that a caller means."""
    if prefix is not None:
        if start is not None or stop is not None:
            raise InvalidRequest("prefix: it goes without start and stop")
        return KeyRange.of_prefix(as_bytes("prefix", prefix))
    first = b"" if start is None else as_bytes("start", start)
    return KeyRange(first, None if stop is None else as_bytes("stop", stop))


def _places(record: TopicRecord) -> KeyPartitions:
    return KeyPartitions.of_topic(record.initial_partitions, record.settings)


def _no_null(value: Value) -> Value:
    if value is None:
        raise InvalidRequest("value: bytes or str is expected, not NoneType: `delete` takes a key's value away")
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
