"""Tests of producers with unique keys and times to live."""

from __future__ import annotations

from typing import Any

import pytest

from sandq.client.client import Client
from sandq.model import offsets
from sandq.model.batch import Batch, Column
from sandq.model.errors import ConnectionLost, DuplicateKey, InvalidRequest, TimedOut
from sandq.model.partitioning import partition_for
from sandq.model.times import DAY_MS
from sandq.protocol.frames import Type
from sandq.protocol.requests import DEBOUNCE, THROTTLE, THROTTLE_BOTH
from tests.support.client.fake_server import FakeServer


def test_a_key_that_is_taken(with_client: Any) -> None:
    async def body(server: FakeServer, client: Client) -> None:
        first = await client.produce("t", b"a", unique_key="order-7", delay="1h")
        with pytest.raises(DuplicateKey, match=f"{first}, which is delayed") as caught:
            await client.produce("t", b"b", unique_key=b"order-7")
        assert caught.value.details == {"id": first, "state": "delayed"} and not caught.value.retriable
        assert await client.produce("t", b"b", unique_key="order-7", on_conflict="ignore") == first
        replaced = await client.produce("t", b"c", unique_key="order-7", on_conflict="replace")
        assert replaced != first
        assert [(row.id, row.value) for row in server.stored["t", 0]] == [(offsets.from_text(replaced), b"c")]
        assert [request.on_conflict for request in server.produced] == [0, 0, 2, 1]

    with_client(body)


def test_debounce_of_a_pending_message_replaces_it(with_client: Any) -> None:
    async def body(server: FakeServer, client: Client) -> None:
        first = await client.produce("t", b"a", unique_key="k", on_conflict="debounce", delay="5s", max_wait="1m")
        receipt = await client.send("t", b"b", unique_key="k", on_conflict="debounce", delay="5s", max_wait="1m")
        assert await receipt and receipt.outcome == ("replaced", first, None)
        assert [row.value for row in server.stored["t", 0]] == [b"b"]
        assert [tuple(request.on_conflict) for request in server.produced] == [(DEBOUNCE, 60_000)] * 2
        await client.produce("t", b"c", unique_key="k", on_conflict="debounce", delay="5s")
        assert server.produced[2].on_conflict == DEBOUNCE

    with_client(body)


def test_debounce_of_a_leased_message_stores_both(with_client: Any) -> None:
    async def body(server: FakeServer, client: Client) -> None:
        await client.produce("t", b"a", unique_key="k", on_conflict="debounce")
        server.stored["t", 0][0].state = "leased"
        receipt = await client.send("t", b"b", unique_key="k", on_conflict="debounce", delay="5s")
        assert await receipt and receipt.outcome == ("stored", None, "leased")
        assert [row.value for row in server.stored["t", 0]] == [b"a", b"b"]

    with_client(body)


def test_throttled_message_of_a_taken_key_is_ignored(with_client: Any) -> None:
    async def body(server: FakeServer, client: Client) -> None:
        rule: dict[str, Any] = {"unique_key": "k", "on_conflict": "throttle", "window": "1m"}
        first = await client.produce("t", b"a", **rule, delay="5s")
        receipt = await client.send("t", b"b", **rule, edge="both")
        assert await receipt == first and receipt.outcome == ("ignored", first, "delayed")
        await client.produce("t", b"c", **rule, edge="leading")
        rules = [tuple(request.on_conflict) for request in server.produced]
        assert rules == [(THROTTLE, 60_000), (THROTTLE_BOTH, 60_000), (THROTTLE, 60_000)]

    with_client(body)


def test_throttled_messages_share_a_batch_only_with_equal_window_and_edge(with_client: Any) -> None:
    async def body(server: FakeServer, client: Client) -> None:
        week = {"window": "7d", "edge": "both"}
        async with client.producer("t") as producer:
            for name, options in (("a", {"window": 60}), ("b", week), ("c", {"window": 61}), ("d", week)):
                await producer.send(b"v", unique_key=name, on_conflict="throttle", **options)
            values = [b"v", {"value": b"v", "unique_key": "f", "edge": "leading", "window": "1m"}]
            await producer.send_many(values, unique_key="e", on_conflict="throttle", **week)
        sent = {}
        for request in server.produced:
            for unique_key in Batch.parse(request.batch).bytes_column(Column.UNIQUE_KEY) or []:
                sent[unique_key] = tuple(request.on_conflict)
        minute, whole = (THROTTLE, 60_000), (THROTTLE_BOTH, 7 * DAY_MS)
        assert sent == {b"a": minute, b"b": whole, b"c": (THROTTLE, 61_000), b"d": whole, b"e": whole, b"f": minute}

    with_client(body)


