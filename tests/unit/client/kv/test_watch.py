"""Tests of key watches: each change arrives once and in order, from a given position."""

from __future__ import annotations

import json
from typing import Any

import anyio
import pytest

from sandq.client import offset_bytes, offset_text
from sandq.client.client import Client, connect_with
from sandq.client.kv.entries import Change
from sandq.client.kv.watch import ANSWERS_AHEAD, Watch
from sandq.client.kv.watch_positions import WatchPosition
from sandq.client.options import Options
from sandq.errors import (
    ClosedError,
    HistoryGone,
    InvalidRequest,
    NotLeader,
    ProtocolError,
    SandqError,
    Unavailable,
    UnknownTopic,
)
from sandq.model import offsets
from sandq.model.partitioning import partition_for
from sandq.protocol.frames import Type
from sandq.protocol.replies_messages import encode_pieces
from sandq.protocol.requests_keys import KvWatch
from tests.support.client.fake_keys import Write, piece_of
from tests.support.client.fake_server import CUT, SILENCE, FakeServer
from tests.support.client.helpers import QUICK
from tests.support.waiting import until_holds

FIRST = "0" * 26


def with_keys(server: FakeServer, client: Client, partitions: int = 1) -> Any:
    server.add_topic("k", partitions, kind="compacted")
    return client.kv("k")


def asked(server: FakeServer) -> list[KvWatch]:
    return [KvWatch.parse(frame) for frame in server.of_type(Type.KV_WATCH)]


async def next_of(watch: Watch, count: int) -> list[Change]:
    return [await anext(watch) for _ in range(count)]


async def behind_all(client: Client) -> None:
    """Send a request after all queued requests of the client. A request that was not sent by now will not be sent."""
    await client.admin.list_topics()


def shown(changes: list[Change]) -> list[tuple[bytes, bytes | None]]:
    return [(change.key, change.value) for change in changes]


def test_watch_yields_writes_from_now_on(with_client: Any) -> None:
    async def body(server: FakeServer, client: Client) -> None:
        kv = with_keys(server, client, 3)
        await kv.put("a", "before")
        async with kv.watch() as watch:
            version = await kv.put("a", "1", headers={"n": 7})
            (change,) = await next_of(watch, 1)
            assert (change.key, change.value, change.version, change.deleted) == (b"a", b"1", version, False)
            assert change.headers == {"n": 7} and change.created_ms == server.now_ms
            assert change.partition == partition_for(b"a", 3)
            await kv.delete("a")
            (change,) = await next_of(watch, 1)
            assert change.deleted and change.value is None and change.headers == {} and "deleted" in repr(change)
            await kv.put("b", "")
            (change,) = await next_of(watch, 1)
            assert shown([change]) == [(b"b", b"")] and not change.deleted
            assert watch.take_arrived() is None

    with_client(body)


def test_request_for_one_key_asks_only_its_partition(with_client: Any) -> None:
    async def body(server: FakeServer, client: Client) -> None:
        kv = with_keys(server, client, 8)
        async with kv.watch("user/1") as watch:
            await kv.put_many({"user/1": "1", "user/10": "x", "user/0": "x"})
            await kv.delete("user/1")
            assert shown(await next_of(watch, 2)) == [(b"user/1", b"1"), (b"user/1", None)]
            mine = partition_for(b"user/1", 8)
            assert {request.partition for request in asked(server)} == {mine} == watch.position.keys()
            assert {(request.start, request.stop) for request in asked(server)} == {(b"user/1", b"user/1\0")}

    with_client(body)


def test_watch_of_prefix_yields_only_its_keys(with_client: Any) -> None:
    async def body(server: FakeServer, client: Client) -> None:
        kv = with_keys(server, client, 2)
        async with kv.watch(prefix="user/") as watch:
            await kv.put_many([("user/1", "1"), ("usex", "x"), ("user/2", "2"), ("user/1", None)])
            found = shown(await next_of(watch, 3))
            assert sorted(found, key=str) == sorted([(b"user/1", b"1"), (b"user/2", b"2"), (b"user/1", None)], key=str)
            assert {(request.start, request.stop) for request in asked(server)} == {(b"user/", b"user0")}

    with_client(body)


def test_from_the_beginning_every_change_or_the_latest(with_client: Any) -> None:
    async def body(server: FakeServer, client: Client) -> None:
        kv = with_keys(server, client)
        await kv.put_many([("a", "1"), ("b", "1"), ("a", "2"), ("b", None)])
        async with kv.watch(start="earliest") as watch:
            assert watch.position == {0: FIRST}
            assert shown(await next_of(watch, 4)) == [(b"a", b"1"), (b"b", b"1"), (b"a", b"2"), (b"b", None)]
        async with kv.watch(start="earliest", latest=True) as watch:
            assert shown(await next_of(watch, 2)) == [(b"a", b"2"), (b"b", None)]
        assert [request.every for request in asked(server)][-1:] == [False]

    with_client(body)


