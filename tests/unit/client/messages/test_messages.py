"""Tests of reading, cancelling and moving stored messages."""

from __future__ import annotations

from functools import partial
from typing import Any

import anyio
import pytest

from sandq.client.client import Client, connect_with
from sandq.client.options import Options
from sandq.model import offsets
from sandq.model.errors import (
    ClosedError,
    InvalidRequest,
    InvalidTime,
    NotFound,
    NotLeader,
    Overloaded,
    ProtocolError,
    TimedOut,
    TooLarge,
    TooLate,
    Unavailable,
    UnknownTopic,
)
from sandq.protocol.frames import Type, encode_reply
from tests.support.client.fake_server import CUT, NOW_MS, SILENCE, FakeServer
from tests.support.client.helpers import QUICK, two_nodes
from tests.support.waiting import until_holds

HOUR_MS = 3_600_000


def test_get(with_client: Any) -> None:
    async def body(server: FakeServer, client: Client) -> None:
        text = await client.produce("t", b"v", key="k", headers={"a": 1}, delay="1h", ttl="5m")
        messages = client.messages("t")
        found = await messages.get(text)
        assert (found.id, found.offset, found.topic, found.partition) == (text, text, "t", 0)
        assert (found.state, found.value, found.key, found.headers) == ("delayed", b"v", b"k", {"a": 1})
        assert found.created_ms == NOW_MS and found.deliver_at_ms == found.due_ms == NOW_MS + HOUR_MS
        assert (found.ttl_ms, found.unique_key, found.moves, found.moved_ms, found.size) == (300_000, None, 0, None, 1)
        named = await client.produce("t", b"w", unique_key="u", deliver_at=NOW_MS + 5)
        assert (await messages.get(unique_key="u")).id == named
        with pytest.raises(NotFound):
            await messages.get(unique_key="other")
        with pytest.raises(NotFound, match="has no message"):  # an id of a partition that does not exist
            await messages.get(offsets.to_text(offsets.pack(5, 5, 5, 9)))

    with_client(body)


def test_large_values_come_back(with_client: Any) -> None:
    async def body(server: FakeServer, client: Client) -> None:
        texts = [await client.produce("t", bytes(3_000_000)) for _ in range(3)]
        assert len((await client.messages("t").get(texts[0])).value or b"") == 3_000_000
        assert [len(one.value or b"") async for one in client.messages("t").list(values=True)] == [3_000_000] * 3

    with_client(body)


@pytest.mark.parametrize(
    ("use", "error"),
    [
        (lambda messages: messages.get(), InvalidRequest),
        (lambda messages: messages.get("0" * 26, unique_key="u"), InvalidRequest),
        (lambda messages: messages.get("short"), InvalidRequest),
        (lambda messages: messages.get(unique_key=""), InvalidRequest),
        (lambda messages: messages.get(unique_key="x" * 1025), InvalidRequest),
        (lambda messages: messages.get("0" * 26, key="k"), InvalidRequest),
        (lambda messages: messages.get(key="k"), InvalidRequest),
        (lambda messages: messages.get(unique_key="u", key=5), InvalidRequest),
        (lambda messages: messages.get(unique_key="u", key="k" * 65_537), TooLarge),
        (lambda messages: messages.get(unique_key="u", key="k", tenant="acme"), InvalidRequest),
        (lambda messages: messages.cancel(), InvalidRequest),
        (lambda messages: messages.move("0" * 26), InvalidRequest),
        (lambda messages: messages.move("0" * 26, delay=5, deliver_at=NOW_MS), InvalidRequest),
        (lambda messages: messages.move("0" * 26, delay=-5), InvalidTime),
        (lambda messages: messages.move("0" * 26, delay=5, delay_ms=5), InvalidRequest),
        (lambda messages: messages.move("0" * 26, deliver_at=NOW_MS, delay_ms=5), InvalidRequest),
        (lambda messages: messages.move("0" * 26, delay_ms=0.5), InvalidTime),
        (lambda messages: messages.update("0" * 26, value=b"v", delay_ms=-1), InvalidTime),
        (lambda messages: messages.set_priority("0" * 26, priority=1), InvalidRequest),
        (lambda messages: messages.set_priority("0" * 26, priority=2**31), InvalidRequest),
        (lambda messages: messages.move_all(priority=1), InvalidRequest),
        (lambda messages: messages.cancel_all(since=5), InvalidTime),
        (lambda messages: messages.cancel_all(key_prefix=5), InvalidRequest),
        (lambda messages: messages.move_all(), InvalidRequest),
        (lambda messages: messages.move_all(to=NOW_MS, shift=5), InvalidRequest),
        (lambda messages: messages.move_all(shift="minus"), InvalidTime),
        (lambda messages: messages.list(state="dead").__anext__(), InvalidRequest),
        (lambda messages: messages.list(limit=-1).__anext__(), InvalidRequest),
        (lambda messages: messages.list(until="tomorrow").__anext__(), InvalidTime),
    ],
)
def test_wrong_arguments(with_client: Any, use: Any, error: Any) -> None:
    async def body(server: FakeServer, client: Client) -> None:
        with pytest.raises(error):
            await use(client.messages("t"))
        assert not {Type.GET, Type.CANCEL, Type.MOVE, Type.LIST, Type.JOB_START} & {frame[0] for frame in server.frames}

    with_client(body)


