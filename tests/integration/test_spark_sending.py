"""Tasks of the Spark sink write to a real node: each row once, for any number of attempts."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime
from functools import partial
from typing import Any

import pyarrow as pa
import pytest
import trio

import sandq
from sandq.errors import ConnectionLost, DuplicateKey, InvalidRequest, ProducerFenced, Unavailable, UnknownTopic
from sandq.model.partitioning import partition_for
from sandq.node.running import Serving
from sandq.spark.sink import chunks as chunks_module
from sandq.spark.sink.identity import Identity
from sandq.spark.sink.options import parse_sink_options
from sandq.spark.sink.partition_sender import ChangedRows
from sandq.spark.sink.sender import Written
from sandq.spark.sink.writers import write_rows
from tests.support.nodes.hand_clock import HandClock
from tests.support.nodes.proxy import proxy_to
from tests.support.nodes.working import connected
from tests.support.ports import free_port

PARTITIONS = 3
FIRST = Identity("test", 1)
RETRY = Identity("test", 1, resent=True)


class Broken(Exception):
    """The failure of a task."""


async def write(
    port: int, batches: Iterable[Any], identity: Identity = FIRST, columns: Sequence[str] = (), **options: str
) -> Written:
    """Run an attempt of a task in a thread, as a Spark worker does. `batches` may raise."""
    batches = iter(batches)
    first = next(batches)
    names = columns or first.schema.names
    servers = {"sandq.bootstrap.servers": f"127.0.0.1:{port}"}
    found = parse_sink_options({**servers, **({} if "topic" in names else {"topic": "t"}), **options})

    def rows() -> Iterator[Any]:
        yield first
        yield from batches

    return await trio.to_thread.run_sync(partial(write_rows, rows(), names, found, identity))


def table(numbers: Sequence[int], **columns: Any) -> Any:
    return pa.record_batch({"value": pa.array([b"%d" % number for number in numbers]), **columns})


def keyed(numbers: Sequence[int]) -> Any:
    return table(numbers, key=pa.array([None if number % 3 == 0 else f"k{number % 50}" for number in numbers]))


def sliced(batch: Any, size: int) -> list[Any]:
    return [batch.slice(start, size) for start in range(0, batch.num_rows, size)]


def failing(batches: Iterable[Any]) -> Iterator[Any]:
    yield from batches
    raise Broken("in mid-write")


async def values(api: sandq.Client, topic: str = "t") -> list[int]:
    return [int(message.value or b"-1") async for message in api.messages(topic).list(values=True)]


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Use small chunks and small rounds of chunks."""
    monkeypatch.setattr(chunks_module, "CHUNK_ROWS", 200)
    monkeypatch.setattr(chunks_module, "BLOCK_ROWS", 300)
    monkeypatch.setattr("sandq.spark.sink.sender.ROUND_BYTES", 3_000)


async def test_all_columns_are_written(timed: Serving, hand: HandClock) -> None:
    hand.hold()
    async with connected(timed) as api:
        await all_columns(timed, api, hand.now_ms())


async def all_columns(node: Serving, api: sandq.Client, now_ms: int) -> None:
    """Write rows with all columns that Spark may send, and check the stored messages."""
    await api.admin.create_topic("t", partitions=PARTITIONS)
    await api.admin.create_topic("u")
    soon = datetime(2036, 1, 1, 0, 0, 0, 1, UTC)
    rows = {
        "value": pa.array([b"0", b"1", b"2", b"3"]),
        "key": pa.array(["k", None, None, "u"]),
        "headers": pa.array([[("a", "1")], [], None, [("b", None)]], pa.map_(pa.string(), pa.string())),
        "topic": pa.array(["t", "t", "u", "t"]),
        "partition": pa.array([2, None, None, None], pa.int32()),
        "deliver_at": pa.array([soon, None, None, None], pa.timestamp("us", tz="UTC")),
        "delay_ms": pa.array([None, 3_600_000, None, None], pa.int64()),
        "ttl_ms": pa.array([None, None, 60_000, None], pa.int64()),
        "unique_key": pa.array([None, None, None, "u"]),
    }
    written = await write(node.client_port, [pa.record_batch(rows)])
    assert (written.rows, written.topics) == (4, {"t", "u"})
    found = {int(m.value or b""): m async for m in api.messages("t").list(values=True)}
    assert sorted(found) == [0, 1, 3] and await values(api, "u") == [2]
    assert found[0].deliver_at_ms == int(soon.timestamp() * 1000) + 1, "never early"
    assert found[1].deliver_at_ms == now_ms + 3_600_000
    assert (found[0].key, found[0].headers, found[3].headers) == (b"k", {"a": "1"}, {"b": None})
    assert found[0].partition == 2
    assert (await api.messages("t").get(unique_key="u", key="u")).id == found[3].id
    with pytest.raises(UnknownTopic):
        await write(node.client_port, [table([1], topic=pa.array(["none"]))])