def test_watch_starts_after_a_version(with_client: Any) -> None:
    async def body(server: FakeServer, client: Client) -> None:
        kv = with_keys(server, client, 2)
        keys = {partition_for(key, 2): key for key in (b"a", b"b", b"c", b"d", b"e")}
        versions = await kv.put_many([(keys[0], "1"), (keys[0], "2"), (keys[1], "1")])
        async with kv.watch(start=versions[0]) as watch:
            assert sorted(shown(await next_of(watch, 2))) == sorted([(keys[0], b"2"), (keys[1], b"1")])
        after = {request.partition: request.after for request in asked(server)[:2]}
        assert after == {0: offset_bytes(versions[0]), 1: offsets.pack(server.now_ms, 0, 0, 1)}

    with_client(body)


def test_watch_continues_from_a_position(with_client: Any) -> None:
    """A watch can stop anywhere. From its position the rest follows, without gaps and duplicates."""

    async def body(server: FakeServer, client: Client) -> None:
        kv = with_keys(server, client, 3)
        wanted = [(b"k%d" % (n % 7), b"%d" % n) for n in range(60)]
        await kv.put_many(wanted)
        server.watch_changes = 4
        found: list[tuple[bytes, bytes | None]] = []
        position: Any = "earliest"
        for step in range(1, 100):
            async with kv.watch(start=position) as watch:
                found += shown(await next_of(watch, min(step % 6, 60 - len(found))))
                position = json.loads(json.dumps(watch.position))
            if len(found) == 60:
                break
        for key in {key for key, _ in wanted}:
            assert [one for one in found if one[0] == key] == [one for one in wanted if one[0] == key]

    with_client(body)


def test_position_covers_only_yielded_changes(with_client: Any) -> None:
    async def body(server: FakeServer, client: Client) -> None:
        kv = with_keys(server, client)
        async with kv.watch() as watch:
            before = watch.position
            versions = await kv.put_many([("a", str(n)) for n in range(5)])
            await until_holds(lambda: len(watch._answers) == 1)
            assert watch.position == before, "waiting changes are not handed out yet"
            for version in versions[:4]:
                assert (await anext(watch)).version == version and watch.position == {0: version}
            # A reply without changes moves only the end of the read range.
            await until_holds(lambda: server.kv_watches)
            server.index += 100
            server.answer_watches(is_late=True)
            await until_holds(lambda: server.kv_watches)
            assert watch.position == {0: versions[3]}
            await anext(watch)
            end = offset_text(server.end(asked(server)[-1]))
            assert watch.position == {0: end}
            server.index += 100
            server.answer_watches(is_late=True)
            await until_holds(lambda: watch.position[0] > end)

    with_client(body)


def test_positions_remember_compacted_changes(with_client: Any) -> None:
    """A watch from the earliest change starts before old compacted changes and reports no missed change."""

    async def body(server: FakeServer, client: Client) -> None:
        kv = with_keys(server, client)
        await kv.put_many([("a", "1"), ("b", "1"), ("c", "1"), ("c", "2"), ("d", "1")])
        server.compact("k", 0)
        async with kv.watch(start="earliest") as watch:
            assert shown(await next_of(watch, 2)) == [(b"a", b"1"), (b"b", b"1")]
            position = watch.position
            assert position[0].count(".") == 1
        async with kv.watch(start=position) as watch:
            assert shown(await next_of(watch, 2)) == [(b"c", b"2"), (b"d", b"1")]
            assert "." not in watch.position[0]
        await kv.put("b", "2")
        await kv.put("b", "3")
        server.compact("k", 0)
        async with kv.watch(start=position) as watch:
            with pytest.raises(HistoryGone):
                await anext(watch)

    with_client(body)


def test_watch_of_compacted_history_raises_history_gone(with_client: Any) -> None:
    async def body(server: FakeServer, client: Client) -> None:
        kv = with_keys(server, client, 2)
        version = await kv.put("a", "1")
        await kv.put_many([("a", "2"), ("a", "3")])
        server.compact("k", partition_for(b"a", 2))
        async with kv.watch(start=version) as watch:
            for _ in range(2):
                with pytest.raises(HistoryGone, match="changes are gone"):
                    await anext(watch)
            with pytest.raises(HistoryGone):
                watch.take_arrived()

    with_client(body)