def test_cancel_and_move(with_client: Any) -> None:
    async def body(server: FakeServer, client: Client) -> None:
        messages = client.messages("t")
        text = await client.produce("t", b"v", delay="1h")
        moved = await messages.move(text, deliver_at=NOW_MS + 2 * HOUR_MS)
        assert moved > text and offsets.deliver_ms(offsets.from_text(moved)) == NOW_MS + 2 * HOUR_MS
        found = await messages.get(text)
        assert (found.id, found.offset, found.moves, found.moved_ms) == (text, moved, 1, NOW_MS)
        assert found.due_ms == NOW_MS + HOUR_MS and found.deliver_at_ms == NOW_MS + 2 * HOUR_MS
        again = await messages.move(text, delay_ms=300_000)
        assert offsets.deliver_ms(offsets.from_text(again)) == NOW_MS + 300_000
        assert server.of_type(Type.MOVE)[-1][4] == [[[0, offsets.from_text(text)], 300_000, True]]
        assert await messages.cancel(text) == text
        assert await messages.cancel(text) == text
        with pytest.raises(NotFound, match=text):
            await messages.move(text, delay=0)
        with pytest.raises(NotFound, match=r"^topic 't' has no message of unique key 'u'; a message with a key is "):
            await messages.cancel(unique_key="u")
        named = await client.produce("t", b"v", unique_key="u")
        assert await messages.cancel(unique_key="u") == named

    with_client(body)


def test_message_with_a_key_is_named_by_both(with_client: Any) -> None:
    async def body(server: FakeServer, client: Client) -> None:
        messages = client.messages("t")
        ada, bob = [await client.produce("t", b"v", unique_key="i", key=key, delay="1h") for key in (b"ada\xff", "bob")]
        assert (await messages.get(unique_key="i", key=b"ada\xff")).id == ada
        assert (await messages.why(unique_key="i", key="bob"))["id"] == bob
        assert server.of_type(Type.WHY)[-1][4] == [1, b"i", None, b"bob"]
        await messages.move(unique_key="i", key="bob", delay="2h")
        await messages.update(unique_key="i", key="bob", json={"a": 1})
        assert (await messages.get(bob)).json() == {"a": 1}
        assert await messages.cancel(unique_key="i", key="bob") == bob
        for name in ("cancel", "get"):
            with pytest.raises(NotFound):
                await getattr(messages, name)(unique_key="i")
        with pytest.raises(NotFound, match=r"^topic 't' has no message of unique key 'i' and key 'eve'$"):
            await messages.move(unique_key="i", key="eve", delay=0)
        assert (await messages.get(ada)).value == b"v"

    with_client(body)