@pytest.mark.parametrize("on_conflict", ["replace", "replace_pending", "debounce", "throttle"])
@pytest.mark.parametrize("others", [{"delay": 5}, {"ttl": 5}, {"max_wait": 5}, {"edge": "both"}])
def test_messages_that_replace_each_other_are_sent_in_the_order_of_the_calls(
    with_client: Any, on_conflict: str, others: dict[str, int]
) -> None:
    if ("max_wait" in others and on_conflict != "debounce") or ("edge" in others and on_conflict != "throttle"):
        return
    window = {"window": "1m"} if on_conflict == "throttle" else {}

    async def body(server: FakeServer, client: Client) -> None:
        async with client.producer("t") as producer:
            for number in range(5):
                more = window | (others if number % 2 else {})
                await producer.send(b"%d" % number, unique_key="k", on_conflict=on_conflict, **more)
        sent = sorted(server.produced, key=lambda request: request.sequence)
        assert [Batch.parse(request.batch).values() for request in sent] == [[b"%d" % number] for number in range(5)]

    with_client(body)


def test_debounced_messages_share_a_batch_only_with_equal_max_wait(with_client: Any) -> None:
    async def body(server: FakeServer, client: Client) -> None:
        async with client.producer("t", linger="10s") as producer:
            for name, max_wait in (("a", "1m"), ("c", 60), ("b", "2m"), ("d", None), ("e", "3660d")):
                await producer.send(b"v", unique_key=name, on_conflict="debounce", max_wait=max_wait, delay=5)
            await producer.send_many(
                [b"v", {"value": b"v", "unique_key": "g"}],
                unique_key="f",
                on_conflict="debounce",
                max_wait="2m",
                delay=5,
            )
        sent = {}
        for request in server.produced:
            for unique_key in Batch.parse(request.batch).bytes_column(Column.UNIQUE_KEY) or []:
                sent[unique_key] = request.sequence, request.on_conflict
        rules = {name: rule if isinstance(rule, int) else tuple(rule) for name, (_, rule) in sent.items()}
        minutes = {b"a": 1, b"b": 2, b"c": 1, b"f": 2, b"g": 2}
        assert rules == {
            **{name: (DEBOUNCE, count * 60_000) for name, count in minutes.items()},
            b"d": DEBOUNCE,
            b"e": (DEBOUNCE, 3660 * DAY_MS),
        }
        assert sent[b"a"] == sent[b"c"] and len(server.produced) == 5

    with_client(body)


def test_max_wait_of_send_many_without_debounce_is_refused(with_client: Any) -> None:
    async def body(server: FakeServer, client: Client) -> None:
        async with client.producer("t") as producer:
            with pytest.raises(InvalidRequest, match="message 0 of send_many: max_wait: it needs on_conflict"):
                await producer.send_many([b"a"], unique_key="u", max_wait="1m")
            with pytest.raises(InvalidRequest, match="message 0 of send_many: max_wait: 1s is less than the delay"):
                await producer.send_many([b"a"], unique_key="u", on_conflict="debounce", max_wait="1s", delay="2s")
        assert server.produced == []

    with_client(body)


def test_a_refused_message_does_not_fail_the_others(with_client: Any) -> None:
    async def body(server: FakeServer, client: Client) -> None:
        async with client.producer("t", linger="200ms") as producer:
            receipts = [await producer.send(b"v", unique_key=name) for name in ("a", "b", "a", "c", "b")]
            assert await receipts[0] < await receipts[1]
            with pytest.raises(DuplicateKey) as caught:
                await receipts[2]
            assert caught.value.details["id"] == await receipts[0]
            await receipts[3]
            with pytest.raises(DuplicateKey):
                await receipts[4]
        assert len(server.produced) == 1 and len(server.stored["t", 0]) == 3

    with_client(body)


def test_refused_messages_without_await_fail_the_block(with_client: Any) -> None:
    async def body(server: FakeServer, client: Client) -> None:
        with pytest.raises(DuplicateKey, match=r"^2 messages to topic 't' were not produced; the first: a message has"):
            async with client.producer("t") as producer:
                receipts = [await producer.send(b"v", unique_key="a") for _ in range(4)]
                with pytest.raises(DuplicateKey):
                    await receipts[2]
        async with client.producer("t") as producer:
            receipt = await producer.send(b"v", unique_key="a")
            with pytest.raises(DuplicateKey):
                await producer.flush()
            with pytest.raises(DuplicateKey):
                await receipt

    with_client(body)


