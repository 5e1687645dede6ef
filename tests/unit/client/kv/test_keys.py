"""Tests of writing keys: versions, conditions, batches and refused writes."""

from __future__ import annotations

from typing import Any

import anyio
import pytest

from sandq.client import offset_bytes
from sandq.client.client import Client
from sandq.errors import ClosedError, InvalidRequest, TooLarge, Unavailable, UnknownTopic, VersionChanged
from sandq.model.batch import Batch, Column
from sandq.protocol.frames import Type
from tests.support.client.fake_server import CUT, FakeServer
from tests.support.client.helpers import take

VERSION = "0" * 25 + "1"


def with_keys(server: FakeServer, client: Client, partitions: int = 1) -> Any:
    server.add_topic("k", partitions, kind="compacted")
    return client.kv("k")


def written(server: FakeServer) -> list[Batch]:
    return [Batch.parse(request.batch) for request in server.produced]


def test_put_value_is_returned_by_get(with_client: Any) -> None:
    async def body(server: FakeServer, client: Client) -> None:
        kv = with_keys(server, client, 3)
        assert await kv.get("user/1") is None
        version = await kv.put("user/1", "Ann", headers={"by": "me"}, ttl="1h")
        entry = await kv.get(b"user/1")
        assert (entry.key, entry.value, entry.version) == (b"user/1", b"Ann", version)
        assert entry.headers == {"by": "me"} and entry.expires_ms == server.now_ms + 3_600_000 and entry.stale_ms == 0
        assert entry.partition == server.produced[0].partition
        later = await kv.put("user/1", b"")
        entry = await kv.get("user/1")
        assert later > version and entry.version == later and entry.value == b"" and entry.expires_ms is None
        assert entry.headers == {} and entry == await kv.get("user/1") and len({entry, await kv.get("user/1")}) == 1
        deleted = await kv.delete("user/1")
        assert deleted > later and await kv.get("user/1") is None
        assert await kv.delete("user/1") > deleted, "deleting a missing key is no error"

    with_client(body)


def test_conditions(with_client: Any) -> None:
    async def body(server: FakeServer, client: Client) -> None:
        kv = with_keys(server, client)
        first = await kv.cas("a", "1", expected=None)
        with pytest.raises(VersionChanged, match=f"has version {first}") as refused:
            await kv.cas("a", "2", expected=None)
        assert refused.value.details == {"version": first}
        second = await kv.cas("a", "2", expected=first.lower(), ttl=60)
        with pytest.raises(VersionChanged) as refused:
            await kv.delete("a", expected=first)
        assert refused.value.details == {"version": second}
        assert (await kv.get("a")).value == b"2"
        third = await kv.delete("a", expected=second)
        with pytest.raises(VersionChanged, match="has no value") as refused:
            await kv.cas("a", "3", expected=second)
        assert refused.value.details == {"version": None}
        await kv.cas("a", "3", expected=None, headers={"n": 1})
        assert await kv.cas("a", None, expected=(await kv.get("a")).version) > third
        assert await kv.get("a") is None

    with_client(body)


def test_swap_with_lost_reply_is_done_once(with_client: Any) -> None:
    async def body(server: FakeServer, client: Client) -> None:
        kv = with_keys(server, client)

        def lose(connection: Any, frame: Any) -> None:
            server.do_produce(connection, frame)
            connection.cut()

        server.script[Type.PRODUCE] += [lose, CUT]
        version = await kv.cas("a", "1", expected=None)
        assert len(server.of_type(Type.PRODUCE)) == 3
        assert [write.value for write in server.writes["k", 0]] == [b"1"]
        assert (await kv.get("a")).version == version
        server.script[Type.PRODUCE] += [lose]
        with pytest.raises(VersionChanged) as refused:
            await kv.cas("a", "2", expected=None)
        assert refused.value.details == {"version": version}

    with_client(body)


