"""Quotas limit clients by their frames, and owners of topics by the content of their topics."""

from __future__ import annotations

import secrets
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import msgpack
import pytest
import trio

from sandq.broker.owner_usage import NOTHING
from sandq.model.batch import Column, encode
from sandq.model.caller import NODE
from sandq.model.principals import token_hash, token_text
from sandq.node import run_node
from sandq.node.running import Serving
from sandq.protocol.frames import Type
from sandq.protocol.requests_access import IdentityPut
from tests.support.nodes.raw_client import Frame, RawClient, values_of
from tests.support.nodes.small_node import small_config
from tests.support.waiting import until_holds

pytestmark = pytest.mark.usefixtures("node_time")


@pytest.fixture
async def strict(tmp_path: Path) -> AsyncIterator[Serving]:
    async with run_node(small_config(tmp_path, SECURITY__AUTHENTICATION="require")) as serving:
        yield serving


async def give(node: Serving, name: str, *grants: str, **quota: int) -> str:
    text = token_text(secrets.token_bytes(32))
    fields = {"grants": list(grants), "secret_hash": token_hash(text), "quota": quota}
    await node.identities.put(IdentityPut(f"token:{name}", True, fields), NODE)
    return text


Greet = Callable[[Serving, str], Awaitable[tuple[RawClient, Frame]]]


@pytest.fixture
async def greet() -> AsyncIterator[Greet]:
    """Open a connection with a token until the end of the test. Return it and the reply to its HELLO."""
    made: list[RawClient] = []

    async def connect(node: Serving, token: str) -> tuple[RawClient, Frame]:
        raw = await RawClient.connect(node.client_port, hello=False)
        made.append(raw)
        return raw, await raw.call(Type.HELLO, 2, "raw", {"token": token})

    yield connect
    for raw in made:
        await trio.aclose_forcefully(raw.stream)


def refusal(frame: Frame) -> tuple[str, bool]:
    assert frame[0] == Type.ERROR and frame[2] == "QUOTA", frame
    return frame[5]["quota"], frame[4]


async def test_connections_are_bounded_and_come_free(strict: Serving, greet: Greet) -> None:
    token = await give(strict, "app", "admin", connections=1)
    first, _ = await greet(strict, token)
    _, answer = await greet(strict, token)
    assert refusal(answer) == ("connections", True)
    await trio.aclose_forcefully(first.stream)
    await until_holds(lambda: not strict.quotas.meters["token:app"].connections)
    _, answer = await greet(strict, token)
    assert answer[0] == Type.REPLY


async def test_requests_beyond_the_quota_are_refused_and_others_are_not(strict: Serving, greet: Greet) -> None:
    raw, _ = await greet(strict, await give(strict, "app", "admin", requests_per_s=3))
    other, _ = await greet(strict, await give(strict, "other", "admin"))
    await other.create("t")
    answers = [await raw.produce(b"x") for _ in range(6)]
    refused = [answer for answer in answers if answer[0] == Type.ERROR]
    assert refused and refusal(refused[0]) == ("requests_per_s", True)
    assert refused[0][5]["retry_after_ms"] > 0
    for _ in range(6):
        assert (await other.produce(b"x"))[0] == Type.REPLY
        assert (await raw.call(Type.PING))[0] == Type.REPLY


async def test_requests_that_come_together_are_held_to_the_quota_one_by_one(strict: Serving, greet: Greet) -> None:
    other, _ = await greet(strict, await give(strict, "other", "admin"))
    await other.create("t")
    raw, _ = await greet(strict, await give(strict, "app", "admin", requests_per_s=5))
    batch = encode({Column.VALUE: [b"x"]})
    bodies = [msgpack.packb((Type.PRODUCE, 100 + at, "t", 0, 0, 0, 0, 0, batch)) for at in range(50)]
    await raw.send_bytes(b"".join([struct.pack(">I", len(body)) + body for body in bodies]))
    answers = [await raw.receive() for _ in bodies]
    refused = [answer for answer in answers if answer[0] == Type.ERROR]
    assert 40 <= len(refused) <= 45
    assert all(answer[5]["retry_after_ms"] <= 1000 for answer in refused)
    wide, _ = await greet(strict, await give(strict, "wide", "admin", bytes_per_s=100))
    packer = msgpack.Packer()
    body = packer.pack_array_header(3) + msgpack.packb(int(Type.METADATA)) + msgpack.packb(7) + b"\x91" * 900 + b"\x01"
    await wide.send_bytes(struct.pack(">I", len(body)) + body)
    assert (await wide.receive())[:3] == [Type.ERROR, 7, "INVALID"]


