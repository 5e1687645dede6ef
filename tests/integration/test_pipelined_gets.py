"""Many KV_GET requests in one packet: each gets its own reply, and a failing request does not affect the others."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from sandq.model.offsets import OFFSET_BYTES
from sandq.node import run_node
from sandq.node.running import Serving
from sandq.protocol.frames import Type
from tests.integration.conftest import Dial
from tests.integration.test_pipelined_batches import answers, packed
from tests.support.nodes.raw_client import Frame, RawClient
from tests.support.nodes.small_node import small_config

MOST = 20


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[Serving]:
    async with run_node(small_config(tmp_path, LIMITS__REQUESTS_PER_CONNECTION=str(MOST))) as serving:
        yield serving


def get(number: int, *keys: bytes, topic: str = "keys", partition: int = 0, stale: bool = False) -> list[Any]:
    return [int(Type.KV_GET), number, topic, partition, stale, list(keys)]


async def write(client: RawClient, *keys: bytes) -> dict[bytes, bytes]:
    """Write keys whose value is the key twice. Return the version of each key."""
    await client.call(Type.TOPIC_CREATE, "keys", "compacted", 1, 1, {})
    stored = await client.produce(*[key * 2 for key in keys], topic="keys", key=list(keys))
    assert stored[0] == 0
    return {key: await _version(client, key) for key in keys}


async def _version(client: RawClient, key: bytes) -> bytes:
    row: bytes = (await client.call(Type.KV_GET, "keys", 0, False, [key]))[3][0]
    return row


def codes(found: dict[int, Frame]) -> dict[int, str]:
    return {number: frame[2] for number, frame in found.items() if frame[0] == 255}


async def test_each_has_its_values_in_its_order(client: RawClient) -> None:
    rows = await write(client, b"a", b"b", b"c")
    assert all(len(row) > OFFSET_BYTES for row in rows.values()) and len(set(rows.values())) == 3
    await client.send_bytes(
        packed(
            get(101, b"b"),
            get(102, b"c", b"none", b"a"),
            get(103, b"a", stale=True),
            [int(Type.PING), 104],
            get(105, b"a", b"a"),
        )
    )
    found = await answers(client, 5)
    assert found[101][2:] == [0, [rows[b"b"]]]
    assert found[102][2:] == [0, [rows[b"c"], None, rows[b"a"]]]
    assert found[103][3] == [rows[b"a"]]
    assert found[105][2:] == [0, [rows[b"a"], rows[b"a"]]]


async def test_failing_get_does_not_affect_others_in_its_pipeline(client: RawClient) -> None:
    rows = await write(client, b"a")
    await client.create("queue")
    await client.send_bytes(
        packed(
            get(101, b"a"),
            get(102, b"a", topic="nowhere"),
            get(103, b"a", partition=7),
            get(104),
            get(105, b"a", topic="queue"),
            get(106, b"a"),
            [int(Type.KV_GET), 107, "keys", 0, False, ["text"]],
        )
    )
    found = await answers(client, 7)
    assert codes(found) == {
        102: "UNKNOWN_TOPIC",
        103: found[103][2],
        104: "INVALID",
        105: "INVALID",
        107: "INVALID",
    }
    assert found[101][3] == found[106][3] == [rows[b"a"]]


async def test_more_than_are_worked_on_at_once_wait_and_all_are_answered(client: RawClient) -> None:
    rows = await write(client, b"a")
    await client.send_bytes(packed(*[get(number, b"a") for number in range(100, 100 + 5 * MOST)]))
    found = await answers(client, 5 * MOST)
    assert all(frame[3] == [rows[b"a"]] for frame in found.values())


async def test_requests_that_wait_for_changes_keep_no_others_waiting(client: RawClient) -> None:
    rows = await write(client, b"a")
    through, mark = (await client.call(Type.KV_WATCH, "keys", 0, None, None, False, b"z", None, 10, 1000, 0))[2:4]
    waiting = ["keys", 0, through, mark, False, b"z", None, 10, 1000, 30_000]
    await client.send_bytes(packed(*[[int(Type.KV_WATCH), number, *waiting] for number in range(900, 901 + MOST)]))
    assert codes(await answers(client, 1)) == {900 + MOST: "OVERLOADED"}, "the maximum number of requests wait already"
    for first in (100, 200):
        await client.send_bytes(packed(*[get(number, b"a") for number in range(first, first + MOST)]))
        found = await answers(client, MOST)
        assert all(frame[3] == [rows[b"a"]] for frame in found.values())


async def test_a_write_that_was_answered_is_seen_by_all_that_ask_behind_it(
    client: RawClient, dial: Dial, node: Serving
) -> None:
    await write(client, b"k")
    reader = await dial(node)
    for round_ in range(20):
        value = b"%d" % round_
        stored = await client.produce(value, topic="keys", key=[b"k"])
        assert stored[0] == 0
        await reader.send_bytes(packed(*[get(number, b"k") for number in range(100, 110)]))
        found = await answers(reader, 10)
        assert all(value in frame[3][0] for frame in found.values())


async def test_client_that_leaves_during_gets_does_not_disturb_others(
    client: RawClient, dial: Dial, node: Serving
) -> None:
    rows = await write(client, b"a")
    leaving = await dial(node)
    await leaving.send_bytes(packed(*[get(number, b"a") for number in range(100, 110)]))
    await leaving.stream.aclose()
    await client.send_bytes(packed(get(200, b"a")))
    assert (await client.receive())[3] == [rows[b"a"]]