def test_conditional_writes_are_sent_separately(with_client: Any) -> None:
    """Conditional writes are decided one by one: they do not slow down the others."""

    async def body(server: FakeServer, client: Client) -> None:
        kv = with_keys(server, client)
        version = await kv.put("a", "1")
        del server.produced[:]
        async with anyio.create_task_group() as tasks:
            for n in range(5):
                tasks.start_soon(kv.put, f"p{n}", "x")
                tasks.start_soon(kv.delete, f"d{n}")
            tasks.start_soon(lambda: kv.cas("a", "2", expected=version))
            tasks.start_soon(lambda: kv.cas("b", "2", expected=None))
        conditions: set[bytes | None] = set()
        values: list[bytes | None] = []
        for batch in written(server):
            column = batch.bytes_column(Column.EXPECTED_VERSION)
            conditions.update(column or ())
            assert column is None or {*(batch.bytes_column(Column.KEY) or ())} <= {b"a", b"b"}
            values += batch.values()
        assert conditions == {offset_bytes(version), b""}
        assert values.count(None) == 5 and len(values) == 12 and len(server.produced) < 12

    with_client(body)


def test_many(with_client: Any) -> None:
    async def body(server: FakeServer, client: Client) -> None:
        kv = with_keys(server, client, 3)
        versions = await kv.put_many({f"k{n}": f"v{n}" for n in range(3500)})
        assert len(versions) == len(set(versions)) == 3500 and len(server.produced) <= 15
        found = await kv.get_many([f"k{n}" for n in range(3500)])
        assert [(entry.value, entry.version) for entry in found] == [(b"v%d" % n, versions[n]) for n in range(3500)]
        versions = await kv.put_many([("a", "1"), (b"k0", None), ("a", b"2"), ["b", "x"]])
        assert versions[0] < versions[2]
        assert [entry and entry.value for entry in await kv.get_many(["a", "k0", "b"])] == [b"2", None, b"x"]
        assert await kv.put_many([]) == [] and await kv.put_many(pair for pair in [("a", "3")]) != []

    with_client(body)


@pytest.mark.parametrize("item", [("", "x"), (None, "x"), "ab", ("a",), ("a", 1), 7])
def test_a_wrong_item_is_named(with_client: Any, item: Any) -> None:
    async def body(server: FakeServer, client: Client) -> None:
        kv = with_keys(server, client)
        with pytest.raises(InvalidRequest, match=r"^item 2 of put_many: "):
            await kv.put_many([("a", "1"), ("b", "2"), item, ("c", "3")])
        await kv.put("d", "4")
        assert [write.key for write in server.writes["k", 0]] == [b"a", b"b", b"d"]

    with_client(body)


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda kv: kv.put("", "x"), "key: it must not be empty"),
        (lambda kv: kv.put(None, "x"), "key: it is missing"),
        (lambda kv: kv.put(7, "x"), "key: bytes or str is expected, not int"),
        (lambda kv: kv.put("a", None), "use `delete` to delete a key"),
        (lambda kv: kv.put("a", 1.5), "value: bytes or str is expected, not float"),
        (lambda kv: kv.put("a", "x", ttl=0), "ttl: it must be greater than 0"),
        (lambda kv: kv.put("a", "x", headers="n"), "headers: a mapping is expected"),
        (lambda kv: kv.cas("a", "x", expected="now"), "expected: a version: 'now' is not an offset"),
        (lambda kv: kv.cas("a", "x", expected=b"0" * 16), "expected: a version"),
        (lambda kv: kv.delete("a", expected=""), "expected: a version"),
        (lambda kv: kv.delete(b""), "key: it must not be empty"),
        (lambda kv: kv.get(""), "key: it must not be empty"),
        (lambda kv: kv.get("a", consistency="eventual"), "consistency: 'linearizable' or 'stale' is expected"),
        (lambda kv: kv.get_many("abc"), "keys: several are expected, not str"),
        (lambda kv: kv.get_many(["a", ""]), "key: it must not be empty"),
        (lambda kv: kv.get_many(["a"], consistency=None), "consistency"),
    ],
)
def test_mistakes_are_reported_at_once(with_client: Any, call: Any, says: str) -> None:
    async def body(server: FakeServer, client: Client) -> None:
        kv = with_keys(server, client)
        asked = len(server.frames)
        with pytest.raises(InvalidRequest) as wrong:
            await call(kv)
        assert says in wrong.value.message
        assert {frame[0] for frame in server.frames[asked:]} <= {Type.PING, Type.METADATA}

    with_client(body)


def test_limits(with_client: Any) -> None:
    async def body(server: FakeServer, client: Client) -> None:
        kv = with_keys(server, client)
        for call in (kv.put(b"k" * 70_000, "x"), kv.put("k", bytes(9 << 20)), kv.get(b"k" * 70_000)):
            with pytest.raises(TooLarge):
                await call

    with_client(body)


