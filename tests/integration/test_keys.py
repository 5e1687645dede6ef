"""Keys of a compacted topic, over the wire."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import sandq
from sandq.model.batch import Column, encode
from sandq.model.errors import InvalidRequest, InvalidSetting
from sandq.model.partitioning import partition_for
from sandq.node import run_node
from sandq.partition.kv.key_table import Value
from sandq.partition.kv.writes import ABSENT, CHANGED, NO_VERSION
from sandq.protocol import requests_keys
from sandq.protocol.frames import Type
from tests.integration.conftest import Dial
from tests.support.nodes.hand_clock import HandClock
from tests.support.nodes.raw_client import RawClient
from tests.support.nodes.small_node import small_config
from tests.support.nodes.working import take

MANY = 10_000
ALL_BYTES = requests_keys.ANSWER_BYTES


async def create(client: RawClient, partitions: int = 1, **settings: Any) -> list[Any]:
    return await client.call(Type.TOPIC_CREATE, "t", "compacted", partitions, 1, settings)


async def put(client: RawClient, *writes: tuple[bytes, bytes | None], partition: int = 0, **columns: Any) -> list[Any]:
    named = {Column[name.upper()]: cells for name, cells in columns.items()}
    keys, values = [key for key, _ in writes], [value for _, value in writes]
    batch = encode({Column.VALUE: values, Column.KEY: keys, **named})
    return await client.produce_batch(batch, partition=partition)


async def get(client: RawClient, *keys: bytes, partition: int = 0) -> list[bytes | None]:
    reply = await client.call(Type.KV_GET, "t", partition, False, list(keys))
    assert reply[0] == Type.REPLY, reply
    return [None if row is None else Value.load(row).value for row in reply[3]]


async def scan(client: RawClient, start: bytes = b"", stop: bytes | None = None, limit: int = MANY) -> list[Any]:
    """Return the pages of a scan: (keys, next start)."""
    pages: list[tuple[list[bytes], bytes | None]] = []
    at: bytes | None = start
    while at is not None:
        reply = await client.call(Type.KV_SCAN, "t", 0, False, at, stop, limit, ALL_BYTES)
        at = reply[4]
        pages.append((reply[3][::2], at))
    return pages


async def test_put_values_are_returned_by_get_and_scan(client: RawClient) -> None:
    await create(client)
    assert await get(client, b"a") == [None]
    await put(client, (b"a", b"1"), (b"b", b""), (b"c", b"3"))
    await put(client, (b"a", b"2"), (b"c", None))
    assert await get(client, b"a", b"b", b"c", b"d", b"a") == [b"2", b"", None, None, b"2"]
    assert await scan(client) == [([b"a", b"b"], None)]


async def test_scans_by_pages(client: RawClient) -> None:
    await create(client)
    await put(client, *[(b"k%03d" % n, b"x") for n in range(25)])
    pages = await scan(client, b"k003", b"k020", limit=5)
    assert [key for keys, _ in pages for key in keys] == [b"k%03d" % n for n in range(3, 20)]
    assert [len(keys) for keys, _ in pages] == [5, 5, 5, 2]


async def test_large_answers_come_in_parts(client: RawClient) -> None:
    await create(client)
    for n in range(4):
        await put(client, (b"k%d" % n, bytes(3 << 20)))
    keys = [b"k%d" % n for n in range(4)]
    assert [len(value or b"") for value in await get(client, *keys)] == [3 << 20] * 3, (
        "the client must request the rest again"
    )
    assert [len(keys) for keys, _ in await scan(client)] == [3, 1]


async def test_conditions(client: RawClient) -> None:
    await create(client)
    made = await put(client, (b"a", b"1"), expected_version=[ABSENT])
    version = made[2]
    assert made[3] is None and await get(client, b"a") == [b"1"]
    refused = await put(client, (b"a", b"2"), (b"b", b"2"), expected_version=[ABSENT, version])
    assert refused[2:] == [version + NO_VERSION, [[0, CHANGED], [1, CHANGED]]]
    changed = await put(client, (b"a", b"2"), expected_version=[version])
    assert changed[3] is None and changed[2] > version
    (row,) = (await client.call(Type.KV_GET, "t", 0, False, [b"a"]))[3]
    assert Value.load(row) == Value(changed[2], b"2")


async def test_value_expires_at_its_ttl(hand: HandClock, tmp_path: Path, dial: Dial) -> None:
    async with run_node(small_config(tmp_path), clock=hand.guarded()) as serving:
        client = await dial(serving)
        await create(client)
        hand.hold()
        await put(client, (b"a", b"1"), (b"b", b"1"), ttl_ms=[5000, None])
        hand.forward(4.9)
        assert await get(client, b"a") == [b"1"]
        hand.forward(0.2)
        assert await get(client, b"a", b"b") == [None, b"1"]
        assert await scan(client) == [([b"b"], None)]


async def test_keys_are_in_the_partition_of_their_hash(client: RawClient) -> None:
    await create(client, partitions=3)
    wrong = (partition_for(b"a", 3) + 1) % 3
    reply = await put(client, (b"a", b"1"), partition=wrong)
    assert reply[2] == "INVALID" and f"belongs to partition {partition_for(b'a', 3)}, not {wrong}" in reply[3]
    reply = await put(client, (b"a", b"1"), partition=partition_for(b"a", 3))
    assert reply[0] == Type.REPLY


@pytest.mark.parametrize(
    ("columns", "says"),
    [
        ({"deliver_ms": [1_900_000_000_000]}, "takes no deliver_ms with a message of a compacted topic"),
        ({"unique_key": [b"u"]}, "takes no unique_key"),
        ({"expected_version": [b"v"]}, "a version has 16 bytes"),
        ({"ttl_ms": [0]}, "a ttl of 0 ms"),
        ({"key": [b""]}, "has a key, of one byte at least"),
    ],
)
async def test_invalid_writes_are_refused(client: RawClient, columns: dict[str, Any], says: str) -> None:
    await create(client)
    named = {Column.KEY: [b"a"], Column.VALUE: [b"1"]} | {Column[n.upper()]: cells for n, cells in columns.items()}
    reply = await client.produce_batch(encode(named))
    assert reply[2] in ("INVALID", "INVALID_TIME") and says in reply[3]
    reply = await client.produce(b"no key")
    assert reply[2] == "INVALID" and "has a key" in reply[3]


async def test_only_compacted_topics_have_keys(client: RawClient) -> None:
    await client.create()
    for asked in ((Type.KV_GET, "t", 0, False, [b"a"]), (Type.KV_SCAN, "t", 0, False, b"", None, 1, 1)):
        reply = await client.call(*asked)
        assert reply[2:4] == ["INVALID", "topic 't' is a timer topic: only compacted ones have keys"]
    assert (await client.call(Type.KV_GET, "nope", 0, False, [b"a"]))[2] == "UNKNOWN_TOPIC"


async def test_settings_and_partitions_of_compacted_topic_are_checked(client: RawClient, api: sandq.Client) -> None:
    refused = await create(client, retention="1h")
    assert refused[2] == "INVALID_SETTING" and "retention: unknown key" in refused[3]
    await create(client, partitions=2, history="5m")
    with pytest.raises(InvalidRequest, match="has 2 partitions for ever: it is compacted"):
        await api.admin.update_topic("t", partitions=3)
    with pytest.raises(InvalidSetting, match="ordering: unknown key"):
        await api.admin.update_topic("t", ordering="key")
    await api.admin.update_topic("t", history="10m", lease="5s")
    settings = (await api.admin.topic("t")).settings
    assert (settings["history_ms"], settings["tombstone_retention_ms"], settings["lease_ms"]) == (
        600_000,
        86_400_000,
        5000,
    )


async def test_keys_cannot_be_cancelled_or_moved(client: RawClient, api: sandq.Client) -> None:
    await create(client)
    version = (await put(client, (b"a", b"1")))[2][0]
    for asked in ((Type.CANCEL, "t", 0, [[0, version]]), (Type.MOVE, "t", 0, [[[0, version], 5, True]])):
        reply = await client.call(*asked)
        assert reply[2] == "INVALID" and "put or delete its key" in reply[3]
    assert await get(client, b"a") == [b"1"]


async def test_groups_read_every_change_in_order(client: RawClient, api: sandq.Client) -> None:
    await create(client)
    await put(client, (b"a", b"1"), (b"a", b"2"), (b"b", b"1"))
    await put(client, (b"a", None))
    async with api.subscribe("t", group="g") as subscription:
        got = [(message.key, message.value) for message in await take(subscription, 4)]
    assert got == [(b"a", b"1"), (b"a", b"2"), (b"b", b"1"), (b"a", b"")]


async def test_after_a_restart_all_is_as_before(tmp_path: Path, dial: Dial) -> None:
    async with run_node(small_config(tmp_path)) as serving:
        client = await dial(serving)
        await create(client, history="0s")
        for n in range(50):
            await put(client, *[(b"k%d" % key, b"%d" % n) for key in range(5)])
    async with run_node(small_config(tmp_path)) as serving:
        client = await dial(serving)
        assert await get(client, b"k0", b"k4") == [b"49", b"49"]
        await put(client, (b"k0", None))
        assert [keys for keys, _ in await scan(client)] == [[b"k1", b"k2", b"k3", b"k4"]]