async def test_a_quota_holds_for_connections_that_are_there_when_it_is_set(strict: Serving, greet: Greet) -> None:
    raw, _ = await greet(strict, await give(strict, "app", "admin", topics=5))
    await raw.create("t")
    change = IdentityPut("token:app", False, {"quota": {"bytes_per_s": 100}})
    await strict.identities.put(change, NODE)
    await until_holds(lambda: strict.broker.metadata.identities["token:app"].quota.get("bytes_per_s") == 100)
    answers = [await raw.produce(b"x" * 1000) for _ in range(2)]
    assert answers[0][0] == Type.REPLY and refusal(answers[1]) == ("bytes_per_s", True)


async def test_connections_that_are_there_when_they_are_bounded_count(strict: Serving, greet: Greet) -> None:
    token = await give(strict, "app", "admin")
    first, _ = await greet(strict, token)
    second, _ = await greet(strict, token)
    await strict.identities.put(IdentityPut("token:app", False, {"quota": {"connections": 2}}), NODE)
    await until_holds(lambda: getattr(strict.quotas.meters.get("token:app"), "connections", 0) == 2)
    assert (await first.call(Type.PING))[0] == Type.REPLY
    _, answer = await greet(strict, token)
    assert refusal(answer) == ("connections", True)
    for raw in (first, second):
        await trio.aclose_forcefully(raw.stream)
    await until_holds(lambda: not strict.quotas.meters["token:app"].connections)


async def test_topics_and_partitions_are_bounded(strict: Serving, greet: Greet) -> None:
    raw, _ = await greet(strict, await give(strict, "app", "admin", topics=2, partitions=3))
    assert (await raw.create("a"))[2]["owner"] == "token:app"
    many = await raw.call(Type.TOPIC_CREATE, "b", "timer", 3, 1, {})
    assert refusal(many) == ("partitions", False)
    await raw.create("b")
    assert refusal(await raw.create("c")) == ("topics", False)
    await raw.call(Type.TOPIC_DELETE, "b")
    assert (await raw.create("c"))[0] == Type.REPLY


async def test_max_delay_quota_is_enforced(strict: Serving, greet: Greet) -> None:
    raw, _ = await greet(strict, await give(strict, "app", "admin", max_delay_ms=60_000))
    await raw.create("t")
    now_ms = strict.broker.clock.now_ms()
    far = await raw.produce(b"x", deliver_ms=[now_ms + 120_000])
    assert refusal(far) == ("max_delay_ms", False)
    near = await raw.produce(b"x", deliver_ms=[now_ms + 30_000])
    assert near[0] == Type.REPLY
    moved = await raw.call(Type.MOVE, "t", 0, [[bytes(16), 120_000, True]], b"")
    assert refusal(moved) == ("max_delay_ms", False)


async def test_stored_content_of_owner_is_bounded(strict: Serving, greet: Greet) -> None:
    token = await give(strict, "app", "admin", stored_bytes=6000, pending_messages=5)
    raw, _ = await greet(strict, token)
    other, _ = await greet(strict, await give(strict, "other", "admin"))
    await raw.create("t")
    await other.create("free")
    at_ms = strict.broker.clock.now_ms() + 3_600_000
    assert (await other.produce(*[b"v"] * 5, deliver_ms=[at_ms] * 5))[0] == Type.REPLY
    usage = strict.usage
    await until_holds(lambda: usage.held.get("token:app", NOTHING).pending_messages == 5)
    assert refusal(await other.produce(b"v", deliver_ms=[at_ms])) == ("pending_messages", True)
    assert (await other.produce(b"v" * 5000))[0] == Type.REPLY
    await until_holds(lambda: usage.held["token:app"].stored_bytes >= 5000)
    refused = await other.produce(b"v" * 2000)
    assert refusal(refused) == ("stored_bytes", True) and refused[5]["retry_after_ms"] == 1000
    assert (await other.produce(b"v" * 5000, topic="free", deliver_ms=[at_ms]))[0] == Type.REPLY
    await raw.call(Type.TOPIC_DELETE, "t")
    await until_holds(lambda: "token:app" not in usage.held)