def test_topics_of_another_kind(with_client: Any) -> None:
    async def body(server: FakeServer, client: Client) -> None:
        kv = client.kv("t")
        for call in (kv.put("a", "1"), kv.put_many({"a": "1"}), kv.get("a"), kv.get_many(["a"]), anext(kv.scan())):
            with pytest.raises(InvalidRequest, match="topic 't' is a timer topic: only compacted ones have keys"):
                await call
        with pytest.raises(InvalidRequest, match="only compacted ones have keys"):
            async with kv.watch():
                pass
        for call in (client.kv("nope").put("a", "1"), client.kv("nope").get("a"), anext(client.kv("nope").scan())):
            with pytest.raises(UnknownTopic):
                await call
        assert not server.produced

    with_client(body)


def test_messages_that_no_topic_of_the_kind_takes(with_client: Any) -> None:
    """Such messages would fail the whole batch."""

    async def body(server: FakeServer, client: Client) -> None:
        kv = with_keys(server, client)
        with pytest.raises(InvalidRequest, match="value: bytes or str is expected, not NoneType"):
            await client.produce("t", None)
        with pytest.raises(InvalidRequest, match="key: topic 'k' is compacted"):
            await client.produce("k", b"x")
        with pytest.raises(InvalidRequest, match="message 1 of send_many: key: topic 'k' is compacted"):
            await client.produce_many("k", [{"value": "1", "key": "a"}, "x"])
        version = await client.produce("k", "2", key="a")
        assert (await kv.get("a")).version == version
        await client.produce_many("k", [{"value": None, "key": "a"}])
        async with client.producer("k") as producer:
            await (await producer.send(None, key="b"))
        assert await kv.get("a") is None and [write.value for write in server.writes["k", 0]] == [
            b"1",
            b"2",
            None,
            None,
        ]

    with_client(body)


def test_topic_recreated_with_a_different_kind(with_client: Any) -> None:
    async def body(server: FakeServer, client: Client) -> None:
        await client.produce("t", b"x")
        await client.admin.delete_topic("t")
        server.add_topic("t", kind="compacted")
        kv = client.kv("t")
        await kv.delete("a")
        await kv.put("a", "1")
        assert (await kv.get("a")).value == b"1"

    with_client(body)


def test_log_deletions_are_distinguished_from_empty_values(with_client: Any) -> None:
    async def body(server: FakeServer, client: Client) -> None:
        async with client.subscribe("t", group="g") as subscription:
            columns = {Column.KEY: [b"a", b"b", b"c"]}
            server.deliver(server.subscription(), [b"", None, b"x"], columns=columns)  # type: ignore[list-item]
            messages = await take(subscription, 3)
            assert [(message.value, message.deleted) for message in messages] == [
                (b"", False),
                (b"", True),
                (b"x", False),
            ]
            server.deliver(server.subscription(), [b"", None], token=5 << 16)  # type: ignore[list-item]
            batch = await anext(subscription.batches())
            assert (batch.values, batch.deleted) == ([b"", b""], [False, True])
            server.deliver(server.subscription(), [b"y"], token=6 << 16)
            assert (await anext(subscription.batches())).deleted == [False]

    with_client(body)


def test_versions_of_a_refused_batch(with_client: Any) -> None:
    """`Receipts` returns the stored versions, or raises the first error."""

    async def body(server: FakeServer, client: Client) -> None:
        kv = with_keys(server, client)
        server.script[Type.PRODUCE].append(Unavailable("not now"))
        assert len(await kv.put_many({"a": "1", "b": "2"})) == 2
        server.script[Type.PRODUCE].append(InvalidRequest("never"))
        with pytest.raises(InvalidRequest, match="never"):
            await kv.put_many({"a": "1", "b": "2"})

    with_client(body)


def test_after_the_client_was_closed(with_client: Any) -> None:
    kept: list[Any] = []

    async def body(server: FakeServer, client: Client) -> None:
        kept.append(with_keys(server, client))
        await kept[0].put("a", "1")
        await client._close(1.0)
        with pytest.raises(ClosedError):
            client.kv("k")
        for call in (kept[0].put("a", "1"), kept[0].get("a"), kept[0].get_many(["a"]), anext(kept[0].scan())):
            with pytest.raises(ClosedError):
                await call

    with_client(body)