@pytest.mark.parametrize("size", [10_000, 97])
async def test_a_task_that_fails_and_is_run_again(node: Serving, api: sandq.Client, small: None, size: int) -> None:
    await api.admin.create_topic("t", partitions=PARTITIONS)
    rows = keyed(range(10_000))
    stored = []
    for place in (1, 3, 6):
        with pytest.raises(Broken):
            await write(node.client_port, failing([rows.slice(0, place * 1000 + 1)]), FIRST if place == 1 else RETRY)
        stored.append(len(await values(api)))
    assert stored[0] < stored[1] < stored[2] < 10_000
    written = await write(node.client_port, sliced(rows, size), RETRY)
    assert written.rows == 10_000 and 10 < written.already_stored < written.chunks
    assert sorted(await values(api)) == [*range(10_000)]
    written = await write(node.client_port, sliced(rows, 333), RETRY)
    assert written.already_stored == written.chunks
    by_key: dict[bytes | None, list[int]] = {}
    async for message in api.messages("t").list(values=True):
        by_key.setdefault(message.key, []).append(int(message.value or b""))
    assert len(by_key.pop(None)) == 3334
    assert all(numbers == sorted(numbers) for numbers in by_key.values()), "the order of each key must be kept"


@pytest.mark.parametrize("again", [False, True])
async def test_rows_in_another_order(node: Serving, api: sandq.Client, small: None, again: bool) -> None:
    await api.admin.create_topic("t", partitions=PARTITIONS)
    numbers = [*range(6000)]
    with pytest.raises(Broken):
        await write(node.client_port, failing([keyed(numbers)]))
    before = await values(api)
    assert 2000 < len(before) < 6000
    random.Random(1).shuffle(numbers)
    if again:
        written = await write(node.client_port, [keyed(numbers)], RETRY, onChangedRows="again")
        assert written.again > 0
        assert Counter(await values(api)) == Counter([*range(6000), *before])
        return
    with pytest.raises(ChangedRows, match=r"rows differ between attempts.*onChangedRows=again"):
        await write(node.client_port, [keyed(numbers)], RETRY)
    assert sorted(await values(api)) == sorted(before), "no row may be stored"


async def test_unique_keys_in_another_order(node: Serving, api: sandq.Client, small: None) -> None:
    await api.admin.create_topic("t", partitions=PARTITIONS)
    numbers = [*range(3000)]

    def rows() -> Any:
        return table(numbers, unique_key=pa.array([f"u{number}" for number in numbers]))

    with pytest.raises(Broken):
        await write(node.client_port, failing([rows()]))
    random.Random(1).shuffle(numbers)
    written = await write(node.client_port, [rows()], RETRY)
    assert written.again > 0
    assert sorted(await values(api)) == [*range(3000)]
    numbers[:] = [5, 3000]
    with pytest.raises(DuplicateKey, match=r"1 rows of a chunk have a unique key that is taken; the first is b'u5'"):
        await write(node.client_port, [rows()], Identity("other", 0), onConflict="reject")
    await write(node.client_port, [rows()], Identity("more", 0), onConflict="replace")
    assert sorted(await values(api)) == [*range(3001)]


async def test_micro_batches(node: Serving, api: sandq.Client) -> None:
    await api.admin.create_topic("t", partitions=PARTITIONS)
    batches = [Identity("query", 0, epoch, resent=True) for epoch in range(1, 4)]
    for place, identity in enumerate(batches):
        rows = [keyed(range(1000 * place, 1000 * place + 1000))]
        for written in [await write(node.client_port, rows, identity) for _ in range(2)]:
            assert written.rows == 1000
    assert sorted(await values(api)) == [*range(3000)]
    with pytest.raises(ProducerFenced, match="a later micro-batch"):
        await write(node.client_port, [keyed(range(1000, 2000))], batches[1])
    await write(node.client_port, [keyed(range(2000, 3000))], batches[2])
    assert sorted(await values(api)) == [*range(3000)]


