"""Tests of producers: batches, receipts, errors, and retries."""

from __future__ import annotations

import math
from typing import Any

import anyio
import pytest

from sandq.client.client import Client, connect_with
from sandq.client.options import Options
from sandq.model import offsets
from sandq.model.batch import Batch, Column, headers_unpack
from sandq.model.errors import (
    ClosedError,
    InvalidRequest,
    InvalidTime,
    NotLeader,
    Overloaded,
    QuotaExceeded,
    StorageFailed,
    TimedOut,
    TooLarge,
    UnknownPartition,
    UnknownTopic,
)
from sandq.model.partitioning import partition_for
from sandq.model.sequence import number_of
from sandq.protocol.frames import Type
from tests.support.client.fake_server import CUT, SILENCE, FakeServer
from tests.support.waiting import until_holds

DEBOUNCED = {"unique_key": "u", "on_conflict": "debounce"}
THROTTLED = {"unique_key": "u", "on_conflict": "throttle"}


def values(server: FakeServer) -> list[bytes | None]:
    return [value for request in server.produced for value in Batch.parse(request.batch).values()]


def test_produce_gives_the_offset(with_client: Any) -> None:
    async def body(server: FakeServer, client: Client) -> None:
        text = await client.produce("t", b"hello", key="k", headers={"a": 1, "b": b"x"})
        assert len(text) == 26
        assert offsets.unpack(offsets.from_text(text)).deliver_ms == server.now_ms
        (request,) = server.produced
        batch = Batch.parse(request.batch)
        assert batch.values() == [b"hello"]
        assert batch.bytes_column(Column.KEY) == [b"k"]
        cells = batch.bytes_column(Column.HEADERS)
        assert cells is not None and headers_unpack(cells[0]) == {"a": 1, "b": b"x"}
        assert batch.int_column(Column.DELIVER_MS) is None
        assert request.producer_id > 0 and request.epoch == 1 and request.sequence == 1

    with_client(body)


def test_calls_at_the_same_time_share_a_batch(with_client: Any) -> None:
    async def body(server: FakeServer, client: Client) -> None:
        found: list[str] = []

        async def one(number: int) -> None:
            found.append(await client.produce("t", str(number)))

        async with anyio.create_task_group() as tasks:
            for number in range(50):
                tasks.start_soon(one, number)
        assert len(set(found)) == 50
        assert len(server.produced) <= 3

    with_client(body)


def test_batches_are_cut_by_count_and_by_bytes(with_client: Any) -> None:
    async def body(server: FakeServer, client: Client) -> None:
        async with client.producer("t", linger="10s") as producer:
            receipts = await producer.send_many([b"x"] * 2500)
        offset_texts = await receipts
        assert [Batch.parse(request.batch).count for request in server.produced] == [1000, 1000, 500]
        assert offset_texts == sorted(set(offset_texts)) and len(offset_texts) == len(receipts) == 2500
        server.produced.clear()
        async with client.producer("t", linger="10s") as producer:
            for _ in range(5):
                await producer.send(b"x" * 100_000)
        assert [Batch.parse(request.batch).count for request in server.produced] == [2, 2, 1]

    with_client(body)


def test_linger_waits_for_company(with_client: Any) -> None:
    async def body(server: FakeServer, client: Client) -> None:
        async with client.producer("t", linger="200ms") as producer:
            started = anyio.current_time()
            first = await producer.send(b"a")
            await anyio.lowlevel.checkpoint()
            second = await producer.send(b"b")
            assert not first.done
            await first
            await second
            assert anyio.current_time() - started >= 0.19
        assert len(server.produced) == 1

    with_client(body)


def test_keys_and_partitions(with_client: Any) -> None:
    async def body(server: FakeServer, client: Client) -> None:
        async with client.producer("t", linger="10s") as producer:
            for number in range(100):
                receipt = await producer.send(b"v", key=f"key{number}")
                assert receipt.partition == partition_for(f"key{number}".encode(), 8)
            chosen = await producer.send(b"v", key="any", partition=5)
            assert chosen.partition == 5
            sticky = {(await producer.send(b"v")).partition for _ in range(10)}
            assert len(sticky) == 1
            with pytest.raises(UnknownPartition):
                await producer.send(b"v", partition=8)
        server.produced.clear()
        async with client.producer("t", linger="10s") as producer:
            await producer.send_many([b"v"] * 8000)
        assert sorted(request.partition for request in server.produced) == list(range(8))

    with_client(body, partitions=8)