def test_long_keys_of_cancels_are_divided_among_frames(with_client: Any) -> None:
    async def body(server: FakeServer, client: Client) -> None:
        async def cancel(number: int) -> None:
            with pytest.raises(NotFound):
                await client.messages("t").cancel(unique_key="i", key=b"%060000d" % number)

        async with anyio.create_task_group() as tasks:
            for number in range(100):
                tasks.start_soon(cancel, number)
        frames = server.of_type(Type.CANCEL)
        assert len(frames) == 3 and sum([len(frame[4]) for frame in frames]) == 100

    with_client(body)


def test_updates_that_are_not_done_at_once_are_asked_for_again(with_client: Any) -> None:
    async def body(server: FakeServer, client: Client) -> None:
        messages = client.messages("t")
        ids = [await client.produce("t", b"v", delay="1h") for _ in range(5)]
        server.updates_at_once = 2
        await messages.cancel(ids[1])
        reported: dict[str, str] = {}

        async def change(one: str) -> None:
            try:
                reported[one] = await messages.update(one, headers={"of": one})
            except NotFound as error:
                reported[one] = error.code

        async with anyio.create_task_group() as tasks:
            for one in ids:
                tasks.start_soon(change, one)
        assert reported == {one: one for one in ids} | {ids[1]: "NOT_FOUND"}
        assert [(await messages.get(one)).headers for one in ids[2:]] == [{"of": one} for one in ids[2:]]
        asked = [[offsets.to_text(item[0][1]) for item in frame[4]] for frame in server.of_type(Type.MOVE)]
        assert [sorted(some) for some in asked] == [ids, sorted(asked[0][2:]), asked[0][4:]]

    with_client(body)


def test_many_updates_are_sent_a_few_times_each(with_client: Any) -> None:
    """A partition updates three of a thousand large messages at a time.

    The client does not resend all of them each time.
    """

    async def body(server: FakeServer, client: Client) -> None:
        messages = client.messages("t")
        ids = [await client.produce("t", b"v", delay="1h") for _ in range(60)]
        server.updates_at_once = 1
        async with anyio.create_task_group() as tasks:
            for one in ids:
                tasks.start_soon(partial(messages.update, one, headers={"of": one}))
        assert [(await messages.get(one)).headers for one in ids] == [{"of": one} for one in ids]
        assert sum(len(frame[4]) for frame in server.of_type(Type.MOVE)) <= (1 + 8) * len(ids)

    with_client(body)


def test_set_priority(with_client: Any) -> None:
    async def body(server: FakeServer, client: Client) -> None:
        server.add_topic("f", kind="fair", partitions=3)
        messages = client.messages("f")
        text = await client.produce("f", b"v", delay="1h", tenant="acme", unique_key="u")
        moved = await messages.set_priority(text, priority=-2)
        assert offsets.deliver_ms(offsets.from_text(moved)) == NOW_MS + HOUR_MS
        assert (await messages.get(text)).priority == -2
        named = [1, b"u", "acme"]
        await messages.set_priority(unique_key="u", tenant="acme", priority=7)
        await messages.move(unique_key="u", tenant="acme", delay="1m", priority=7)
        assert [frame[4] for frame in server.of_type(Type.MOVE)] == [
            [[[0, offsets.from_text(text)], None, False, -2]],
            [[named, None, False, 7]],
            [[named, 60_000, True, 7]],
        ]
        with pytest.raises(NotFound, match=r"no message of unique key 'other' of the tenant 'default': .*give it"):
            await messages.set_priority(unique_key="other", priority=1)
        with pytest.raises(NotFound, match=r"no message of unique key 'other' of tenant acme$"):
            await messages.set_priority(unique_key="other", tenant="acme", priority=1)
        assert await messages.move_all(priority=3) == (1, 1, 0)
        (*_, arguments) = server.of_type(Type.JOB_START)[-1]
        assert arguments["priority"] == 3 and not arguments.keys() & {"to_ms", "shift_ms"}

    with_client(body)


