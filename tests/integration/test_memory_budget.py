"""Requests that a node refuses or delays because of its memory: unread replies, watchers, producers."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from sandq.model import offsets
from sandq.model.batch import Column, encode
from sandq.node import run_node
from sandq.node.running import Serving
from sandq.protocol.frames import Type
from tests.integration.conftest import Dial
from tests.support.nodes.small_node import small_config
from tests.support.waiting import until_answer, until_holds

MB = 1 << 20
BATCHES = 8
BATCH_BYTES = 512 << 10
REQUESTS = 40
IN_FLIGHT_BYTES = MB
VISIT_BYTES = 8 * MB
ALL = BATCHES * BATCH_BYTES


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[Serving]:
    config = small_config(tmp_path, LIMITS__IN_FLIGHT_BYTES_PER_CONNECTION=str(IN_FLIGHT_BYTES))
    async with run_node(config) as serving:
        yield serving


@pytest.mark.parametrize("kind", [Type.FETCH, Type.KV_SCAN, Type.KV_GET, Type.KV_WATCH])
async def test_a_client_that_takes_nothing_is_read_no_more_for(node: Serving, dial: Dial, kind: Type) -> None:
    slow, other = await dial(node), await dial(node)
    answers = node.broker.node_log.memory.answers
    topic = "timer" if kind is Type.FETCH else "compacted"
    assert (await other.call(Type.TOPIC_CREATE, "t", topic, 1, 1, {}))[0] == Type.REPLY
    for number in range(BATCHES):
        columns = {Column.VALUE: [bytes(BATCH_BYTES)], Column.KEY: [b"%d" % number]}
        assert (await other.produce_batch(encode(columns)))[0] == Type.REPLY  # type: ignore[arg-type]
    fields: dict[Type, tuple[Any, ...]] = {
        Type.FETCH: (offsets.FIRST, None, 1000, 16 * MB, True),
        Type.KV_SCAN: (False, b"", None, 1000, 8 * MB),
        Type.KV_GET: (False, [b"%d" % number for number in range(BATCHES)]),
        Type.KV_WATCH: (bytes(16), None, True, b"", None, 1000, 8 * MB, 0),
    }
    for number in range(REQUESTS):
        await slow.send(kind, 1000 + number, "t", 0, *fields[kind])
    await until_holds(lambda: answers.bytes > IN_FLIGHT_BYTES)
    held = []
    for _ in range(50):
        assert (await other.produce(b"x", key=[b"x"]))[0] == Type.REPLY
        held.append(answers.bytes)
    assert max(held) <= IN_FLIGHT_BYTES + VISIT_BYTES + 2 * ALL
    numbers = set()
    for _ in range(REQUESTS):
        frame = await slow.receive()
        assert frame[0] == Type.REPLY and _bytes_in(frame) >= ALL
        numbers.add(frame[1])
    assert numbers == set(range(1000, 1000 + REQUESTS))
    await until_holds(lambda: answers.bytes == 0)


def _bytes_in(value: Any) -> int:
    if isinstance(value, bytes):
        return len(value)
    return sum(_bytes_in(one) for one in value) if isinstance(value, list) else 0


async def test_first_batches_of_new_producers_are_refused(node: Serving, dial: Dial) -> None:
    client = await dial(node)
    await client.create()
    batch = encode({Column.VALUE: [b"x"]})

    async def produce(producer: int, number: int) -> list[Any]:
        return await client.call(Type.PRODUCE, "t", 0, producer, 1 if producer else 0, number, 0, batch)

    assert (await produce(5, 1))[0] == Type.REPLY
    node.broker.node_log.producers.share_bytes = 1
    refused = await until_answer(lambda: produce(6, 1), lambda frame: frame[0] == Type.ERROR)
    assert refused[2] == "OVERLOADED" and refused[4], "retriable"
    assert (await produce(5, 2))[0] == Type.REPLY, "a known topic"
    assert (await produce(0, 0))[0] == Type.REPLY, "none"


async def test_watchers_beyond_their_share_are_refused(node: Serving, dial: Dial) -> None:
    client = await dial(node)
    assert (await client.call(Type.TOPIC_CREATE, "t", "compacted", 1, 1, {}))[0] == Type.REPLY
    watchers = node.broker.node_log.memory.watchers
    watch = ("t", 0, None, None, True, b"", None, 10, MB, 0)
    assert (await client.call(Type.KV_WATCH, *watch))[0] == Type.REPLY
    assert watchers.bytes == 0
    watchers.share_bytes = 0
    refused = await client.call(Type.KV_WATCH, *watch)
    assert refused[2] == "OVERLOADED" and refused[4], "retriable"


ACCOUNTS = {"look_aheads", "logs", "rows", "snapshots", "requests", "answers", "watchers", "producers", "http"}


async def test_metrics_show_every_account(node: Serving) -> None:
    assert set(node.broker.node_log.memory.accounts) == ACCOUNTS
    text = (await node.metrics.render())[0].decode()
    for account in ACCOUNTS:
        assert f'sandq_memory_bytes{{account="{account}"}}' in text
        assert f'sandq_memory_share_bytes{{account="{account}"}}' in text


async def test_cluster_info_lists_every_memory_account(node: Serving, dial: Dial) -> None:
    client, memory = await dial(node), node.broker.node_log.memory
    memory.watchers.take(12_345)
    told = (await client.call(Type.CLUSTER_INFO))[2]["memory"]
    memory.watchers.give_back(12_345)
    assert {row["account"]: row["limit"] for row in told} == {
        name: int(account.share_bytes) for name, account in memory.accounts.items()
    }
    held = {row["account"]: row["bytes"] for row in told}
    assert set(held) == ACCOUNTS and held["watchers"] == 12_345
