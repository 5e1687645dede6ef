"""Tests of key reads: shared frames of gets, many keys, scans over partitions, and stale reads."""

from __future__ import annotations

import random
from typing import Any

import anyio
import pytest

from sandq.client.client import Client, connect_with
from sandq.client.kv.entries import Entry
from sandq.client.kv.get import FRAME_BYTES
from sandq.client.kv.scan import KeyRange
from sandq.client.options import Options
from sandq.errors import InvalidRequest, NotLeader, ProtocolError, Unavailable
from sandq.model.partitioning import partition_for
from sandq.protocol.frames import Type, encode_reply
from sandq.protocol.replies import Node, Partition
from tests.support.client.fake_keys import Write
from tests.support.client.fake_server import CUT, SILENCE, FakeServer
from tests.support.client.helpers import QUICK
from tests.support.waiting import until_holds


def fill(server: FakeServer, keys: list[bytes], partitions: int = 1) -> None:
    """Topic "k" with these keys. The value of each key is the reversed key."""
    server.add_topic("k", partitions, kind="compacted")
    for number, key in enumerate(keys):
        version = b"%016d" % number
        server.writes["k", partition_for(key, partitions)].append(Write(version, key, key[::-1]))


def numbered(count: int) -> list[bytes]:
    return [b"k%05d" % n for n in range(count)]


async def all_of(scan: Any) -> list[bytes]:
    return [entry.key async for entry in scan]


# Get the keys one by one.


def test_gets_at_the_same_time_share_frames(with_client: Any) -> None:
    async def body(server: FakeServer, client: Client) -> None:
        fill(server, numbered(50), 2)
        kv = client.kv("k")
        await kv.get("k00000")
        del server.frames[:]
        found: dict[bytes, Entry | None] = {}

        async def get(key: bytes) -> None:
            found[key] = await kv.get(key)

        async with anyio.create_task_group() as tasks:
            for key in [*numbered(50), b"none"]:
                tasks.start_soon(get, key)
        assert found.pop(b"none") is None
        assert {key: entry and entry.value for key, entry in found.items()} == {key: key[::-1] for key in numbered(50)}
        frames = server.of_type(Type.KV_GET)
        assert sorted(frame[3] for frame in frames) == [0, 1], "one request for each partition"
        assert sum(len(frame[5]) for frame in frames) == 51

    with_client(body)


def test_more_than_a_frame_takes(with_client: Any) -> None:
    async def body(server: FakeServer, client: Client) -> None:
        fill(server, numbered(2500))
        kv = client.kv("k")
        await kv.get("k00000")
        del server.frames[:]
        async with anyio.create_task_group() as tasks:
            for key in numbered(2500):
                tasks.start_soon(kv.get, key)
        assert sorted(len(frame[5]) for frame in server.of_type(Type.KV_GET)) == [500, 1000, 1000]

    with_client(body)


def test_a_get_that_was_given_up_is_not_sent(with_client: Any) -> None:
    async def body(server: FakeServer, client: Client) -> None:
        fill(server, [b"a", b"b"])
        kv = client.kv("k")
        await kv.get("a")
        del server.frames[:]
        scope = anyio.CancelScope()

        async def given_up() -> None:
            with scope:
                await kv.get("a")

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(given_up)
            tasks.start_soon(kv.get, "b")
            await anyio.lowlevel.checkpoint()
            scope.cancel()
        assert {key for frame in server.of_type(Type.KV_GET) for key in frame[5]} >= {b"b"}
        with anyio.move_on_after(0):
            await kv.get("c")
        assert (await kv.get("b")).value == b"b"  # type: ignore[union-attr]
        assert b"c" not in {key for frame in server.of_type(Type.KV_GET) for key in frame[5]}

    with_client(body)


def test_an_answer_that_holds_a_part_only(with_client: Any) -> None:
    async def body(server: FakeServer, client: Client) -> None:
        fill(server, numbered(10))
        server.answer_keys = 4
        kv = client.kv("k")
        assert [entry and entry.key for entry in await kv.get_many(numbered(10))] == numbered(10)
        assert [len(frame[5]) for frame in server.of_type(Type.KV_GET)] == [10, 6, 2]
        found: list[Any] = []

        async def get(key: bytes) -> None:
            found.append((key, (await kv.get(key)).value))  # type: ignore[union-attr]

        async with anyio.create_task_group() as tasks:
            for key in numbered(10):
                tasks.start_soon(get, key)
        assert sorted(found) == [(key, key[::-1]) for key in numbered(10)]

    with_client(body)