def test_changes_before_an_error_are_yielded_first(with_client: Any) -> None:
    async def body(server: FakeServer, client: Client) -> None:
        kv = with_keys(server, client)
        async with kv.watch() as watch:
            await until_holds(lambda: server.kv_watches)
            server.script[Type.KV_WATCH].append(HistoryGone("gone"))
            await kv.put_many([("a", "1"), ("a", "2")])
            await until_holds(lambda: watch._error)
            assert shown(await next_of(watch, 2)) == [(b"a", b"1"), (b"a", b"2")]
            with pytest.raises(HistoryGone):
                await anext(watch)

    with_client(body)


def test_slow_client_is_not_sent_more(with_client: Any) -> None:
    async def body(server: FakeServer, client: Client) -> None:
        kv = with_keys(server, client)
        await kv.put_many([("a", str(n)) for n in range(100)])
        server.watch_changes = 10
        async with kv.watch(start="earliest") as watch:
            await until_holds(lambda: len(watch._answers) == ANSWERS_AHEAD)
            await behind_all(client)
            assert len(asked(server)) == ANSWERS_AHEAD
            for _ in range(9):
                await anext(watch)
            await behind_all(client)
            assert len(asked(server)) == ANSWERS_AHEAD
            await anext(watch)
            await until_holds(lambda: len(asked(server)) == ANSWERS_AHEAD + 1)
            assert [change.value for change in await next_of(watch, 90)] == [b"%d" % n for n in range(10, 100)]

    with_client(body)


@pytest.mark.parametrize(
    "trouble", [CUT, Unavailable("later"), NotLeader("elsewhere"), lambda connection, frame: connection.cut()]
)
def test_watch_continues_after_transient_errors(with_client: Any, trouble: Any) -> None:
    async def body(server: FakeServer, client: Client) -> None:
        kv = with_keys(server, client)
        server.watch_changes = 3
        async with kv.watch() as watch:
            for n in range(10):
                if n % 5 == 0:
                    server.script[Type.KV_WATCH] += [trouble] * 3
                if n % 7 == 0:
                    server.cut_all()
                await kv.put("a", str(n))
            await kv.put("a", "last")
            expected = [*(b"%d" % n for n in range(10)), b"last"]
            assert [change.value for change in await next_of(watch, len(expected))] == expected
            assert watch.take_arrived() is None

    with_client(body)


def test_a_node_that_is_silent_is_asked_again(with_client: Any) -> None:
    async def body(server: FakeServer, client: Client) -> None:
        kv = with_keys(server, client)
        server.script[Type.KV_WATCH].append(SILENCE)
        async with kv.watch(start="earliest") as watch:
            await kv.put("a", "1")
            assert shown(await next_of(watch, 1)) == [(b"a", b"1")]
        waits = [request.wait_ms for request in asked(server)]
        first, then = waits[:2], set(waits[2:])
        assert first == [0, 0], "the first requests do not wait, because their answer gives the position"
        assert then <= {100}, "the wait is shorter than the timeout of an answer"

    with_client(body, timeout_s=0.2)


def test_entering_waits_until_now_is_known(with_client: Any) -> None:
    async def body(server: FakeServer, client: Client) -> None:
        kv = with_keys(server, client, 2)
        server.script[Type.KV_WATCH] += [Unavailable("no leader yet")] * 4
        async with kv.watch() as watch:
            await kv.put_many({f"k{n}": "1" for n in range(10)})
            assert len(await next_of(watch, 10)) == 10
        server.script[Type.KV_WATCH] += [SILENCE] * 50
        with pytest.raises(Unavailable, match=r'partition 0 of topic .k. did not report within 0.3 s where "now" is'):
            async with kv.watch():
                pass
        assert not client._cluster.on_change or server.connections

    with_client(body, timeout_s=0.3)


def test_topics_that_go(with_client: Any) -> None:
    async def body(server: FakeServer, client: Client) -> None:
        kv = with_keys(server, client)
        with pytest.raises(UnknownTopic):
            async with client.kv("nope").watch():
                pass
        async with kv.watch() as watch:
            await client.admin.delete_topic("k")
            server.script[Type.KV_WATCH].append(UnknownTopic("topic 'k' was deleted"))
            server.answer_watches(is_late=True)
            with pytest.raises(UnknownTopic, match=r"was deleted|there is no topic"):
                await anext(watch)
        server.script[Type.KV_WATCH].clear()
        server.add_topic("k", kind="compacted")
        async with kv.watch() as watch:
            await until_holds(lambda: server.kv_watches)
            record = server.topics["k"]._replace(number=77)
            server.topics["k"] = record
            client._cluster.learn(record, client._cluster.generation)
            server.answer_watches(is_late=True)
            with pytest.raises(UnknownTopic, match="was deleted and created again"):
                await anext(watch)

    with_client(body)