def test_times_travel_in_batches_of_their_own(with_client: Any) -> None:
    async def body(server: FakeServer, client: Client) -> None:
        async with client.producer("t") as producer:
            await producer.send(b"now")
            await producer.send(b"at", deliver_at="2030-01-01T00:00:00Z")
            await producer.send(b"in", delay="1m30s")
            await producer.send(b"zero", delay=0)
        batches = [Batch.parse(request.batch) for request in server.produced]
        found = {
            value: (batch.relative, (batch.int_column(Column.DELIVER_MS) or [None] * batch.count)[place])
            for batch in batches
            for place, value in enumerate(batch.values())
        }
        assert found == {
            b"now": (False, None),
            b"zero": (False, None),
            b"at": (False, 1_893_456_000_000),
            b"in": (True, 90_000),
        }

    with_client(body)


@pytest.mark.parametrize(
    ("arguments", "error", "words"),
    [
        ({"value": 5}, InvalidRequest, "value: bytes or str"),
        ({"value": None}, InvalidRequest, "value: bytes or str"),
        ({"value": b"v", "key": 5}, InvalidRequest, "key: bytes or str"),
        ({"value": b"v", "deliver_at": 1_700_000_000}, InvalidTime, "seconds"),
        ({"value": b"v", "delay": -1}, InvalidTime, "is not"),
        ({"value": b"v", "delay": math.nan}, InvalidTime, "is not"),
        ({"value": b"v", "delay": 1, "deliver_at": 1_700_000_000_000}, InvalidRequest, "not both"),
        ({"value": b"v", "headers": ["a"]}, InvalidRequest, "mapping"),
        ({"value": b"v", "headers": {"a": object()}}, InvalidRequest, "headers"),
        ({"value": b"x" * (8 * 2**20 + 1)}, TooLarge, "message_bytes"),
        ({"value": b"v", "key": b"x" * 65_537}, TooLarge, "key_bytes"),
        ({"value": b"v", "priority": 1}, InvalidRequest, "priority: topic 't' is a timer topic; only prior"),
        ({"value": b"v", "priority": True}, InvalidRequest, "priority: a whole number is expected, not True"),
        ({"value": b"v", "priority": 1.0}, InvalidRequest, "priority: a whole number is expected"),
        ({"value": b"v", "priority": 2**31}, InvalidRequest, "priority: it is not within -2147483648 to 2147483647"),
        ({"value": b"v", "priority": -(10**5000)}, InvalidRequest, "priority: it is not within"),
        ({"value": b"v", "unique_key": ""}, InvalidRequest, "unique_key: it must not be empty"),
        ({"value": b"v", "unique_key": 5}, InvalidRequest, "unique_key: bytes or str"),
        ({"value": b"v", "unique_key": "x" * 1025}, TooLarge, "unique_key_bytes"),
        ({"value": b"v", "unique_key": "u", "on_conflict": "merge"}, InvalidRequest, "'merge'"),
        ({"value": b"v", "on_conflict": "replace"}, InvalidRequest, "on_conflict: it needs a unique_key"),
        ({"value": b"v", "on_conflict": "debounce", "max_wait": 9}, InvalidRequest, "on_conflict: it needs a uniq"),
        ({"value": b"v", "unique_key": "u", "max_wait": 9}, InvalidRequest, 'max_wait: it needs on_conflict="debou'),
        ({"value": b"v", **DEBOUNCED, "max_wait": 0}, InvalidRequest, "max_wait: it must be greater than 0"),
        ({"value": b"v", **DEBOUNCED, "max_wait": -1}, InvalidTime, "-1 is not a duration: it must not be negative"),
        ({"value": b"v", **DEBOUNCED, "max_wait": "3661d"}, InvalidTime, "max_wait: 3661d is more than 3660 days"),
        ({"value": b"v", **DEBOUNCED, "max_wait": 4, "delay": 5}, InvalidRequest, "max_wait: 4s is less than"),
        ({"value": b"v", **DEBOUNCED, "max_wait": 4, "delay_ms": 4001}, InvalidRequest, "less than the delay of 4s1ms"),
        ({"value": b"v", "on_conflict": "throttle", "window": 9}, InvalidRequest, "on_conflict: it needs a uniq"),
        ({"value": b"v", "unique_key": "u", "window": 9}, InvalidRequest, 'window: it needs on_conflict="throttle"'),
        ({"value": b"v", **DEBOUNCED, "edge": "both"}, InvalidRequest, 'edge: it needs on_conflict="throttle"'),
        ({"value": b"v", **THROTTLED}, InvalidRequest, 'window: on_conflict="throttle" needs one'),
        ({"value": b"v", **THROTTLED, "edge": "both"}, InvalidRequest, 'window: on_conflict="throttle" needs one'),
        (
            {"value": b"v", **THROTTLED, "window": 9, "max_wait": 9},
            InvalidRequest,
            'max_wait: it needs on_conflict="de',
        ),
        ({"value": b"v", **THROTTLED, "window": 0}, InvalidRequest, "window: it must be greater than 0"),
        ({"value": b"v", **THROTTLED, "window": -1}, InvalidTime, "it must not be negative"),
        ({"value": b"v", **THROTTLED, "window": "8d"}, InvalidTime, "window: 8d is more than 7 days"),
        ({"value": b"v", **THROTTLED, "window": 9, "edge": "trailing"}, InvalidRequest, "alone, use .*debounce"),
        (
            {"value": b"v", **THROTTLED, "window": 9, "edge": b"both"},
            InvalidRequest,
            "edge: .* is expected, not b'both",
        ),
        (
            {"value": b"v", **THROTTLED, "window": 9, "edge": "both", "delay": 1},
            InvalidRequest,
            "no deliver_at or delay",
        ),
        ({"value": b"v", **THROTTLED, "window": 9, "edge": "both", "delay_ms": 1}, InvalidRequest, "no deliver_at or"),
        ({"value": b"v", **THROTTLED, "window": 9, "edge": "both", "deliver_at": 4 * 10**12}, InvalidRequest, "edge"),
        ({"value": b"v", "ttl": -1}, InvalidTime, "is not"),
        ({"value": b"v", "ttl": 0}, InvalidRequest, "ttl: it must be greater"),
        ({"value": b"v", "tenant": "a.b"}, InvalidRequest, "tenant: topic 't' is a timer topic; only fair"),
        ({"value": b"v", "tenant": "a b"}, InvalidRequest, "tenant: 'a b' is not allowed"),
        ({"value": b"v", "tenant": b"a"}, InvalidRequest, "tenant: text is expected, not bytes"),
        ({"value": b"v", "partition": "1"}, InvalidRequest, "partition"),
    ],
)
def test_invalid_message_is_raised_at_once(with_client: Any, arguments: Any, error: Any, words: str) -> None:
    async def body(server: FakeServer, client: Client) -> None:
        given = dict(arguments)
        value = given.pop("value")
        with pytest.raises(error, match=words):
            await client.produce("t", value, **given)
        async with client.producer("t") as producer:
            with pytest.raises(error, match=words):
                await producer.send(value, **given)
            with pytest.raises(error, match="message 1 of send_many"):
                await producer.send_many([b"fine", dict(arguments)])
        assert values(server) == [b"fine"]

    with_client(body)


