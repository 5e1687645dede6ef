"""Partitions of a compacted topic move like others: keys that are swapped, watched and compacted meanwhile stay
correct."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio

import sandq
from sandq.model.errors import VersionChanged
from sandq.partition.kv import compaction
from tests.support.nodes.found import found_nodes
from tests.support.nodes.moved import drain, until_even, until_settled
from tests.support.waiting import until_holds

KEYS = [f"counter{n}" for n in range(8)]
PARTITIONS = 4


@pytest.fixture(autouse=True)
def _hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"NEW_LEAST": 50, "LOOK_MS": 20, "IDLE_MS": 200, "REST_MS": 0}.items():
        monkeypatch.setattr(compaction, name, value)


async def count(client: sandq.Client, key: str, done: dict[str, int], stop: trio.Event) -> None:
    """Add one by compare-and-set until stopped; no other writer uses the key."""
    kv = client.kv("t")
    version: str | None = None
    while not stop.is_set():
        try:
            version = await kv.cas(key, str(done[key] + 1), expected=version)
        except VersionChanged as error:
            raise AssertionError(f"{key} was changed by somebody else: {error}") from error
        done[key] += 1
        await trio.sleep(0.01)


async def test_keys_move_with_their_partition(tmp_path: Path) -> None:
    done = dict.fromkeys(KEYS, 0)
    stop = trio.Event()
    seen: dict[bytes, int] = {}
    async with found_nodes(tmp_path, "node1", "node2", "node3") as nodes:
        async with nodes.connect(*nodes.running) as client:
            await client.admin.create_topic(
                "t", kind="compacted", partitions=PARTITIONS, replicas=3, history="0s", tombstone_retention="0s"
            )
            await client.kv("t").put_many([(f"still{n}", "there") for n in range(200)])
            await client.kv("t").put_many([(f"gone{n}", "x") for n in range(50)])
            await client.kv("t").put_many([(f"gone{n}", None) for n in range(50)])

            async def watch() -> None:
                async with client.kv("t").watch(prefix="counter", start="earliest", latest=True) as changes:
                    async for change in changes:
                        assert change.value is not None
                        assert int(change.value) > seen.get(change.key, 0), "versions must rise"
                        seen[change.key] = int(change.value)

            async with trio.open_nursery() as nursery:
                nursery.start_soon(watch)
                async with trio.open_nursery() as counting:
                    for key in KEYS:
                        counting.start_soon(count, client, key, done, stop)
                    await nodes.start("node4")
                    await nodes.until_registered("node1", "node2", "node3", "node4")
                    await drain(nodes, "node1")
                    await until_settled(nodes)
                    assert not nodes.running["node1"].broker.catalog.by_group, "the drained node must hold no replica"
                    await until_holds(lambda: min(done.values()) > 30)
                    stop.set()
                await until_holds(lambda: {key.decode(): number for key, number in seen.items()} == done)
                nursery.cancel_scope.cancel()
            found = {entry.key.decode(): entry.value.decode() async for entry in client.kv("t").scan()}
            assert found == {key: str(number) for key, number in done.items()} | dict.fromkeys(
                [f"still{n}" for n in range(200)], "there"
            )
            stale = [await client.kv("t").get("still7", consistency="stale") for _ in range(12)]
            assert all(entry is not None and entry.value == b"there" for entry in stale), "whoever holds it"
        await until_even(nodes)