@pytest.mark.parametrize("state", ["leased", "acked", "dead", "gone"])
def test_too_late(with_client: Any, state: str) -> None:
    async def body(server: FakeServer, client: Client) -> None:
        text = await client.produce("t", b"v")
        server.stored["t", 0][0].state = state
        for use in (client.messages("t").cancel(text), client.messages("t").move(text, delay=5)):
            with pytest.raises(TooLate, match=f"any more: it is {state}") as caught:
                await use
            assert caught.value.details == {"state": state} and not caught.value.retriable

    with_client(body)


def test_cancels_at_the_same_time_share_frames(with_client: Any) -> None:
    async def body(server: FakeServer, client: Client) -> None:
        async with client.producer("t") as producer:
            texts = await (await producer.send_many([{"value": b"v", "key": str(n), "delay": 60} for n in range(2500)]))
        cancelled: list[str] = []
        late: list[str] = []
        server.stored["t", 0][0].state = "leased"

        async def cancel(text: str) -> None:
            try:
                cancelled.append(await client.messages("t").cancel(text))
            except TooLate:
                late.append(text)

        async with anyio.create_task_group() as tasks:
            for text in texts:
                tasks.start_soon(cancel, text)
        assert len(late) == 1 and len(cancelled) == 2499 and not set(cancelled) & set(late)
        counts = [len(frame[4]) for frame in server.of_type(Type.CANCEL)]
        assert sum(counts) == 2500 and len(counts) <= 4 and max(counts) == 1000
        assert {frame[3] for frame in server.of_type(Type.CANCEL)} == {0, 1}

        async def move(number: int) -> None:
            with pytest.raises((NotFound, TooLate)):
                await client.messages("t").move(texts[number], delay=number)

        async with anyio.create_task_group() as tasks:
            for number in range(1, 50):
                tasks.start_soon(move, number)
        assert len(server.of_type(Type.MOVE)) <= 2

    with_client(body, partitions=2)


def test_a_cancelled_caller_is_left_out_and_the_others_are_not(with_client: Any) -> None:
    async def body(server: FakeServer, client: Client) -> None:
        first, second, third = [await client.produce("t", b"v") for _ in range(3)]
        messages = client.messages("t")
        async with anyio.create_task_group() as tasks:
            with anyio.CancelScope() as scope:
                scope.cancel()
                await messages.cancel(first)
            tasks.start_soon(messages.cancel, second)
            tasks.start_soon(messages.cancel, third)
        assert sorted(target[1] for target in server.cancelled) == sorted(
            offsets.from_text(text) for text in (second, third)
        )

    with_client(body)


def test_error_of_a_frame_is_raised_for_each_request(with_client: Any) -> None:
    async def body(server: FakeServer, client: Client) -> None:
        texts = [await client.produce("t", b"v") for _ in range(3)]
        server.script[Type.CANCEL] += [UnknownTopic("gone")]
        errors: list[UnknownTopic] = []

        async def cancel(text: str) -> None:
            with pytest.raises(UnknownTopic) as caught:
                await client.messages("t").cancel(text)
            errors.append(caught.value)

        async with anyio.create_task_group() as tasks:
            for text in texts:
                tasks.start_soon(cancel, text)
        assert len({id(error) for error in errors}) == 3
        server.script[Type.CANCEL] += [lambda to, frame: to.send(encode_reply(frame[1], [["moved", bytes(16)]]))]
        with pytest.raises(ProtocolError, match="does not fit"):
            await client.messages("t").cancel(texts[0])
        server.script[Type.CANCEL] += [lambda to, frame: to.send(encode_reply(frame[1], []))]
        with pytest.raises(ProtocolError):
            await client.messages("t").cancel(texts[0])

    with_client(body)


