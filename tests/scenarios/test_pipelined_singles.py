"""Many requests in one piece: each has its own answer, and they take effect in the order in which they were sent."""

from __future__ import annotations

import struct
from typing import Any

import msgpack

from sandq.model import offsets
from sandq.model.batch import Batch, Column, encode
from sandq.node import Serving
from sandq.protocol.frames import Type
from tests.scenarios.conftest import Dial
from tests.scenarios.raw_client import Frame, RawClient


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


async def test_what_comes_between_is_answered_where_it_stands(client: RawClient) -> None:
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


async def test_whoever_leaves_at_once_has_stored_all_or_nothing_of_what_was_read(
    node: Serving, client: RawClient, dial: Dial
) -> None:
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
