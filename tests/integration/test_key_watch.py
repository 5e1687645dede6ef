"""Watching the keys of a compacted topic, over the wire."""

from __future__ import annotations

import math
from typing import Any

import pytest
import trio

import sandq
from sandq.broker.reads import kv_watch
from sandq.broker.reads.linearizable_reads import Output
from sandq.model.batch import Batch, Column, encode
from sandq.node.running import Serving
from sandq.partition.kv.watch import Watch
from sandq.protocol.frames import Type
from sandq.protocol.requests_keys import KvChanges
from tests.integration.conftest import Dial
from tests.integration.test_keys import create, put
from tests.support.nodes.raw_client import RawClient
from tests.support.waiting import PATIENCE_S, until_holds

FIRST = bytes(16)
Write = tuple[bytes, bytes | None]


def make_watches_wait_long(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let requests that wait for changes wait very long. Requests with a wait of 0 are answered immediately."""

    class Endless(kv_watch._Watcher):
        def __init__(self, watch: Watch, max_messages: int, max_bytes: int, deadline_s: float, output: Output) -> None:
            waits = deadline_s > trio.current_time()
            super().__init__(watch, max_messages, max_bytes, math.inf if waits else deadline_s, output)

    monkeypatch.setattr(kv_watch, "_Watcher", Endless)


async def until_waiting(node: Serving, partitions: int = 1) -> None:
    """Wait until the node has registered watches that wait in this number of partitions. The watch of
    a disconnected client may still be registered."""
    watchers = node.broker.kv_watches._watchers
    await until_holds(lambda: sum(any(one.index >= 0 for one in found) for found in watchers.values()) == partitions)


class Watcher:
    """Return a watch that continues from the position it was given at the end of the scan."""

    def __init__(self, client: RawClient, after: bytes | None = None, **options: Any) -> None:
        self.client = client
        self.after = after
        self.mark: bytes | None = None
        self.options = options
        self.answers = 0

    async def ask(self, wait_ms: int = 10_000) -> list[Write]:
        """Ask for the changes since the last reply, and return them as writes."""
        every, start, stop = (self.options.get(n, d) for n, d in (("every", True), ("start", b""), ("stop", None)))
        most = self.options.get("most", 1000)
        reply = await self.client.call(
            Type.KV_WATCH, "t", 0, self.after, self.mark, every, start, stop, most, 1 << 20, wait_ms
        )
        assert reply[0] == Type.REPLY, reply
        found = KvChanges.parse(reply)
        self.after, self.mark = found.through, found.mark
        self.answers += 1
        writes: list[Write] = []
        for piece in found.pieces:
            batch = Batch.parse(piece.batch)
            keys, values = batch.bytes_column(Column.KEY) or [], batch.values()
            live = piece.live if piece.live is not None else [(0, batch.count)]
            writes += [(keys[at] or b"", values[at]) for first, n in live for at in range(first, first + n)]
        return writes

    async def until(self, last: Write) -> list[Write]:
        writes: list[Write] = []
        with trio.fail_after(PATIENCE_S):
            while last not in writes:
                writes += await self.ask()
        return writes


@pytest.fixture
async def client(node: Serving, dial: Dial) -> RawClient:
    return await dial(node)


async def test_from_now_on(client: RawClient, node: Serving, dial: Dial, monkeypatch: pytest.MonkeyPatch) -> None:
    make_watches_wait_long(monkeypatch)
    await create(client)
    await put(client, (b"a", b"1"))
    watcher = Watcher(await dial(node))
    with trio.fail_after(PATIENCE_S):
        assert await watcher.ask() == [], "the current position must be returned immediately"
    got: list[Write] = []

    async def watch() -> None:
        got.extend(await watcher.until((b"end", b"")))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(watch)
        for n in range(20):
            await put(client, (b"a", b"%d" % n), (b"b", None))
        await put(client, (b"end", b""))
    assert got == [write for n in range(20) for write in ((b"a", b"%d" % n), (b"b", None))] + [(b"end", b"")]


async def test_from_the_beginning_and_from_a_version(client: RawClient) -> None:
    await create(client)
    version = (await put(client, (b"a", b"1"), (b"b", b"1")))[2][0]
    await put(client, (b"a", None))
    assert await Watcher(client, FIRST).ask() == [(b"a", b"1"), (b"b", b"1"), (b"a", None)]
    assert await Watcher(client, version).ask() == [(b"b", b"1"), (b"a", None)]
    assert await Watcher(client, FIRST, every=False).ask() == [(b"b", b"1"), (b"a", None)]


async def test_watch_without_changes_returns_when_its_wait_ends(client: RawClient) -> None:
    await create(client)
    await put(client, (b"a", b"1"))
    watcher = Watcher(client, FIRST, start=b"b")
    with trio.fail_after(PATIENCE_S):
        assert await watcher.ask(wait_ms=50) == []
    assert watcher.after is not None and watcher.after > FIRST
    with trio.fail_after(PATIENCE_S):
        assert await watcher.ask(wait_ms=0) == []


async def test_writes_of_other_keys_do_not_wake_the_watcher(client: RawClient, node: Serving, dial: Dial) -> None:
    await create(client)
    watcher = Watcher(await dial(node), FIRST, start=b"b", stop=b"c")
    got: list[Write] = []

    async def watch() -> None:
        got.extend(await watcher.ask())

    async with trio.open_nursery() as nursery:
        nursery.start_soon(watch)
        for n in range(30):
            await put(client, (b"a%d" % n, b"x"))
        assert got == []
        await put(client, (b"b", b"yes"))
    assert (got, watcher.answers) == ([(b"b", b"yes")], 1)


async def test_many_are_served_in_parts(
    client: RawClient, node: Serving, dial: Dial, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kv_watch, "VISIT_BYTES", 1)
    monkeypatch.setattr(kv_watch, "VISIT_WATCHERS", 3)
    await create(client)
    await put(client, *[(b"k%d" % n, b"x") for n in range(100)])
    watchers = [Watcher(await dial(node), FIRST, most=30) for _ in range(8)]
    got: list[list[Write]] = [[] for _ in watchers]

    async def watch(at: int) -> None:
        got[at] = await watchers[at].until((b"end", None))

    async with trio.open_nursery() as nursery:
        for at in range(len(watchers)):
            nursery.start_soon(watch, at)
        await put(client, (b"end", None))
    assert got == [[*((b"k%d" % n, b"x") for n in range(100)), (b"end", None)]] * 8


async def test_a_watcher_that_leaves_is_forgotten(client: RawClient, node: Serving, dial: Dial) -> None:
    await create(client)
    gone = await dial(node)
    await gone.send(Type.KV_WATCH, 9, "t", 0, FIRST, None, True, b"", None, 10, 1000, 30_000)
    await trio.aclose_forcefully(gone.stream)
    waiting = node.broker.kv_watches._watchers
    await put(client, (b"a", b"1"))
    await until_holds(lambda: not waiting)


async def test_a_topic_that_is_deleted(client: RawClient, node: Serving, dial: Dial, api: sandq.Client) -> None:
    await create(client)
    watching_client = await dial(node)
    replies: list[Any] = []

    async def watch() -> None:
        replies.append(
            await watching_client.call(Type.KV_WATCH, "t", 0, FIRST, None, True, b"", None, 10, 1000, 30_000)
        )

    with trio.fail_after(PATIENCE_S):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(watch)
            await until_waiting(node)
            await api.admin.delete_topic("t")
    assert replies[0][2] == "UNKNOWN_TOPIC"


async def test_invalid_watches_are_rejected(client: RawClient) -> None:
    await create(client)
    await client.create("timers")
    reply = await client.call(Type.KV_WATCH, "timers", 0, None, None, True, b"", None, 1, 1, 0)
    assert reply[2] == "INVALID" and "only compacted ones have keys" in reply[3]
    reply = await client.call(Type.KV_WATCH, "t", 1, None, None, True, b"", None, 1, 1, 0)
    assert reply[2] == "UNKNOWN_PARTITION"
    reply = await client.call(Type.KV_WATCH, "t", 0, None, None, True, b"", None, 1, 1, 30_001)
    assert reply[2] == "INVALID" and "wait_ms" in reply[3]


async def test_a_message_without_a_value_is_only_for_keys(client: RawClient) -> None:
    await client.create("timers")
    for keys in ([b"k"], [b"k", b"l"]):
        reply = await put_timers(client, keys)
        assert reply[2] == "INVALID" and "message 0 of the batch has no value" in reply[3]


async def put_timers(client: RawClient, keys: list[bytes]) -> list[Any]:
    values: list[bytes | None] = [None, b"x"][: len(keys)]
    return await client.produce_batch(encode({Column.VALUE: values, Column.KEY: keys}), "timers")
