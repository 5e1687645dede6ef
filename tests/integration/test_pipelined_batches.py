"""Many requests in one packet: each gets its own reply, and they take effect in order."""

from __future__ import annotations

import random
import struct
import time
from collections.abc import Callable
from typing import Any

import msgpack
import pytest

from sandq.model import offsets
from sandq.model.batch import Batch, Column, encode
from sandq.model.partitioning import partition_for
from sandq.node.running import Serving
from sandq.protocol.frames import Type
from tests.integration.conftest import Dial
from tests.support.nodes.raw_client import Frame, RawClient


def packed(*frames: list[Any]) -> bytes:
    bodies = [msgpack.packb(frame) for frame in frames]
    return b"".join([struct.pack(">I", len(body)) + body for body in bodies])


def single(number: int, value: bytes, topic: str = "t", partition: int = 0, **more: Any) -> list[Any]:
    columns = {Column.VALUE: [value], **{Column[name.upper()]: [cell] for name, cell in more.items()}}
    return [int(Type.PRODUCE), number, topic, partition, 0, 0, 0, 0, encode(columns)]


async def answers(client: RawClient, count: int) -> dict[int, Frame]:
    found = [await client.receive() for _ in range(count)]
    assert len({frame[1] for frame in found}) == count
    return {frame[1]: frame for frame in found}


async def test_each_of_many_has_its_offset_in_the_order_in_which_it_was_sent(client: RawClient) -> None:
    await client.create()
    await client.send_bytes(packed(*[single(number, b"%d" % number) for number in range(100, 400)]))
    found = await answers(client, 300)
    places = [found[number][2] for number in range(100, 400)]
    assert all(count == 1 for _, count in places)
    assert places == sorted(places)
    await client.subscribe(credit=1000)
    values: dict[bytes, bytes] = {}
    while len(values) < 300:
        pushed = await client.push()
        batch = Batch.parse(pushed[-1])
        named = offsets.run(pushed[7], batch.count)
        values.update(zip(named, [value or b"" for value in batch.values()], strict=True))
    assert {found[number][2][0]: b"%d" % number for number in range(100, 400)} == values


async def test_invalid_requests_between_batches_are_answered_individually(client: RawClient) -> None:
    await client.create()
    too_early = single(104, b"e", deliver_ms=1000)
    damaged = single(105, b"f")
    damaged[8] = damaged[8][:-1] + b"\1"
    await client.send_bytes(
        packed(
            single(101, b"a"),
            single(102, b"b", topic="nowhere"),
            single(103, b"c", partition=9),
            too_early,
            damaged,
            [int(Type.PING), 106],
            single(107, b"g"),
            single(108, b"h"),
            [99, 109],
            single(110, b"i"),
        )
    )
    found = await answers(client, 10)
    codes = {number: frame[2] if frame[0] == 255 else "ok" for number, frame in found.items()}
    refused = {number for number, code in codes.items() if code != "ok"}
    assert refused == {102, 103, 104, 105, 109}
    assert codes[102] == "UNKNOWN_TOPIC"
    offset_of = {number: found[number][2][0] for number in (101, 107, 108, 110)}
    assert list(offset_of.values()) == sorted(offset_of.values())


async def test_early_close_stores_all_or_nothing_of_a_request(node: Serving, client: RawClient, dial: Dial) -> None:
    await client.create()
    leaving = await dial(node)
    await leaving.send_bytes(packed(*[single(number, b"%d" % number) for number in range(100, 200)]))
    await leaving.stream.aclose()
    await client.produce(b"last")
    await client.subscribe(credit=1000)
    values: list[bytes | None] = []
    while b"last" not in values:
        values += Batch.parse((await client.push())[-1]).values()
    assert len(values) in (1, 101)