def test_an_argument_that_there_is_not_is_refused(with_client: Any) -> None:
    async def body(server: FakeServer, client: Client) -> None:
        with pytest.raises(TypeError, match=r"produce\(\) got an unexpected .* 'deley'. Did you mean 'delay'\?"):
            await client.produce("t", b"v", deley="5s")  # type: ignore[call-arg]
        async with client.producer("t") as producer:
            with pytest.raises(TypeError, match="'deley'"):
                await producer.send(b"v", deley="5s")  # type: ignore[call-arg]
            with pytest.raises(TypeError, match=r"Did you mean 'delay'\?"):
                await producer.send_many([b"v"], deley="5s")  # type: ignore[call-arg]
            for value in ("5s", None):
                with pytest.raises(
                    InvalidRequest, match=r"message 1 of send_many: 'deley': no such .*; did you mean 'delay'"
                ):
                    await producer.send_many([b"fine", {"value": b"v", "deley": value}])
        assert values(server) == [b"fine", b"fine"]

    with_client(body)


def test_timeout_of_one_produce(with_client: Any) -> None:
    async def body(server: FakeServer, client: Client) -> None:
        held: list[Any] = []
        server.script[Type.PRODUCE] += [lambda connection, frame: held.append((connection, frame))]
        with pytest.raises(TimedOut, match=r"topic 't': not confirmed in 0.05 s; the outcome is unknown") as caught:
            await client.produce("t", b"slow", timeout="50ms")
        assert "unless it has a unique_key" in str(caught.value) and caught.value.details == {"topic": "t"}
        assert len(held) == 1, "the batch was sent, and no answer came"
        server.script[Type.PRODUCE].clear()
        assert await client.produce("t", b"quick", timeout="1h")
        for wrong in (0, "soon"):
            with pytest.raises(InvalidRequest):
                await client.produce("t", b"x", timeout=wrong)

    with_client(body)