async def full(node: Serving, greet: Greet, **quota: int) -> tuple[RawClient, RawClient]:
    """Return two connections: of the owner of topic "t", whose quota is used up, and of an identity without a quota,
    which holds a lease there and has one message that is not due."""
    raw, _ = await greet(node, await give(node, "app", "admin", stored_bytes=4000, pending_messages=2))
    other, _ = await greet(node, await give(node, "other", "admin"))
    await raw.create("t", max_message_bytes=2048, max_delay="1h")
    await other.create("free")
    assert (await other.produce(b"v"))[0] == Type.REPLY
    assert (await other.subscribe())[0] == Type.REPLY
    assert (await other.produce(b"a", b"b", deliver_ms=[node.broker.clock.now_ms() + 1_000_000] * 2))[0] == Type.REPLY
    await until_holds(lambda: node.usage.held.get("token:app", NOTHING).pending_messages == 2)
    change = {"stored_bytes": None, "pending_messages": None, **quota}
    await node.identities.put(IdentityPut("token:app", False, {"quota": change}), NODE)
    await until_holds(lambda: _quota_of(node) == quota)
    return raw, other


def _quota_of(node: Serving) -> dict[str, int]:
    """Return the current quota of the owner's topics."""
    known = node.usage._quotas.get("token:app")
    return {} if known is None else known.record()


async def test_every_request_that_stores_is_held_to_the_stored_bytes_of_the_owner(
    strict: Serving, greet: Greet
) -> None:
    _, other = await full(strict, greet, stored_bytes=1)
    pushed = await other.push()
    group, partition, token = pushed[2:5]
    id_ = (await other.call(Type.LIST, "t", 0, "delayed", 0, 2**48 - 1, None, 10, None, False))[2][0]["id"]
    batch = encode({Column.VALUE: [b"x"]})
    headers = {"headers": b"\x81\xa1a\x01"}
    sent = [[None, None, False, {"value": b"x"}]]
    for refused in (
        await other.produce(b"x"),
        await other.call(Type.ACK_THEN, group, partition, token, None, sent),
        await other.call(Type.MOVE, "t", 0, [[[0, id_], None, False, None, {"value": 3}]], b"new"),
        await other.call(Type.NACK, group, partition, [[token, None, None, None, True, headers]]),
        await other.call(Type.SCHEDULE_PUT, "t", 0, [["s", None, {"every_ms": 60_000}, batch, None]]),
        await other.call(Type.SCHEDULE_CHANGE, "t", 0, "trigger", ["s"], bytes(16)),
        await other.call(Type.RESTORE_ROWS, "t", 0, "r", 0, b"rows"),
    ):
        assert refusal(refused) == ("stored_bytes", True)
    elsewhere = [["free", None, False, {"value": b"x"}]]
    assert (await other.call(Type.ACK_THEN, group, partition, token, None, elsewhere))[0] == Type.REPLY


async def test_an_ack_that_sends_to_a_topic_of_an_owner_counts_there(strict: Serving, greet: Greet) -> None:
    _, other = await full(strict, greet, stored_bytes=1)
    await other.produce(b"x", topic="free")
    assert (await other.call(Type.SUBSCRIBE, 2, "free", "g", "c", 10, None, "earliest", []))[0] == Type.REPLY
    pushed = next(frame for frame in [await other.push(), await other.push()] if b"x" in values_of(frame))
    sent = [["t", None, False, {"value": b"x"}]]
    assert refusal(await other.call(Type.ACK_THEN, *pushed[2:5], None, sent)) == ("stored_bytes", True)
    assert (await other.ack(pushed))[0] == Type.REPLY