async def drained(client: RawClient, topic: str, count: int, number: int) -> set[tuple[Any, ...]]:
    """Return value, key and headers of this many messages, as a consumer gets them."""
    await client.call(Type.SUBSCRIBE, number, topic, "g", "c", 1000, None, "earliest", [])
    found: set[tuple[Any, ...]] = set()
    while len(found) < count:
        pushed = await client.push()
        batch = Batch.parse(pushed[-1])
        cells = [batch.bytes_column(column) or [None] * batch.count for column in (Column.KEY, Column.HEADERS)]
        found |= set(zip(batch.values(), *cells, strict=True))
    return found


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.long) for seed in range(1, 5))])
async def test_batches_sent_together_have_the_same_result_as_one_by_one(client: RawClient, seed: int) -> None:
    """Send small batches of all kinds for two partitions. Some are refused completely or in part. One topic gets them
    in one packet, the other topic one by one."""
    rng = random.Random(seed)
    now_ms = int(time.time() * 1000)
    kinds: list[Callable[[int], tuple[int, Any]]] = [
        lambda n: (rng.randrange(2), {Column.VALUE: [b"%d" % n]}),
        lambda n: (rng.randrange(2), {Column.VALUE: [b"%d" % n, b"%d+" % n]}),
        lambda n: (rng.randrange(2), {Column.VALUE: [b"%d" % n], Column.KEY: [b"k%d" % n], Column.HEADERS: [b"\x80"]}),
        lambda n: (rng.randrange(2), {Column.VALUE: [b"%d" % n], Column.DELIVER_MS: [now_ms + rng.randrange(400)]}),
        lambda n: (rng.randrange(2), {Column.VALUE: [b"%d" % n], Column.TTL_MS: [rng.choice([0, 600_000])]}),
        lambda n: (rng.randrange(2), {Column.VALUE: [b"%d" % n], Column.DELIVER_MS: [rng.choice([7, 0])]}),
        lambda n: unique(n, rng.choice([b"u1", b"u2", b"u3"])),
        lambda n: (rng.randrange(3), {Column.VALUE: [None if n % 2 else b"%d" % n]}),
    ]

    def unique(n: int, key: bytes) -> tuple[int, Any]:
        return partition_for(key, 2), {
            Column.VALUE: [b"%d" % n, b"%d+" % n],
            Column.UNIQUE_KEY: [key, None],
            Column.DELIVER_MS: [now_ms + 3_600_000, None],
        }

    asked = [(n, *rng.choice(kinds)(n)) for n in range(100, 260)]
    outcomes: list[dict[int, Any]] = []
    for topic in ("together", "alone"):
        await client.call(Type.TOPIC_CREATE, topic, "timer", 2, 1, {})
        frames = [
            [int(Type.PRODUCE), n, topic, partition, 0, 0, 0, 0, encode(columns)] for n, partition, columns in asked
        ]
        if topic == "together":
            await client.send_bytes(packed(*frames))
            found = await answers(client, len(frames))
        else:
            found = {}
            for frame in frames:
                await client.send_bytes(packed(frame))
                found |= await answers(client, 1)
        outcomes.append(
            {n: frame[2] if frame[0] == 255 else (_count(frame[2]), frame[3]) for n, frame in found.items()}
        )
    assert outcomes[0] == outcomes[1], f"seed {seed}"
    assert len({repr(outcome) for outcome in outcomes[0].values()}) >= 5, "every outcome must occur"
    refused = {n for n, outcome in outcomes[0].items() if isinstance(outcome, str)}
    due = sum(
        len(columns[Column.VALUE]) - (Column.UNIQUE_KEY in columns) for n, _, columns in asked if n not in refused
    )
    assert await drained(client, "together", due, 1) == await drained(client, "alone", due, 2), f"seed {seed}"


def _count(stored: Any) -> int:
    """Return the messages that a reply names."""
    return len(stored) // offsets.OFFSET_BYTES if isinstance(stored, bytes) else int(stored[1])


async def test_conditioned_writes_of_a_key_in_one_piece_see_each_other(client: RawClient) -> None:
    await client.call(Type.TOPIC_CREATE, "t", "compacted", 1, 1, {})

    def put(number: int, key: bytes, value: bytes | None, **more: Any) -> list[Any]:
        return single(number, value, key=key, **more)  # type: ignore[arg-type]

    await client.send_bytes(
        packed(
            put(101, b"a", b"1"),
            put(102, b"b", b"1", expected_version=b""),
            put(103, b"b", b"2", expected_version=b""),
            put(104, b"a", None),
            put(105, b"a", b"3", expected_version=b""),
        )
    )
    found = await answers(client, 5)
    assert [found[number][3] for number in range(101, 106)] == [None, None, [[0, "changed"]], None, None]
    assert found[103][2] == found[102][2], "the current version"