def test_closing_the_client_ends_a_cancel(run: Any) -> None:
    async def main() -> None:
        async with anyio.create_task_group() as tasks:
            server = FakeServer()
            server.add_topic("t")
            server.script[Type.CANCEL] += [SILENCE]
            await server.start(tasks)

            async def cancel(client: Client) -> None:
                with pytest.raises(ClosedError):
                    await client.messages("t").cancel("0" * 26)

            options = Options(**QUICK)
            async with anyio.create_task_group() as users, connect_with(options, (server.address,), "test") as client:
                users.start_soon(cancel, client)
                await until_holds(lambda: server.of_type(Type.CANCEL))
                messages = client.messages("t")
            with pytest.raises(ClosedError):
                await messages.cancel("0" * 26)
            with pytest.raises(ClosedError):
                client.messages("t")
            tasks.cancel_scope.cancel()

    run(main)


def test_last_error_is_raised_when_no_time_is_left_for_a_retry(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("random.uniform", lambda low, high: high)
    pause = {"back_off_first_s": 0.99, "back_off_max_s": 0.99, "timeout_s": 1.0}

    async def main() -> None:
        async with anyio.create_task_group() as tasks:
            server = FakeServer()
            server.add_topic("t", 1)
            await server.start(tasks)
            async with connect_with(Options(**QUICK | pause), (server.address,), "test") as client:
                server.script[Type.CANCEL] += [Overloaded("later"), SILENCE]
                with pytest.raises(Overloaded, match="later"):
                    await client.messages("t").cancel("0" * 26)
            tasks.cancel_scope.cancel()

    run(main)


@pytest.mark.parametrize("problem", [CUT, NotLeader("moved"), Overloaded("later"), Unavailable("soon"), TimedOut("?")])
def test_transient_error_is_retried(with_client: Any, problem: Any) -> None:
    async def body(server: FakeServer, client: Client) -> None:
        text = await client.produce("t", b"v")
        for kind in (Type.GET, Type.LIST, Type.MOVE, Type.CANCEL, Type.WHY):
            server.script[kind] += [problem, problem]
        messages = client.messages("t")
        assert (await messages.get(text)).id == text
        assert [one.id async for one in messages.list()] == [text]
        assert (await messages.why(text))["id"] == text
        await messages.move(text, deliver_at=NOW_MS + 5)
        assert await messages.cancel(text) == text
        for kind in (Type.GET, Type.LIST, Type.MOVE, Type.CANCEL, Type.WHY):
            assert len(server.of_type(kind)) == 3

    with_client(body)


def test_cancel_with_lost_reply_is_retried(with_client: Any) -> None:
    async def body(server: FakeServer, client: Client) -> None:
        def cancel_and_cut(connection: Any, frame: Any) -> None:
            server.do_cancel(connection, frame)
            connection.cut()

        text = await client.produce("t", b"v")
        server.script[Type.CANCEL] += [cancel_and_cut]
        assert await client.messages("t").cancel(text) == text
        assert not server.stored["t", 0]

    with_client(body)


def test_a_partition_that_moved_is_found(run: Any) -> None:
    async def main() -> None:
        async with two_nodes() as (one, two, client):
            text = await client.produce("t", b"v", partition=1)
            one.stored["t", 1] = two.stored["t", 1]
            assert (await client.messages("t").get(text)).partition == 1
            assert not one.of_type(Type.GET)
            # With a hint the named leader is asked at once. Without a hint the client asks for metadata.
            for details in ({"node_id": "n1"}, {}):
                two.script[Type.GET] += [NotLeader("moved", **details)] * 100
                if not details:
                    for server in (one, two):
                        server.add_topic("t", 2, leaders=["n1", "n1"])
                assert (await client.messages("t").get(text)).value == b"v"
                two.script[Type.GET].clear()
            assert len(one.of_type(Type.GET)) == 2

    run(main)


def test_get_without_leader_raises_unavailable(with_client: Any) -> None:
    async def body(server: FakeServer, client: Client) -> None:
        server.add_topic("t", 1, leaders=[None])
        with pytest.raises(Unavailable):
            await client.messages("t").get("0" * 26)
        with pytest.raises(UnknownTopic):
            await client.messages("nope").get("0" * 26)

    with_client(body, timeout_s=0.2)


def test_list_merges_partitions_page_by_page(with_client: Any) -> None:
    async def body(server: FakeServer, client: Client) -> None:
        server.page_rows = 7
        async with client.producer("t") as producer:
            rows = [{"value": b"%d" % n, "partition": n % 2, "deliver_at": NOW_MS + 1000 * n} for n in range(60)]
            await producer.send_many(rows)
        messages = client.messages("t")
        found = [message async for message in messages.list()]
        assert [message.deliver_at_ms for message in found] == [NOW_MS + 1000 * n for n in range(60)]
        assert [message.partition for message in found] == [0, 1] * 30
        assert {message.value for message in found} == {None}
        assert len(server.of_type(Type.LIST)) == 10

        assert [message.value async for message in messages.list(limit=3, values=True)] == [b"0", b"1", b"2"]
        assert [message async for message in messages.list(limit=0)] == []
        assert len([message async for message in messages.list(state="ready")]) == 1
        bounded = messages.list(state="delayed", since=NOW_MS + 1000, until=NOW_MS + 5000)
        assert [message.deliver_at_ms async for message in bounded] == [NOW_MS + 1000 * n for n in (1, 2, 3, 4)]
        assert [message async for message in messages.list(key_prefix="k")] == []
        async for message in messages.list():
            assert message.deliver_at_ms == NOW_MS
            break

    with_client(body, partitions=2)


def test_newest_first_list_merges_partitions_in_reverse(with_client: Any) -> None:
    async def body(server: FakeServer, client: Client) -> None:
        server.page_rows = 7
        async with client.producer("t") as producer:
            rows = [{"value": b"%d" % n, "partition": n % 2, "deliver_at": NOW_MS + 1000 * n} for n in range(60)]
            await producer.send_many(rows)
        messages = client.messages("t")
        found = [message async for message in messages.list(newest=True)]
        assert [message.deliver_at_ms for message in found] == [NOW_MS + 1000 * n for n in range(59, -1, -1)]
        assert {frame[12] for frame in server.of_type(Type.LIST)} == {"newest"}
        later = [message async for message in messages.list(newest=True, after=found[30].offset, limit=5)]
        assert later == found[31:36]
        (one,) = [message async for message in messages.list(limit=1, values=True, value_bytes=9)]
        assert server.of_type(Type.LIST)[-1][12:] == [None, 9] and one.value == b"0"
        for wrong in (0, 65_537, True, "1"):
            with pytest.raises(InvalidRequest, match="value_bytes: 1 to 65536 are expected"):
                messages.list(value_bytes=wrong)

    with_client(body, partitions=2)


def test_a_page_may_be_empty_and_not_the_last(with_client: Any) -> None:
    async def body(server: FakeServer, client: Client) -> None:
        text = await client.produce("t", b"v", partition=1)
        after = offsets.pack(5, 5, 5, 0)
        nothing_yet = [lambda to, frame: to.send(encode_reply(frame[1], [], after))] * 4
        server.script[Type.LIST] += nothing_yet
        assert [message.id async for message in client.messages("t").list()] == [text]
        pages = server.of_type(Type.LIST)
        assert len(pages) == 6 and sorted(page[9] or b"" for page in pages) == [b"", b"", *[after] * 4]

    with_client(body, partitions=2)


def test_why_returns_message_and_groups(with_client: Any) -> None:
    async def body(server: FakeServer, client: Client) -> None:
        key = b"sixteen bytes!!!"
        text = await client.produce("t", b"v", key=key, headers={"a": 1}, delay="1h")
        found = await client.messages("t").why(text)
        assert (found["id"], found["offset"], found["state"], found["partition"]) == (text, text, "delayed", 0)
        assert found["key"] == key and found["headers"] == {"a": 1} and "value" not in found
        group = {"group": "g", "state": "delayed", "attempt": 0, "reason": "it waits for its time"}
        assert found["groups"] == [{**group, "lease_token": None, "lives": []}]

    with_client(body)