def test_limits_of_the_server_are_checked(with_client: Any, run: Any) -> None:
    async def main() -> None:
        async with anyio.create_task_group() as tasks:
            server = FakeServer()
            server.limits = {"message_bytes": 10, "unknown": 5, "key_bytes": -1}
            server.add_topic("t")
            await server.start(tasks)
            async with connect_with(Options(), (server.address,), "test") as client:
                with pytest.raises(TooLarge) as caught:
                    await client.produce("t", b"x" * 11)
                assert caught.value.details == {"limit": "message_bytes", "maximum": 10, "size": 11}
            tasks.cancel_scope.cancel()

    run(main)


def test_send_many_takes_mappings(with_client: Any) -> None:
    async def body(server: FakeServer, client: Client) -> None:
        async with client.producer("t") as producer:
            receipts = await producer.send_many(
                [b"a", {"value": b"b", "delay": 5}, {"value": "c", "key": "k"}], deliver_at=1_900_000_000_000
            )
            assert len(await receipts) == 3
            with pytest.raises(InvalidRequest, match='needs a "value"'):
                await producer.send_many([{"key": "k"}])
        kinds = {(Batch.parse(request.batch).relative, Batch.parse(request.batch).count) for request in server.produced}
        assert kinds == {(False, 2), (True, 1)}

    with_client(body)


def test_a_refused_batch_fails_its_receipts_and_the_block(with_client: Any) -> None:
    async def body(server: FakeServer, client: Client) -> None:
        server.script[Type.PRODUCE] += [StorageFailed("disk full")]
        told = r"^3 messages to topic 't' were not produced \(the outcome of 3 is unknown\); the first: disk full$"
        with pytest.raises(StorageFailed, match=told):
            async with client.producer("t", linger="10s") as producer:
                for number in range(3):
                    await producer.send(str(number))
        server.script[Type.PRODUCE] += [StorageFailed("disk full")]
        async with client.producer("t") as producer:
            receipt = await producer.send(b"x")
            with pytest.raises(StorageFailed, match=r"^disk full$"):
                await receipt
            with pytest.raises(StorageFailed):
                await receipt
            assert await (await producer.send(b"y"))  # the error was raised once, so the block does not raise it again

    with_client(body)


def test_flush_confirms_and_raises(with_client: Any) -> None:
    async def body(server: FakeServer, client: Client) -> None:
        async with client.producer("t", linger=60) as producer:
            receipt = await producer.send(b"x")
            await producer.flush()
            assert receipt.done
            server.script[Type.PRODUCE] += [StorageFailed("disk full")]
            await producer.send(b"x")
            with pytest.raises(StorageFailed):
                await producer.flush()

    with_client(body)


def test_an_error_in_the_block_comes_out_as_it_is(with_client: Any) -> None:
    async def body(server: FakeServer, client: Client) -> None:
        server.script[Type.PRODUCE] += [StorageFailed("disk full")]
        with pytest.raises(KeyError) as caught:
            async with client.producer("t") as producer:
                await producer.send(b"x")
                raise KeyError("mine")
        assert "disk full" in caught.value.__notes__[0]
        with pytest.raises(KeyError):
            async with connect_with(Options(), (server.address,), "other"):
                raise KeyError("mine")

    with_client(body)


def test_unknown_topic(with_client: Any) -> None:
    async def body(server: FakeServer, client: Client) -> None:
        with pytest.raises(UnknownTopic):
            await client.produce("nope", b"x")
        with pytest.raises(UnknownTopic):
            async with client.producer("nope"):
                pass
        server.add_topic("nope")
        assert await client.produce("nope", b"x")

    with_client(body)


@pytest.mark.parametrize("problem", [NotLeader("not here"), Overloaded("later"), TimedOut("who knows"), CUT])
def test_transient_errors_are_retried_in_order(with_client: Any, problem: Any) -> None:
    async def body(server: FakeServer, client: Client) -> None:
        server.script[Type.PRODUCE] += [problem, problem]
        async with client.producer("t") as producer:
            await producer.send_many([str(number).encode() for number in range(6000)])
        first = {}
        for frame in server.of_type(Type.PRODUCE):
            assert tuple(frame[4:6]) == server.produced[0][2:4]
            number = number_of(frame[6])
            first.setdefault(number, frame[8])
            assert first[number] == frame[8]  # the same batch under the same number
        assert sorted(first) == [1, 2, 3, 4, 5, 6]
        unique = {number_of(request.sequence): request for request in server.produced}
        assert [value for number in sorted(unique) for value in Batch.parse(unique[number].batch).values()] == [
            str(number).encode() for number in range(6000)
        ]

    with_client(body)