async def test_a_connection_that_is_cut(node: Serving, api: sandq.Client, small: None) -> None:
    await api.admin.create_topic("t", partitions=PARTITIONS)
    async with proxy_to(node.client_port) as proxy:
        proxy.cut_answer = lambda n: n % 11 == 4
        proxy.cut_request = lambda n: n % 17 == 9
        written = await write(proxy.port, [keyed(range(10_000))])
        assert proxy.lost.is_set() and proxy.answers > written.chunks
    assert written.rows == 10_000
    assert sorted(await values(api)) == [*range(10_000)]


async def test_a_compacted_topic(node: Serving, api: sandq.Client) -> None:
    await api.admin.create_topic("t", kind="compacted", partitions=PARTITIONS)
    keys = [f"k{number}" for number in range(100)]
    await write(node.client_port, [table(range(100), key=pa.array(keys))])
    deleted = pa.record_batch({"value": pa.array([b"1000", None]), "key": pa.array(["k1", "k2"])})
    await write(node.client_port, [deleted], Identity("other", 0))
    kv = api.kv("t")
    entries = [await kv.get(key) for key in keys]
    assert [None if one is None else int(one.value) for one in entries] == [0, 1000, None, *range(3, 100)]
    bad = pa.record_batch({"value": pa.array([b"1", b"2"]), "key": pa.array(["k", None])})
    with pytest.raises(
        InvalidRequest,
        match=r"row 1 of Spark partition 1 .* column key: it is missing or empty: topic 't' is compacted",
    ):
        await write(node.client_port, [bad])


async def test_keys_go_where_their_partition_keys_say(node: Serving, api: sandq.Client) -> None:
    await api.admin.create_topic("t", kind="compacted", partitions=PARTITIONS, partition_delimiter="/")
    keys = [f"{owner}/{thing}" for owner in range(9) for thing in range(9)]
    await write(node.client_port, [table(range(81), key=pa.array(keys))])
    kv = api.kv("t")
    for owner in range(9):
        found = [entry async for entry in kv.scan(prefix=f"{owner}/")]
        assert [entry.key.decode() for entry in found] == keys[owner * 9 : owner * 9 + 9]
        assert {entry.partition for entry in found} == {partition_for(str(owner).encode(), PARTITIONS)}


TENANTS = ["acme", "acme.eu", None, "shop", "default", "x"]


def ranked(numbers: Sequence[int]) -> Any:
    tenants = pa.array([TENANTS[number % len(TENANTS)] for number in numbers], pa.string())
    priorities = pa.array([None if number % 4 == 0 else number % 100 - 50 for number in numbers], pa.int32())
    return table(numbers, tenant=tenants, priority=priorities, key=[f"k{number % 7}" for number in numbers])


async def test_a_fair_topic(node: Serving, api: sandq.Client, small: None) -> None:
    """Rows of a tenant are stored once, in the tenant's partition. This is also true if a task fails and the topic gets
    more partitions meanwhile."""
    await api.admin.create_topic("t", kind="fair", partitions=PARTITIONS)
    rows = ranked(range(6000))
    with pytest.raises(Broken):
        await write(node.client_port, failing([rows]))
    before = len(await values(api))
    await api.admin.update_topic("t", partitions=5)
    written = await write(node.client_port, sliced(rows, 97), RETRY)
    assert before > 2000 and written.already_stored > 10
    found = [message async for message in api.messages("t").list(values=True)]
    assert sorted(int(message.value or b"") for message in found) == [*range(6000)]
    for message in found:
        number = int(message.value or b"")
        tenant = TENANTS[number % len(TENANTS)]
        assert (message.tenant or "default") == (tenant or "default")
        assert message.partition == partition_for((tenant or "default").encode(), PARTITIONS)
        assert message.priority == (0 if number % 4 == 0 else number % 100 - 50)


