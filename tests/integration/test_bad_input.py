"""Replies to wrong and hostile input, which must not affect other clients."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import msgpack
import trio
import trio.testing

from sandq.model import offsets
from sandq.model.batch import Column, encode
from sandq.node.running import Serving
from sandq.protocol.frames import Type
from tests.integration.conftest import Dial
from tests.support.nodes.raw_client import Frame, RawClient, values_of
from tests.support.nodes.small_node import small_config
from tests.support.nodes.with_http import run_node
from tests.support.waiting import PATIENCE_S, until_holds


def code(frame: Frame) -> str:
    assert frame[0] == Type.ERROR, frame
    found: str = frame[2]
    return found


def message(frame: Frame) -> str:
    found: str = frame[3]
    return found


async def still_fine(node: Serving, dial: Dial) -> None:
    assert (await (await dial(node)).call(Type.PING))[0] == 0


# -- topics and messages ------------------------------------------------------------------------------------------


async def test_unknown_topic_and_partition(client: RawClient) -> None:
    answer = await client.produce(b"m")
    assert (code(answer), message(answer)) == ("UNKNOWN_TOPIC", "there is no topic 't'")
    await client.create()
    answer = await client.produce(b"m", partition=3)
    assert (code(answer), message(answer)) == ("UNKNOWN_PARTITION", "topic 't' has no partition 3; it has 1")
    assert code(await client.call(Type.TOPIC_DELETE, "nobody")) == "UNKNOWN_TOPIC"
    assert code(await client.call(Type.METADATA, ["nobody"])) == "UNKNOWN_TOPIC"


async def test_bad_topic_name(client: RawClient) -> None:
    for name in ["", ".hidden", "a b", "ä", "x" * 250, "../up", "-dash"]:
        assert code(await client.create(name)) == "INVALID_NAME", name


async def test_topic_twice_and_bad_shapes(client: RawClient) -> None:
    assert (await client.create())[0] == 0
    assert code(await client.create()) == "TOPIC_EXISTS"
    assert code(await client.call(Type.TOPIC_CREATE, "u", "timer", 0, 1, {})) == "INVALID"
    assert code(await client.call(Type.TOPIC_CREATE, "u", "timer", 5000, 1, {})) == "INVALID"
    assert code(await client.call(Type.TOPIC_CREATE, "u", "heap", 1, 1, {})) == "INVALID"
    refused = await client.call(Type.TOPIC_CREATE, "u", "timer", 1, 2, {})
    assert "2 replicas, and 1 nodes are registered" in message(refused)


async def test_every_mistake_in_settings_is_reported(client: RawClient) -> None:
    refused = await client.create(leese="30s", max_attempts=0, backoff={"first": "-1s"})
    assert code(refused) == "INVALID_SETTING"
    for part in ("leese", "lease", "max_attempts", "backoff.first"):
        assert part in message(refused)


async def test_oversized(client: RawClient) -> None:
    await client.create()
    for name, cells in (("value", b"x" * (8 * 2**20 + 1)), ("key", b"k" * 65_537), ("headers", b"h" * 65_537)):
        columns = {} if name == "value" else {name: [cells]}
        refused = await client.produce(cells if name == "value" else b"m", **columns)
        assert code(refused) == "TOO_LARGE"
        assert name in message(refused)
    assert (await client.produce(b"x" * (8 * 2**20)))[0] == 0


async def test_damaged_and_ignored_columns(client: RawClient) -> None:
    await client.create()
    batch = bytearray(encode({Column.VALUE: [b"m"]}))
    batch[-1] ^= 1
    assert code(await client.produce_batch(bytes(batch))) == "INVALID"
    assert code(await client.produce_batch(b"")) == "INVALID"
    refused = await client.produce(b"m", tenant=[b"acme"])
    assert (code(refused), "tenant" in message(refused)) == ("INVALID", True)


async def test_times(node: Serving, client: RawClient) -> None:
    await client.create()
    now_ms = node.broker.clock.now_ms()
    past = await client.produce(b"past", deliver_ms=[now_ms - 86_400_000])
    assert offsets.deliver_ms(past[2][0]) >= now_ms, "a past time means now"
    ten_years_ms = 3660 * 86_400_000
    far = await client.produce(b"far", deliver_ms=[now_ms + ten_years_ms - 1000])
    assert offsets.deliver_ms(far[2]) == now_ms + ten_years_ms - 1000
    too_far = await client.produce(b"far", deliver_ms=[now_ms + ten_years_ms + 3_600_000])
    assert (code(too_far), "limits.delay_days" in message(too_far)) == ("INVALID_TIME", True)
    seconds = await client.produce(b"s", deliver_ms=[now_ms // 1000])
    assert (code(seconds), "looks like seconds" in message(seconds)) == ("INVALID_TIME", True)
    mixed = await client.produce(b"a", b"b", deliver_ms=[0, now_ms // 1000])
    assert "message 1" in message(mixed)
    batch = encode({Column.VALUE: [b"m"], Column.DELIVER_MS: [ten_years_ms]}, relative=True)
    assert (await client.produce_batch(batch))[0] == 0
    for delay_ms in (ten_years_ms + 1, 2**48 - 1):
        batch = encode({Column.VALUE: [b"m"], Column.DELIVER_MS: [delay_ms]}, relative=True)
        assert code(await client.produce_batch(batch)) == "INVALID_TIME"


async def test_leases_of_another_time(client: RawClient) -> None:
    await client.create()
    assert code(await client.call(Type.ACK, 99, 0, [[1, None]])) == "LEASE_LOST"
    group = (await client.call(Type.METADATA, ["t"]))[3][0]["partitions"][0][1]
    assert (await client.call(Type.ACK, group, 0, [[1, None]]))[2] == [[]]
    assert (await client.call(Type.NACK, group, 0, [[1, None, None, None]]))[2] == [[]]
    assert (await client.call(Type.EXTEND, group, 0, [[1, 30_000]]))[2] == [None]
    assert code(await client.call(Type.EXTEND, group, 0, [[1, 1]])) == "INVALID"


async def test_a_token_of_a_deleted_topic_is_foreign_to_the_next_of_its_name(client: RawClient) -> None:
    await client.create()
    await client.produce(b"m")
    await client.subscribe()
    old = await client.push()
    await client.send(Type.TOPIC_DELETE, 999, "t")
    ended = await client.receive()
    assert (ended[1], code(ended)) == (1, "UNKNOWN_TOPIC"), "the subscription must get an error that ends it"
    assert (await client.receive())[:2] == [Type.REPLY, 999]
    await client.create()
    assert code(await client.ack(old)) == "LEASE_LOST"
    assert (await client.call(Type.GROUP_LIST, "t"))[2] == []


async def test_wrong_fields_are_named_and_the_connection_goes_on(client: RawClient) -> None:
    wrong: list[tuple[int, tuple[object, ...]]] = [
        (Type.PRODUCE, ("t", "0", 0, 0, 0, 0, b"")),
        (Type.PRODUCE, ("t",)),
        (Type.ACK, (1, 0, [[1]])),
        (Type.ACK, (1, 0, [[1, [[b"short", 1]]]])),
        (Type.SUBSCRIBE, (1, "t", "g", "c", -1, None, "earliest", [])),
        (Type.SUBSCRIBE, (1, "t", "g", "c", 1, None, "middle", [])),
        (Type.CLUSTER_CLOCK, ("stop",)),
        (Type.CANCEL, ()),
        (200, ()),
    ]
    for kind, fields in wrong:
        assert code(await client.call(kind, *fields)) == "INVALID", (kind, fields)
        assert (await client.call(Type.PING))[0] == 0


async def test_subscriptions_per_connection_are_limited(tmp_path: Path, dial: Dial) -> None:
    async with run_node(small_config(tmp_path, LIMITS__SUBSCRIPTIONS_PER_CONNECTION="3")) as node:
        client = await dial(node)
        await client.create()
        for number in range(1, 4):
            assert (await client.subscribe(number=number, consumer=f"c{number}"))[0] == 0
        assert code(await client.subscribe(number=4, consumer="c4")) == "TOO_LARGE"
        assert (await client.call(Type.UNSUBSCRIBE, 2))[0] == 0
        assert (await client.subscribe(number=4, consumer="c4"))[0] == 0
        assert (await (await dial(node)).subscribe())[0] == 0, "another connection has its own limit"


async def test_bytes_waiting_to_be_stored_are_bounded(node: Serving, client: RawClient) -> None:
    await client.create()
    backlog = node.broker.node_log.backlog
    backlog.bytes += backlog.limit_bytes
    refused = await client.produce(b"m")
    assert (code(refused), refused[4]) == ("OVERLOADED", True)
    backlog.bytes -= backlog.limit_bytes
    assert (await client.produce(b"m"))[0] == 0


async def test_credit_and_consumer_id_of_subscription_are_bounded(tmp_path: Path, dial: Dial) -> None:
    config = small_config(tmp_path, LIMITS__CREDIT_MAX="10", LIMITS__CONSUMER_ID_CHARS="5")
    async with run_node(config) as node:
        client = await dial(node)
        await client.create()
        for more, said in ({"credit": 11}, "at most 10"), ({"consumer": "abcdef"}, "1 to 5 characters"):
            refused = await client.subscribe(**more)  # type: ignore[arg-type]
            assert (code(refused), said in message(refused)) == ("INVALID", True)
        assert (await client.subscribe(credit=10, consumer="abcde"))[0] == 0


async def test_invalid_subscriptions_are_refused(client: RawClient) -> None:
    assert code(await client.subscribe()) == "UNKNOWN_TOPIC"
    await client.create()
    assert code(await client.call(Type.SUBSCRIBE, 1, "t", "bad group", "c", 1, None, "earliest", [])) == "INVALID_NAME"
    assert code(await client.call(Type.SUBSCRIBE, 1, "t", "g", "c", 1, 5, "earliest", [])) == "INVALID"
    assert code(await client.call(Type.UNSUBSCRIBE, 7)) == "NOT_FOUND"
    assert (await client.subscribe())[0] == 0
    assert code(await client.subscribe()) == "CONFLICT"


# -- the connection -----------------------------------------------------------------------------------------------


async def test_half_a_frame_then_nothing(node: Serving, dial: Dial) -> None:
    raw = await dial(node)
    await raw.send_bytes(struct.pack(">I", 1000) + b"half")
    await raw.stream.send_eof()
    assert await raw.rest() == b""
    await still_fine(node, dial)


async def test_garbage_closes_this_connection_only(node: Serving, dial: Dial) -> None:
    for garbage in [
        b"\x00\x00\x00\x05\xff\xff\xff\xff\xff",
        b"\x00\x00\x00\x00",
        struct.pack(">I", 2**31),
        struct.pack(">I", 3) + msgpack.packb({"a": 1}),
        b"\x00\x00\x00\x01\x90",
    ]:
        raw = await dial(node)
        await raw.send_bytes(garbage)
        answer = await raw.receive()
        assert (answer[0], answer[1]) == (Type.ERROR, 0), garbage
        assert answer[2] in ("PROTOCOL", "FRAME_TOO_LARGE"), garbage
        assert await raw.rest() == b""
    await still_fine(node, dial)


async def test_wrong_protocol_version(node: Serving, dial: Dial) -> None:
    raw = await dial(node, hello=False)
    answer = await raw.call(Type.HELLO, 99, "from the future", {})
    assert (code(answer), "99" in message(answer)) == ("WRONG_VERSION", True)
    assert await raw.rest() == b""


async def test_request_before_hello_ends_the_connection(node: Serving, dial: Dial) -> None:
    raw = await dial(node, hello=False)
    assert code(await raw.call(Type.PING)) == "PROTOCOL"
    assert await raw.rest() == b""


async def test_frames_are_not_read_before_the_gate_opens(tmp_path: Path, dial: Dial) -> None:
    arrived, opened = trio.Event(), trio.Event()
    seen: list[Any] = []

    async def gate() -> None:
        arrived.set()
        await opened.wait()

    async def receive(raw: RawClient) -> None:
        seen.append((await raw.receive())[0])

    async with run_node(small_config(tmp_path), gate=gate) as node, trio.open_nursery() as nursery:
        raw = await dial(node, hello=False)
        nursery.start_soon(receive, raw)
        await raw.send(Type.HELLO, 1, 2, "raw", {})
        await arrived.wait()
        await trio.testing.wait_all_tasks_blocked()  # a reply would have arrived by now
        seen.append("opened")
        opened.set()
        await until_holds(lambda: len(seen) == 2)
    assert seen == ["opened", Type.REPLY]


async def test_http_on_the_client_port_is_pointed_to_the_http_port(tmp_path: Path, dial: Dial) -> None:
    async with run_node(small_config(tmp_path, LISTEN__HTTP="127.0.0.1:0")) as node:
        raw = await dial(node, hello=False)
        await raw.send_bytes(b"GET /topics HTTP/1.1\r\nHost: localhost\r\n\r\n")
        answer = (await raw.rest()).decode()
        assert answer.startswith("HTTP/1.1 400 ")
        assert "binary protocol" in answer
        assert f"HTTP belongs to {node.http}" in answer


async def test_client_that_never_reads_stops_only_itself(tmp_path: Path, dial: Dial) -> None:
    limit = 4 * 2**20
    config = small_config(
        tmp_path,
        LIMITS__MESSAGE_BYTES="1048576",
        LIMITS__BATCH_BYTES="2097152",
        LIMITS__IN_FLIGHT_BYTES_PER_CONNECTION=str(limit),
    )
    async with run_node(config) as node:
        deaf = await dial(node)
        await deaf.create()
        await deaf.subscribe(credit=1000)
        other = await dial(node)
        for _ in range(40):
            assert (await other.produce(b"x" * 2**20))[0] == 0
        groups = (await other.call(Type.GROUP_LIST, "t"))[2]
        assert 0 < groups[0]["leased"] < 25, "leased bytes must not exceed the limit of the connection"
        # Once the client reads again, it receives everything.
        got = 0
        while got < 40:
            pushed = await deaf.push()
            got += len(values_of(pushed))
            await deaf.ack(pushed)
            await deaf.send(Type.CREDIT, 0, 1, 1)


async def test_two_clients_that_subscribe_as_one_consumer(node: Serving, client: RawClient, dial: Dial) -> None:
    await client.create()
    await client.subscribe()
    await client.produce(b"first")
    held = await client.push()
    second = await dial(node)
    await second.subscribe()
    again = await second.push()
    assert again[4] == held[4], "held messages must be pushed again to the new subscription, with the same token"
    await client.produce(b"next")
    with trio.fail_after(PATIENCE_S):
        assert values_of(await second.push()) == [b"next"]
