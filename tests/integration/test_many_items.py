"""Requests with many items are handled in parts and get one reply."""

from __future__ import annotations

from typing import Any

import pytest

from sandq.model import offsets
from sandq.model.batch import Column, encode
from sandq.node.running import Serving
from sandq.partition import commands as c
from sandq.protocol.frames import Type
from sandq.server.handlers.consume import PART_WORK
from tests.integration.conftest import Dial
from tests.support.nodes.raw_client import RawClient, values_of


async def leased(client: RawClient) -> list[Any]:
    await client.create()
    await client.produce(b"a", b"b", b"c")
    await client.subscribe(number=1)
    pushed = await client.push()
    assert values_of(pushed) == [b"a", b"b", b"c"]
    return pushed


@pytest.fixture
def applied(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Items of each settling command, in order."""
    items: list[int] = []
    encoded = c.Entry.encode

    def noted(self: c.Entry) -> bytes:
        items.extend(len(each.items) for each in self.commands if isinstance(each, (c.Ack, c.Nack, c.Extend)))
        return encoded(self)

    monkeypatch.setattr(c.Entry, "encode", noted)
    return items


async def test_an_ack_of_many_items_is_several(client: RawClient, applied: list[int]) -> None:
    _, _, group, partition, token, *_ = await leased(client)
    many = 3 * PART_WORK
    items = [[token + 1 + number, None] for number in range(many)]
    items[many // 2] = [token, None]
    answer = await client.call(Type.ACK, group, partition, items)
    assert answer[0] == Type.REPLY and len(answer[2]) == many
    assert [at for at, result in enumerate(answer[2]) if result is None] == [many // 2]
    assert sum(applied) == many and max(applied) <= PART_WORK
    assert (await client.call(Type.GET, "t", 0, [0, offsets.FIRST]))[0] == Type.ERROR


async def test_ranges_count_as_items(client: RawClient, applied: list[int]) -> None:
    _, _, group, partition, token, *_ = await leased(client)
    what = [[(number << 80).to_bytes(16, "big"), 1] for number in range(PART_WORK - 10)]
    answer = await client.call(Type.NACK, group, partition, [[token + n, what, None, None] for n in range(1, 4)])
    assert answer[0] == Type.REPLY and len(answer[2]) == 3
    assert applied == [1, 1, 1]


async def test_invalid_item_in_one_part_rejects_the_whole_request(client: RawClient, applied: list[int]) -> None:
    _, _, group, partition, token, *_ = await leased(client)
    items: list[Any] = [[token, 30_000] for _ in range(2 * PART_WORK)]
    items[PART_WORK + 4] = [token, "soon"]
    answer = await client.call(Type.EXTEND, group, partition, items)
    assert answer[2] == "INVALID" and "item 5" in answer[3] and f"counted from {PART_WORK + 1}" in answer[3]
    assert applied == []
    assert (await client.call(Type.EXTEND, group, partition, items[: PART_WORK + 4]))[0] == Type.REPLY


async def test_batch_of_many_messages_keeps_its_order(client: RawClient) -> None:
    await client.create()
    many = encode({Column.VALUE: [b"x"] * 60_000})
    small = encode({Column.VALUE: [b"y"]})
    for number, batch in enumerate([small, many, small], 500):
        await client.send(Type.PRODUCE, number, "t", 0, 0, 0, 0, 0, batch)
    answers = sorted([await client.receive() for _ in range(3)], key=lambda frame: frame[1])
    assert [frame[0] for frame in answers] == 3 * [Type.REPLY]
    firsts = [frame[2] for frame in answers]
    assert firsts == sorted(firsts)
    wrong = await client.call(Type.PRODUCE, "t", 0, 0, 0, 0, 0, many[:-1] + b"!")
    assert wrong[2] == "INVALID"
    assert (await client.call(Type.PRODUCE, "nowhere", 0, 0, 0, 0, 0, many))[2] == "UNKNOWN_TOPIC"


async def test_other_clients_are_served_while_a_large_frame_is_decoded(node: Serving, dial: Dial) -> None:
    large, other = await dial(node), await dial(node)
    await large.send(Type.METADATA, 900, [f"{number}-{'x' * 40}" for number in range(60_000)])
    for _ in range(20):
        assert (await other.call(Type.PING))[0] == Type.REPLY
    assert (await large.receive())[:3] == [Type.ERROR, 900, "UNKNOWN_TOPIC"]