def test_many_keys(with_client: Any) -> None:
    async def body(server: FakeServer, client: Client) -> None:
        fill(server, numbered(3000), 3)
        kv = client.kv("k")
        asked = [*reversed(numbered(3000)), b"none", b"k00000"]
        found = await kv.get_many(asked)
        assert [entry.value if entry else None for entry in found] == [
            None if key == b"none" else key[::-1] for key in asked
        ]
        assert len(found) == 3002 and found.stale_ms == 0 and found[-2] is None and len(found[:2]) == 2
        assert "3002 keys, 3001 with a value" in repr(found)
        assert len(server.of_type(Type.KV_GET)) <= 6
        assert list(await kv.get_many([])) == []

    with_client(body)


def test_long_keys_do_not_make_long_frames(with_client: Any) -> None:
    async def body(server: FakeServer, client: Client) -> None:
        keys = [b"%060000d" % n for n in range(40)]
        fill(server, keys)
        assert [entry and entry.key for entry in await client.kv("k").get_many(keys)] == keys
        sizes = [sum(map(len, frame[5])) for frame in server.of_type(Type.KV_GET)]
        assert len(sizes) == 3 and max(sizes) <= FRAME_BYTES

    with_client(body)


def test_reads_are_asked_for_again(with_client: Any) -> None:
    async def body(server: FakeServer, client: Client) -> None:
        fill(server, numbered(5))
        kv = client.kv("k")
        server.script[Type.KV_GET] += [Unavailable("later"), CUT]
        assert (await kv.get("k00001")).value == b"10000k"
        server.script[Type.KV_SCAN] += [Unavailable("later"), CUT]
        assert await all_of(kv.scan()) == numbered(5)
        server.script[Type.KV_GET] += [InvalidRequest("never")] * 2
        for call in (kv.get("a"), kv.get_many(["a"])):
            with pytest.raises(InvalidRequest, match="never"):
                await call
        server.script[Type.KV_SCAN].append(InvalidRequest("never"))
        with pytest.raises(InvalidRequest, match="never"):
            await all_of(kv.scan())

    with_client(body)


# Scans.


@pytest.mark.parametrize("partitions", [1, 4])
@pytest.mark.parametrize("page", [1, 3, 1000])
def test_scans_are_in_order(with_client: Any, partitions: int, page: int) -> None:
    seed = random.randrange(1 << 30)
    rng = random.Random(seed)
    keys = sorted({rng.randbytes(rng.randint(1, 3)) for _ in range(200)})

    async def body(server: FakeServer, client: Client) -> None:
        fill(server, keys, partitions)
        server.scan_rows = page
        kv = client.kv("k")
        assert await all_of(kv.scan()) == keys, f"seed {seed}"
        for _ in range(10):
            start, stop, limit = rng.randbytes(1), rng.randbytes(1), rng.randint(0, 60)
            wanted = [key for key in keys if start <= key < stop][:limit]
            assert await all_of(kv.scan(start=start, stop=stop, limit=limit)) == wanted, f"seed {seed}"
            prefix = rng.choice([b"\xff", start])
            wanted = [key for key in keys if key.startswith(prefix)]
            assert await all_of(kv.scan(prefix=prefix)) == wanted, f"seed {seed}"

    with_client(body)


def test_scan_continues_after_an_entry(with_client: Any) -> None:
    async def body(server: FakeServer, client: Client) -> None:
        fill(server, numbered(20), 3)
        kv = client.kv("k")
        found: list[bytes] = []
        while len(found) < 20:
            found += await all_of(kv.scan(start=found[-1] + b"\0" if found else None, limit=7))
        assert found == numbered(20)

    with_client(body)


def test_pages_without_rows(with_client: Any) -> None:
    async def body(server: FakeServer, client: Client) -> None:
        fill(server, numbered(3))

        def nothing(connection: Any, frame: Any) -> None:
            connection.send(encode_reply(frame[1], 0, [], b"k00001"))

        server.script[Type.KV_SCAN].append(nothing)
        assert await all_of(client.kv("k").scan()) == numbered(3)[1:]
        server.script[Type.KV_SCAN].append(lambda c, f: c.send(encode_reply(f[1], 0, [], b"")))
        with pytest.raises(ProtocolError, match="next does not lie behind"):
            await all_of(client.kv("k").scan())

    with_client(body)