def test_closing(with_client: Any) -> None:
    async def body(server: FakeServer, client: Client) -> None:
        kv = with_keys(server, client)
        watch = kv.watch()
        for use in (lambda: anext(watch), lambda: anyio.to_thread.run_sync(lambda: watch.position)):
            with pytest.raises(ClosedError):
                await use()
        async with watch:
            await kv.put("a", "1")
            await until_holds(lambda: watch._answers)
            assert watch.topic == "k" and watch.__aiter__() is watch
        for use in (lambda: anext(watch), watch.__aenter__):
            with pytest.raises(ClosedError):
                await use()
        left = watch.position
        async with kv.watch(start=left) as again:
            assert shown(await next_of(again, 1)) == [(b"a", b"1")]

    with_client(body)


def test_closing_the_client_ends_a_watch(run: Any) -> None:
    async def main() -> None:
        errors: list[SandqError] = []

        async def wait(client: Client) -> None:
            async with client.kv("k").watch() as watch:
                try:
                    await anext(watch)
                except SandqError as error:
                    errors.append(error)

        async with anyio.create_task_group() as tasks:
            server = FakeServer()
            server.add_topic("k", kind="compacted")
            await server.start(tasks)
            async with (
                anyio.create_task_group() as waiting,
                connect_with(Options(**QUICK), (server.address,), "test") as client,
            ):
                waiting.start_soon(wait, client)
                await until_holds(lambda: server.kv_watches)
            assert [type(error) for error in errors] == [ClosedError]
            tasks.cancel_scope.cancel()

    run(main)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"key": ""}, "key: it must not be empty"),
        ({"key": "a", "prefix": "b"}, "one of key and prefix"),
        ({"prefix": 7}, "prefix: bytes or str"),
        ({"start": "latest"}, "start: 'now', 'earliest', a version"),
        ({"start": None}, "start: 'now'"),
        ({"start": 7}, "start: 'now'"),
        ({"start": {"a": FIRST}}, "the number of a partition"),
        ({"start": {-1: FIRST}}, "the number of a partition"),
        ({"start": {True: FIRST}}, "the number of a partition"),
        ({"start": {0: "now"}}, "is no position of a watch"),
        ({"start": {0: 7}}, "a position is text"),
        ({"start": {0: FIRST + ".x"}}, "is no position of a watch"),
        ({"start": {}}, "it has no position of partition 0"),
        ({"start": {0: FIRST}}, "it has no position of partition 1"),
        ({"start": {0: FIRST, 1: FIRST, 2: FIRST}}, "there is no 2"),
        ({"start": offset_text(offsets.pack(5, 5, 0, 2))}, "the version is of partition 2, the topic has 2"),
    ],
)
def test_mistakes_are_reported(with_client: Any, options: Any, says: str) -> None:
    async def body(server: FakeServer, client: Client) -> None:
        kv = with_keys(server, client, 2)
        with pytest.raises(InvalidRequest) as wrong:
            async with kv.watch(**options):
                pass
        assert says in wrong.value.message
        assert not asked(server)

    with_client(body)


@pytest.mark.parametrize("case", ["backwards", "keyless", "beyond"])
def test_malformed_answers(with_client: Any, case: str) -> None:
    async def body(server: FakeServer, client: Client) -> None:
        kv = with_keys(server, client)
        await kv.put("a", "1")

        def answer(connection: Any, frame: Any) -> None:
            through = bytes(16) if case == "backwards" else b"\x7f" * 16
            piece = piece_of([Write(b"\x7f" * 16, None if case == "keyless" else b"a", b"x")])  # type: ignore[arg-type]
            if case == "beyond":
                piece = piece._replace(live=[[0, 2]])
            connection.send(b"".join(encode_pieces(frame[1], (through, bytes(16)), [piece])))

        async with kv.watch() as watch:
            await until_holds(lambda: server.kv_watches)
            server.script[Type.KV_WATCH].append(answer)
            server.answer_watches(is_late=True)
            with pytest.raises(ProtocolError, match="KV_WATCH reply"):
                await anext(watch)

    with_client(body)


def test_texts_of_positions() -> None:
    low, high = offsets.pack(1, 2, 3, 0), offsets.pack(4, 5, 6, 0)
    assert (
        WatchPosition(high, low).text
        == WatchPosition(high, None).text
        == WatchPosition(high, high).text
        == offset_text(high)
    )
    for position in (WatchPosition(low, high), WatchPosition(high)):
        assert WatchPosition.of(position.text) == position