def test_conflict_policies_never_share_a_batch(with_client: Any) -> None:
    async def body(server: FakeServer, client: Client) -> None:
        async with client.producer("t") as producer:
            await producer.send_many(
                [
                    b"plain",
                    {"value": b"reject", "unique_key": "a"},
                    {"value": b"replace", "unique_key": "b", "on_conflict": "replace"},
                    {"value": b"ignore", "unique_key": "c", "on_conflict": "ignore", "ttl": "1m"},
                    {"value": b"ttl", "ttl": 90},
                    {"value": b"late", "unique_key": "d", "delay": 5},
                    {"value": b"reject too", "unique_key": "e"},
                ]
            )
        found = {}
        for request in server.produced:
            batch = Batch.parse(request.batch)
            keys = batch.bytes_column(Column.UNIQUE_KEY) or [None] * batch.count
            ttls = batch.int_column(Column.TTL_MS) or [None] * batch.count
            for value, *cells in zip(batch.values(), keys, ttls, strict=True):
                found[value] = (request.on_conflict, *cells, request.sequence)
        assert {value: cells[:3] for value, cells in found.items()} == {
            b"plain": (0, None, None),
            b"reject": (0, b"a", None),
            b"reject too": (0, b"e", None),
            b"replace": (1, b"b", None),
            b"ignore": (2, b"c", 60_000),
            b"ttl": (0, None, 90_000),
            b"late": (0, b"d", None),
        }
        assert len({cells[3] for cells in found.values()}) == 6
        assert found[b"reject"][3] == found[b"reject too"][3]

    with_client(body)


def test_a_unique_key_chooses_among_the_initial_partitions(with_client: Any) -> None:
    async def body(server: FakeServer, client: Client) -> None:
        server.topics["t"] = server.topics["t"]._replace(initial_partitions=3)
        async with client.producer("t") as producer:
            for number in range(50):
                name = f"key{number}"
                wanted = partition_for(name.encode(), 3)
                for key, unique_key in ((name, name), (name, "i"), (None, name)):
                    assert (await producer.send(b"v", unique_key=unique_key, key=key)).partition == wanted
                with pytest.raises(InvalidRequest, match=f"the key routes the message to {wanted}, not 7"):
                    await producer.send(b"v", unique_key="i", key=name, partition=7)
                await producer.send(b"v", unique_key=name, partition=wanted, on_conflict="ignore")
                with pytest.raises(InvalidRequest, match=f"routes the message to {wanted}, not 7"):
                    await producer.send(b"v", unique_key=name, partition=7)
        for key, unique_key in (("key7", "key7"), ("key7", "i"), (None, "key7")):
            record = await client.messages("t").get(unique_key=unique_key, key=key)
            assert record.key == (key and key.encode()) and record.partition == partition_for(b"key7", 3)

    with_client(body, partitions=8)


def test_keyed_unique_keys_are_sent_in_separate_batches(with_client: Any) -> None:
    async def body(server: FakeServer, client: Client) -> None:
        async with client.producer("t") as producer:
            pairs = [{"value": b"v", "unique_key": "i", "key": key} for key in ("ada", "bob")]
            others = [{"value": b"v", "unique_key": "k", "key": "k"}, {"value": b"v", "unique_key": "k"}]
            await (await producer.send_many([*pairs, *others]))
        sent = [Batch.parse(request.batch).bytes_column(Column.KEY) for request in server.produced]
        assert sorted(sent, key=repr) == sorted([[b"ada", b"bob"], [b"k", None]], key=repr)
        with pytest.raises(DuplicateKey):
            await client.produce("t", b"v", unique_key="i", key="ada")

    with_client(body)


def test_options_of_send_many_hold_for_its_values(with_client: Any) -> None:
    async def body(server: FakeServer, client: Client) -> None:
        async with client.producer("t") as producer:
            await (await producer.send_many([b"a", b"b"], ttl="1m"))
            receipts = await producer.send_many([b"a", b"b"], unique_key="u")
            with pytest.raises(DuplicateKey):
                await receipts
            with pytest.raises(InvalidRequest, match="message 0 of send_many: on_conflict: it needs"):
                await producer.send_many([b"a"], on_conflict="replace")
            # `on_conflict` applies to messages with a unique key. A mapping can name its own key.
            await (await producer.send_many([{"value": b"c", "unique_key": "u"}], on_conflict="replace"))
        assert [row.ttl_ms for row in server.stored["t", 0]] == [60_000, 60_000, None]

    with_client(body)


def test_a_lost_answer_about_a_unique_key_leaves_it_open(with_client: Any) -> None:
    async def body(server: FakeServer, client: Client) -> None:
        def store_and_cut(connection: Any, frame: Any) -> None:
            server.do_produce(connection, frame)
            connection.cut()

        server.script[Type.PRODUCE] += [store_and_cut] * 1000
        # The error depends on the state of the last attempt at the timeout.
        with pytest.raises((ConnectionLost, TimedOut), match="outcome is unknown"):
            await client.produce("t", b"a", unique_key="v")

    with_client(body, delivery_timeout_s=0.3)