async def test_unique_keys_of_keys(node: Serving, api: sandq.Client) -> None:
    """A unique key is unique within its key. The key selects the partition as in other clients."""
    await api.admin.create_topic("t", partitions=PARTITIONS)
    keys = ["a", "b", "c", "d", "a"]
    await write(node.client_port, [table([1, 2, 3, 4, 5], unique_key=["u"] * 5, key=keys)])
    assert sorted(await values(api)) == [1, 2, 3, 4]
    for key in ("a", "b", "c", "d"):
        found = await api.messages("t").get(unique_key="u", key=key)
        assert found.partition == partition_for(key.encode(), PARTITIONS)
        assert await api.produce("t", b"", unique_key="u", key=key, on_conflict="ignore") == found.id


async def test_unique_keys_of_tenants(node: Serving, api: sandq.Client) -> None:
    """Each tenant has its own unique keys; the key may differ."""
    await api.admin.create_topic("t", kind="fair", partitions=PARTITIONS)
    rows = table([1, 2, 3], tenant=["acme", "shop", "acme"], unique_key=["u", "u", "u"], key=["a", "b", "c"])
    await write(node.client_port, [rows])
    assert sorted(await values(api)) == [1, 2]
    assert (await api.messages("t").get(unique_key="u", tenant="shop")).key == b"b"


async def test_ranks_that_a_topic_does_not_take(node: Serving, api: sandq.Client) -> None:
    await api.admin.create_topic("t", partitions=PARTITIONS)
    await api.admin.create_topic("p", kind="priority")
    for column, topic, says in (
        ({"priority": pa.array([None, 0])}, "t", "column priority: 't' is a timer topic; only priority"),
        ({"tenant": [None, "acme"]}, "t", "column tenant: 't' is a timer topic; only fair topics accept it"),
        ({"tenant": [None, "acme"]}, "p", "column tenant: 'p' is a priority topic; only fair topics accept it"),
    ):
        with pytest.raises(InvalidRequest, match=f"row 1 of Spark partition 1 .*{says}"):
            await write(node.client_port, [table([1, 2], **column)], topic=topic)
    await write(node.client_port, [table([1, 2], priority=pa.array([None, -7], pa.int64()))], topic="p")
    assert sorted([message.priority async for message in api.messages("p").list()]) == [-7, 0]
    assert await values(api) == []


async def test_bad_row_is_named_and_can_be_corrected(node: Serving, api: sandq.Client, small: None) -> None:
    await api.admin.create_topic("t")
    rows = [
        pa.record_batch({"value": [None if n == 1999 else b"%d" % n for n in range(s, s + 500)]})
        for s in range(0, 5000, 500)
    ]
    with pytest.raises(InvalidRequest, match=r"row 1999 of Spark partition 1 .*column value: it is null"):
        await write(node.client_port, rows)
    before = await values(api)
    assert 500 < len(before) < 2000
    rows[3] = table(range(1500, 2000))
    await write(node.client_port, rows, RETRY)
    assert sorted(await values(api)) == [*range(5000)]


async def test_more_partitions_between_two_attempts(node: Serving, api: sandq.Client, small: None) -> None:
    await api.admin.create_topic("t", partitions=2)
    with pytest.raises(Broken):
        await write(node.client_port, failing([keyed(range(6000))]))
    before = len(await values(api))
    await api.admin.update_topic("t", partitions=5)
    await write(node.client_port, [keyed(range(6000))], RETRY)
    assert before > 2000 and sorted(await values(api)) == [*range(6000)]


async def test_rows_that_were_cut_off(node: Serving, api: sandq.Client, small: None) -> None:
    """The last chunks of a failed attempt are not stored: they would differ from those of the next attempt."""
    await api.admin.create_topic("t", partitions=PARTITIONS)
    options = parse_sink_options({"sandq.bootstrap.servers": f"127.0.0.1:{node.client_port}", "topic": "t"})
    rows = keyed(range(4000))

    def cut_off() -> None:
        raise Unavailable("cut off")

    work = partial(write_rows, [rows.slice(0, 2500)], rows.schema.names, options, FIRST, cut_off)
    with pytest.raises(Unavailable, match="cut off"):
        await trio.to_thread.run_sync(work)
    before = len(await values(api))
    assert before < 2500
    written = await write(node.client_port, [rows], RETRY)
    assert written.rows == 4000 and sorted(await values(api)) == [*range(4000)]


async def test_write_without_broker_raises_connection_lost() -> None:
    with pytest.raises(ConnectionLost):
        await write(free_port(), [table([1])])