def test_a_scan_reads_ahead_one_page_and_no_more(with_client: Any) -> None:
    async def body(server: FakeServer, client: Client) -> None:
        fill(server, numbered(100))
        server.scan_rows = 10
        scan = client.kv("k").scan()
        assert (await anext(scan)).key == b"k00000"
        await until_holds(lambda: len(server.of_type(Type.KV_SCAN)) == 2)
        for _ in range(9):
            await anext(scan)
        await client.kv("k").get("k00000")  # this reply comes after a page that the scan might request
        assert len(server.of_type(Type.KV_SCAN)) == 2
        server.script[Type.KV_SCAN].append(InvalidRequest("never"))
        for _ in range(10):
            await anext(scan)
        with pytest.raises(InvalidRequest, match="never"):  # the error comes after the rows that were read before
            await anext(scan)

    with_client(body)


def test_few_rows_are_not_read_ahead(with_client: Any) -> None:
    async def body(server: FakeServer, client: Client) -> None:
        fill(server, numbered(100))
        assert await all_of(client.kv("k").scan(limit=5)) == numbered(5)
        assert [frame[7] for frame in server.of_type(Type.KV_SCAN)] == [5]
        assert await all_of(client.kv("k").scan(limit=0)) == []
        assert await all_of(client.kv("k").scan(start="b", stop="a")) == []
        assert len(server.of_type(Type.KV_SCAN)) == 1

    with_client(body)


@pytest.mark.parametrize(
    "options",
    [
        {"prefix": "a", "start": "a"},
        {"prefix": "a", "stop": "b"},
        {"prefix": 1},
        {"start": 1},
        {"limit": -1},
        {"limit": "3"},
        {"consistency": "weak"},
    ],
)
def test_wrong_scans(with_client: Any, options: Any) -> None:
    async def body(server: FakeServer, client: Client) -> None:
        with pytest.raises(InvalidRequest):
            client.kv("k").scan(**options)

    with_client(body)


def test_ranges_of_prefixes() -> None:
    for prefix, stop in [(b"a", b"b"), (b"a\xff", b"b"), (b"\xff\xff", None), (b"", None), (b"a\xfe\xff", b"a\xff")]:
        assert (KeyRange.of_prefix(prefix).start, KeyRange.of_prefix(prefix).stop) == (prefix, stop)


# Stale.


def test_stale_reads_go_to_any_that_holds_the_partition(run: Any) -> None:
    async def body() -> None:
        async with anyio.create_task_group() as tasks:
            one, two, three = servers = [FakeServer("n1"), FakeServer("n2"), FakeServer("n3")]
            for server in servers:
                fill(server, numbered(3))
                await server.start(tasks)
            for server in servers:
                server.nodes = [Node(each.node_id, "127.0.0.1", each.port) for each in servers]
                held = [Partition(0, 7, "n1", ("n1", "n2"))]
                server.topics["k"] = server.topics["k"]._replace(partitions=held)
            async with connect_with(Options(**QUICK | {"timeout_s": 2.0}), (one.address,), "test") as client:
                kv = client.kv("k")
                await kv.get("k00000")
                await until_holds(lambda: all(server.connections for server in servers))
                for _ in range(40):
                    entry = await kv.get("k00001", consistency="stale")
                    assert entry is not None and entry.stale_ms == 17
                counts = [sum(frame[4] for frame in server.of_type(Type.KV_GET)) for server in servers]
                assert counts[0] and counts[1] and not counts[2], counts
                found = await kv.get_many(numbered(3), consistency="stale")
                assert found.stale_ms == 17
                scan = kv.scan(consistency="stale")
                scanned = [entry async for entry in scan]
                assert [(entry.key, entry.stale_ms) for entry in scanned] == [(key, 17) for key in numbered(3)]
                nothing = kv.scan(prefix="none", consistency="stale")
                assert [entry async for entry in nothing] == [] and scan.stale_ms == nothing.stale_ms == 17

                # A hanging node uses only part of the time limit.
                two.script[Type.KV_GET] += [SILENCE]
                for _ in range(100):
                    assert await kv.get("k00001", consistency="stale") is not None
                    if not two.script[Type.KV_GET]:
                        break
                assert not two.script[Type.KV_GET], "it was asked"

                # If all nodes refuse, the leader is asked until it answers.
                two.script[Type.KV_GET] += [Unavailable("behind")] * 3
                one.script[Type.KV_GET] += [NotLeader("not yet"), Unavailable("not yet")]
                del one.frames[:], two.frames[:]
                assert await kv.get("k00001", consistency="stale") is not None
                assert len(two.of_type(Type.KV_GET)) == 1 and len(one.of_type(Type.KV_GET)) == 3
                assert not three.of_type(Type.KV_GET)

                await two.stop()
                await until_holds(lambda: len(client._cluster.connections()) == 2)
                for _ in range(10):
                    assert await kv.get("k00001", consistency="stale") is not None
            tasks.cancel_scope.cancel()

    run(body)