async def test_settling_without_storing_is_never_refused_by_a_full_quota(strict: Serving, greet: Greet) -> None:
    _, other = await full(strict, greet, stored_bytes=1, pending_messages=0)
    pushed = await other.push()
    again = [[pushed[4], None, 0, "again", True]]
    assert (await other.call(Type.NACK, pushed[2], pushed[3], again))[0] == Type.REPLY
    assert (await other.ack(await other.push()))[0] == Type.REPLY


async def test_messages_that_are_not_due_are_bounded_on_every_path(strict: Serving, greet: Greet) -> None:
    _, other = await full(strict, greet, pending_messages=1)
    pushed = await other.push()
    group, partition, token = pushed[2:5]
    rows = (await other.call(Type.LIST, "t", 0, "delayed", 0, 2**48 - 1, None, 10, None, False))[2]
    target = [0, rows[0]["id"]]
    sent = [[None, 60_000, True, {"value": b"x"}]]
    later = {"from_ms": 0, "until_ms": 2**48 - 1, "dry_run": False, "shift_ms": 1000}
    for refused in (
        await other.produce(b"x", deliver_ms=[strict.broker.clock.now_ms() + 60_000]),
        await other.call(Type.ACK_THEN, group, partition, token, None, sent),
        await other.call(Type.MOVE, "t", 0, [[target, 60_000, True]], b""),
        await other.call(Type.JOB_START, "t", 0, bytes(16), "move", later),
        await other.call(
            Type.SCHEDULE_PUT, "t", 0, [["s", None, {"every_ms": 60_000}, encode({Column.VALUE: [b"x"]}), None]]
        ),
    ):
        assert refusal(refused) == ("pending_messages", True)
    assert (await other.produce(b"x"))[0] == Type.REPLY, "the message must be due immediately"
    assert (await other.call(Type.MOVE, "t", 0, [[target, 0, True]], b""))[2] is not None, (
        "a pending message may be moved to now at the limit"
    )
    assert (await other.ack(pushed))[0] == Type.REPLY


async def test_an_ack_that_sends_is_held_to_the_limits_of_each_topic(strict: Serving, greet: Greet) -> None:
    _, other = await full(strict, greet)
    pushed = await other.push()
    ids = [*pushed[2:5], None]
    large = await other.call(Type.ACK_THEN, *ids, [[None, None, False, {"value": b"y" * 3000}]])
    assert large[2] == "TOO_LARGE" and "max_message_bytes" in large[3]
    far = await other.call(Type.ACK_THEN, *ids, [["t", 7_200_000, True, {"value": b"y"}]])
    assert far[2] == "INVALID_TIME" and "max_delay" in far[3]
    assert (await other.call(Type.ACK_THEN, *ids, [["free", 7_200_000, True, {"value": b"y" * 3000}]]))[0] == Type.REPLY


async def test_quotas_count_decompressed_bytes(strict: Serving, greet: Greet) -> None:
    raw, _ = await greet(strict, await give(strict, "app", "admin", bytes_per_s=20_000, stored_bytes=50_000))
    await raw.create("t")
    packed = encode({Column.VALUE: [b"v" * 40_000]}, compress=True)
    assert len(packed) < 200
    assert (await raw.produce_batch(packed))[0] == Type.REPLY
    assert refusal(await raw.produce_batch(packed)) == ("bytes_per_s", True)
    other, _ = await greet(strict, await give(strict, "other", "admin"))
    large = encode({Column.VALUE: [b"v" * 60_000]}, compress=True)
    await until_holds(lambda: _quota_of(strict) != {})
    assert refusal(await other.produce_batch(large)) == ("stored_bytes", True)


async def test_batch_that_claims_too_much_is_refused_before_its_claim_is_counted(strict: Serving, greet: Greet) -> None:
    raw, _ = await greet(strict, await give(strict, "app", "admin", bytes_per_s=20_000, pending_messages=5))
    await raw.create("t")
    packed = encode({Column.VALUE: [b""] * 65_536, Column.TTL_MS: [10**9] * 65_536}, compress=True)
    assert (await raw.produce_batch(packed))[2] == "TOO_LARGE"
    assert strict.quotas.meters["token:app"].bytes < 1000
    assert (await raw.produce(b"v"))[0] == Type.REPLY
