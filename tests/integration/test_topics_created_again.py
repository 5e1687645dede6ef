"""A compacted topic is created again with other partitions or a different delimiter: a client that knows the old one
finds its keys, and puts them into the right partitions."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest

import sandq
from sandq.client import cluster_of
from sandq.errors import InvalidRequest
from sandq.model.partitioning import KeyPartitions
from sandq.node.running import Serving
from tests.support.nodes.working import connected

KEYS = [f"{owner}/{thing}" for owner in ("ada", "bob", "cid") for thing in ("lamp", "radio")]
LAYOUTS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "no delimiter any more": ({"partitions": 5, "partition_delimiter": "/"}, {"partitions": 5}),
    "a delimiter by now": ({"partitions": 5}, {"partitions": 5, "partition_delimiter": "/"}),
    "more partitions": ({"partitions": 3}, {"partitions": 16}),
    "fewer partitions": ({"partitions": 16}, {"partitions": 3}),
}


@pytest.fixture
async def other(node: Serving) -> AsyncIterator[sandq.Client]:
    async with connected(node) as client:
        yield client


Made = Callable[[], Awaitable[None]]


@pytest.fixture(params=LAYOUTS)
async def recreate_topic(request: pytest.FixtureRequest, api: sandq.Client, other: sandq.Client) -> AsyncIterator[Made]:
    """`api` knows the old topic `t`; another client creates it again, with values of all keys."""
    before, after = LAYOUTS[request.param]

    async def make() -> None:
        await other.admin.delete_topic("t")
        await other.admin.create_topic("t", kind="compacted", **after)
        await other.kv("t").put_many([(key, f"new {key}") for key in KEYS])
        assert layout(api) == before_layout, "the client must not know the new topic yet"

    await api.admin.create_topic("t", kind="compacted", **before)
    await api.kv("t").put_many([(key, f"old {key}") for key in KEYS])
    before_layout = layout(api)
    yield make
    assert layout(api) == layout(other) != before_layout


def layout(client: sandq.Client) -> KeyPartitions:
    record = cluster_of(client).record("t")
    assert record is not None
    return KeyPartitions.of_topic(record.initial_partitions, record.settings)


async def test_keys_are_found(recreate_topic: Made, api: sandq.Client) -> None:
    await recreate_topic()
    for key in KEYS:
        entry = await api.kv("t").get(key)
        assert entry is not None and entry.value == f"new {key}".encode()


async def test_many_keys_are_found(recreate_topic: Made, api: sandq.Client) -> None:
    await recreate_topic()
    found = await api.kv("t").get_many(KEYS, consistency="stale")
    assert [entry and entry.value.decode() for entry in found] == [f"new {key}" for key in KEYS]


async def test_keys_are_written_where_they_belong(recreate_topic: Made, api: sandq.Client, other: sandq.Client) -> None:
    await recreate_topic()
    for key in KEYS:
        await api.kv("t").put(key, f"newest {key}")
    found = {entry.key.decode(): entry.value.decode() async for entry in other.kv("t").scan()}
    assert found == {key: f"newest {key}" for key in KEYS}


async def test_scans_and_watches_see_all(recreate_topic: Made, api: sandq.Client) -> None:
    await recreate_topic()
    found = [entry.value.decode() async for entry in api.kv("t").scan(prefix="bob/")]
    assert found == ["new bob/lamp", "new bob/radio"]
    async with api.kv("t").watch("cid/lamp", start="earliest") as watch:
        assert (await anext(watch)).value == b"new cid/lamp"


async def test_a_node_that_says_it_again_and_again_is_believed(
    api: sandq.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    await api.admin.create_topic("t", kind="compacted", partitions=5)
    monkeypatch.setattr("sandq.client.kv.keys._routing", lambda record: KeyPartitions(5, b"/"))
    key = next(key for key in KEYS if KeyPartitions(5).of(key.encode()) != KeyPartitions(5, b"/").of(key.encode()))
    with pytest.raises(InvalidRequest, match=r"belongs to partition \d, not \d: topic 't' has 5 partitions and no"):
        await api.kv("t").get(key)
