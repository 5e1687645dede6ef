"""Keys of a compacted topic through the Python client, on a real node."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest
import trio

import sandq
from sandq.errors import HistoryGone, InvalidRequest, TooLarge, UnknownTopic, VersionChanged
from sandq.node import run_node
from sandq.node.running import Serving
from tests.support.nodes.hand_clock import HandClock
from tests.support.nodes.proxy import proxy_to
from tests.support.nodes.small_node import small_config
from tests.support.nodes.working import connected, take, with_topic
from tests.support.waiting import PATIENCE_S, until_answer


async def next_of(watch: sandq.Watch, count: int) -> list[tuple[bytes, bytes | None]]:
    with trio.fail_after(PATIENCE_S):
        return [(change.key, change.value) for change in [await anext(watch) for _ in range(count)]]


async def test_a_round(api: sandq.Client) -> None:
    async with with_topic(api, kind="compacted", partitions=3):
        kv = api.kv("t")
        version = await kv.put("user/1", "Ann", headers={"by": "me"})
        entry = await kv.get("user/1")
        assert entry is not None and (entry.value, entry.version, entry.headers) == (b"Ann", version, {"by": "me"})
        assert entry.expires_ms is None and entry.stale_ms == 0
        stale = await kv.get("user/1", consistency="stale")
        assert stale == entry
        later = await kv.cas("user/1", "Bob", expected=version)
        with pytest.raises(VersionChanged) as refused:
            await kv.delete("user/1", expected=version)
        assert refused.value.details == {"version": later}
        await kv.delete("user/1", expected=later)
        with pytest.raises(VersionChanged) as refused:
            await kv.cas("user/1", "Cid", expected=later)
        assert refused.value.details == {"version": None}
        assert await kv.get("user/1") is None
        await kv.cas("user/1", "Cid", expected=None)
        assert [entry.value async for entry in kv.scan(prefix="user/")] == [b"Cid"]


async def test_many_keys_over_partitions(api: sandq.Client) -> None:
    async with with_topic(api, kind="compacted", partitions=4):
        kv = api.kv("t")
        pairs = {b"k%05d" % n: b"v%d" % n for n in range(5000)}
        versions = await kv.put_many(pairs)
        shuffled = [*pairs, b"none"]
        random.Random(3).shuffle(shuffled)
        found = await kv.get_many(shuffled)
        assert {key: entry and entry.value for key, entry in zip(shuffled, found, strict=True)} == {
            **pairs,
            b"none": None,
        }
        rows = [entry async for entry in kv.scan()]
        assert [(entry.key, entry.value, entry.version) for entry in rows] == [
            (key, value, version) for (key, value), version in zip(pairs.items(), versions, strict=True)
        ]
        middle = [entry.key async for entry in kv.scan(start="k01000", stop="k02000", limit=2000)]
        assert middle == list(pairs)[1000:2000]
        stale = [entry.key async for entry in kv.scan(prefix="k0001", consistency="stale")]
        assert stale == list(pairs)[10:20]
        async with trio.open_nursery() as nursery:
            got: dict[bytes, sandq.Entry | None] = {}

            async def get(key: bytes) -> None:
                got[key] = await kv.get(key)

            for key in shuffled[:500]:
                nursery.start_soon(get, key)
        assert all(entry is None or entry.value == pairs[key] for key, entry in got.items()) and len(got) == 500


async def test_values_too_large_for_one_answer(api: sandq.Client) -> None:
    async with with_topic(api, kind="compacted"):
        kv = api.kv("t")
        for n in range(4):
            await kv.put(f"k{n}", bytes(3 << 20))
        found = await kv.get_many([f"k{n}" for n in range(4)])
        assert [entry and len(entry.value) for entry in found] == [3 << 20] * 4
        assert [len(entry.value) async for entry in kv.scan()] == [3 << 20] * 4
        with pytest.raises(TooLarge):
            await kv.put("k", bytes(9 << 20))


async def test_expired_value_is_gone_for_get_and_watch(hand: HandClock, timed: Serving) -> None:
    async with connected(timed) as api, with_topic(api, kind="compacted"):
        kv = api.kv("t")
        async with kv.watch() as watch:
            version = await kv.put("a", "1", ttl="10m")
            entry = await kv.get("a")
            assert entry is not None and entry.expires_ms is not None
            assert entry.expires_ms - sandq.offset_time_ms(version) == 600_000
            hand.forward(601)
            assert await kv.get("a") is None
            await kv.put("b", "1")
            found = await next_of(watch, 3)
            assert sorted(found, key=str) == sorted([(b"a", b"1"), (b"a", None), (b"b", b"1")], key=str)
            await kv.cas("a", "2", expected=None)


async def test_swap_over_a_broken_connection_is_done_once(node: Serving) -> None:
    async with (
        proxy_to(node.client_port) as proxy,
        sandq.connect(f"127.0.0.1:{proxy.port}", timeout=PATIENCE_S) as api,
        with_topic(api, kind="compacted"),
    ):
        kv = api.kv("t")
        proxy.cut_answer = lambda n: n % 3 != 2
        proxy.cut_request = lambda n: n % 5 == 4
        version: str | None = None
        async with kv.watch() as watch:
            with trio.fail_after(PATIENCE_S):
                for n in range(4):
                    version = await kv.cas("counter", str(n), expected=version)
            assert proxy.lost.is_set()
            assert await next_of(watch, 4) == [(b"counter", b"%d" % n) for n in range(4)]


async def test_watching_from_anywhere(api: sandq.Client) -> None:
    async with with_topic(api, kind="compacted", partitions=2):
        kv = api.kv("t")
        versions = await kv.put_many([("a", "1"), ("a", "2"), ("b", "1"), ("a", "3"), ("b", None)])
        async with kv.watch("a", start="earliest") as watch:
            assert await next_of(watch, 3) == [(b"a", b"1"), (b"a", b"2"), (b"a", b"3")]
        async with kv.watch("a", start=versions[0]) as watch:
            assert await next_of(watch, 1) == [(b"a", b"2")]
            position = json.loads(json.dumps(watch.position))
        async with kv.watch("a", start=position) as watch:
            assert await next_of(watch, 1) == [(b"a", b"3")]
        async with kv.watch(start="earliest", latest=True) as watch:
            assert sorted(await next_of(watch, 2), key=str) == sorted([(b"a", b"3"), (b"b", None)], key=str)
        async with kv.watch(prefix="b") as watch:
            await kv.put_many({"a": "4", "b": "2"})
            assert await next_of(watch, 1) == [(b"b", b"2")]
            await api.admin.delete_topic("t")
            with pytest.raises(UnknownTopic), trio.fail_after(PATIENCE_S):
                await anext(watch)


async def test_history_that_was_compacted(hand: HandClock, timed: Serving) -> None:
    async with connected(timed) as api, with_topic(api, kind="compacted", history="0s"):
        kv = api.kv("t")
        first = await kv.put("a", "1")
        second, *_ = await kv.put_many([("a", "2"), ("a", "3"), ("b", "1")])

        async def size() -> int:
            hand.forward(6)
            return sum(row["messages"] for row in await api.admin.stats("t"))

        await until_answer(size, lambda count: count == 2)
        async with kv.watch(start=first) as watch:
            with pytest.raises(HistoryGone, match="they were compacted"), trio.fail_after(PATIENCE_S):
                await anext(watch)
        for options in ({"start": second}, {"start": first, "latest": True}):
            async with kv.watch(**options) as watch:  # type: ignore[arg-type]
                assert await next_of(watch, 2) == [(b"a", b"3"), (b"b", b"1")]
        async with kv.watch(start="earliest") as watch:
            assert await next_of(watch, 1) == [(b"a", b"3")]
            position = watch.position
        async with kv.watch(start=position) as watch:
            assert await next_of(watch, 1) == [(b"b", b"1")]


async def test_after_a_restart_a_watch_goes_on(tmp_path: Path) -> None:
    async with run_node(small_config(tmp_path)) as node:
        port = node.client_port
        async with connected(node) as api, with_topic(api, kind="compacted"):
            kv = api.kv("t")
            await kv.put_many([("a", "1"), ("a", "2")])
            async with kv.watch(start="earliest") as watch:
                assert await next_of(watch, 1) == [(b"a", b"1")]
                position = watch.position
    async with run_node(small_config(tmp_path, LISTEN__CLIENT=f"127.0.0.1:{port}")) as node, connected(node) as api:
        kv = api.kv("t")
        async with kv.watch(start=position) as watch:
            assert await next_of(watch, 1) == [(b"a", b"2")]
            await kv.put("a", "3")
            assert await next_of(watch, 1) == [(b"a", b"3")]


async def test_readers_see_deletions(api: sandq.Client) -> None:
    async with with_topic(api, kind="compacted"):
        kv = api.kv("t")
        await kv.put_many([("a", ""), ("a", None)])
        async with api.subscribe("t", group="g") as subscription:
            told = [(message.value, message.deleted) for message in await take(subscription, 2)]
        assert told == [(b"", False), (b"", True)]
        assert [message.deleted async for message in api.fetch("t", 0)] == [False, True]
        taken = await api.leases("t", "h").take(2)
        assert [(message.value, message.deleted) for message in taken] == told
        async with api.producer("t") as producer:
            await (await producer.send(None, key="b"))
        with pytest.raises(InvalidRequest, match="key: topic 't' is compacted"):
            await api.produce("t", "x")


async def test_timer_topics_take_no_deletions(api: sandq.Client) -> None:
    async with with_topic(api):
        with pytest.raises(InvalidRequest, match="value: bytes or str is expected"):
            await api.produce("t", None, key="a")
        with pytest.raises(InvalidRequest, match="only compacted ones have keys"):
            await api.kv("t").get("a")


def test_from_threads(tmp_path: Path) -> None:
    """The blocking client with a node in the same process."""

    async def main() -> None:
        async with run_node(small_config(tmp_path)) as node:
            await trio.to_thread.run_sync(work, node.client_port)

    def work(port: int) -> None:
        with sandq.sync.connect(f"127.0.0.1:{port}") as client:
            client.admin.create_topic("t", kind="compacted", partitions=2)
            kv = client.kv("t")
            with kv.watch() as watch:
                versions = kv.put_many({f"k{n}": str(n) for n in range(300)})
                assert sorted(next(watch).version for _ in range(300)) == sorted(versions)
            assert sum(1 for _ in kv.scan()) == 300

    trio.run(main)