@pytest.mark.parametrize("waits", [True, False])
def test_producer_that_does_not_wait_for_a_quota_fails_at_once(with_client: Any, waits: bool) -> None:
    async def body(server: FakeServer, client: Client) -> None:
        server.script[Type.PRODUCE] += [QuotaExceeded("full", quota="stored_bytes", retry_after_ms=1)]
        if waits:
            assert await client.produce("t", b"x")
        else:
            with pytest.raises(QuotaExceeded, match="full"):
                await client.produce("t", b"x")
        assert len(server.of_type(Type.PRODUCE)) == 1 + waits
        assert await client.produce("t", b"y")
        server.script[Type.PRODUCE] += [TimedOut("who knows"), QuotaExceeded("full", retry_after_ms=1)]
        assert await client.produce("t", b"z"), "the batch may be stored, so it is resent until this is known"

    with_client(body, waits_for_quota=waits)


def test_not_leader_refreshes_metadata(with_client: Any) -> None:
    async def body(server: FakeServer, client: Client) -> None:
        await client.produce("t", b"x")
        before = len(server.of_type(Type.METADATA))
        server.script[Type.PRODUCE] += [NotLeader("not here")]
        await client.produce("t", b"x")
        await until_holds(lambda: len(server.of_type(Type.METADATA)) > before)

    with_client(body)


def test_delivery_timeout_says_that_the_outcome_is_unknown(with_client: Any) -> None:
    async def body(server: FakeServer, client: Client) -> None:
        server.script[Type.PRODUCE] += [SILENCE]
        with pytest.raises(TimedOut, match="outcome is unknown"):
            await client.produce("t", b"x")

    with_client(body, delivery_timeout_s=0.2)


def test_send_waits_for_capacity_only(with_client: Any) -> None:
    async def body(server: FakeServer, client: Client) -> None:
        held: list[Any] = []
        server.script[Type.PRODUCE] += [lambda connection, frame: held.append((connection, frame))] * 100
        async with client.producer("t") as producer:
            for _ in range(10):
                await producer.send(b"x" * 1000)
            await until_holds(lambda: held)
            with anyio.move_on_after(0.05) as scope:
                await producer.send(b"y" * 1000)
            assert scope.cancelled_caught
            for connection, frame in held:
                server.answer(connection, frame)
            await producer.send(b"z")
            server.script[Type.PRODUCE].clear()
            for connection, frame in held[1:]:
                server.answer(connection, frame)
        assert b"y" * 1000 not in values(server)

    with_client(body, buffer_bytes=10_000)


def test_cancelling_the_block_gives_up(with_client: Any, caplog: Any) -> None:
    async def body(server: FakeServer, client: Client) -> None:
        scope = anyio.CancelScope()
        server.script[Type.PRODUCE] += [lambda connection, frame: scope.cancel()]
        with scope:
            async with client.producer("t") as producer:
                receipt = await producer.send(b"x")
                await anyio.sleep_forever()
        assert scope.cancelled_caught
        with pytest.raises(ClosedError, match="may have been stored"):
            await receipt
        with pytest.raises(ClosedError):
            await producer.send(b"y")

    with_client(body)
    assert "1 messages were not confirmed" in caplog.text


def test_deleted_topic_fails_pending_messages(with_client: Any) -> None:
    async def body(server: FakeServer, client: Client) -> None:
        async with client.producer("t") as producer:
            server.topics.clear()
            server.script[Type.PRODUCE] += [NotLeader("gone")]
            receipt = await producer.send(b"x")
            with pytest.raises(UnknownTopic):
                await receipt

    with_client(body)


def test_a_producer_is_entered_once_and_closed_after(with_client: Any) -> None:
    async def body(server: FakeServer, client: Client) -> None:
        producer = client.producer("t")
        with pytest.raises(ClosedError, match="async with"):
            await producer.send(b"x")
        async with producer:
            pass
        with pytest.raises(ClosedError):
            await producer.send(b"x")
        with pytest.raises(ClosedError):
            async with producer:
                pass

    with_client(body)
