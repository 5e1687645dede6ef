"""Compaction while keys are written, watched and consumed all the time removes nothing that is still needed."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio

import sandq
from sandq.node import run_node
from sandq.node.running import Serving
from sandq.partition.kv import compaction
from tests.support.nodes.small_node import small_config
from tests.support.nodes.working import connected
from tests.support.waiting import until_holds

PARTITIONS = 2
WRITERS = 4
KEYS = 5
"""Writes of each writer."""
ROUNDS = 60
MetadataBarrier = dict[bytes, int]


@pytest.fixture(autouse=True)
def _hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compaction runs again and again, in many steps."""
    for name, value in {"NEW_LEAST": 50, "LOOK_MS": 20, "IDLE_MS": 200, "STEP_ROWS": 20, "STEP_MESSAGES": 60}.items():
        monkeypatch.setattr(compaction, name, value)


async def write(client: sandq.Client, writer: int, expected: MetadataBarrier) -> None:
    """Write rising numbers to the writer's own keys. Delete a key now and then, and one key finally."""
    kv = client.kv("t")
    for number in range(ROUNDS):
        keys = [b"w%d-%d" % (writer, key) for key in range(KEYS)]
        await kv.put_many([(key, b"%d" % number) for key in keys] * 2)
        expected.update(dict.fromkeys(keys, number))
        if number % 10 == 9:
            await kv.delete(keys[0])
            del expected[keys[0]]


class Follower:
    """The state that follows from the received changes."""

    def __init__(self) -> None:
        self.latest: MetadataBarrier = {}
        self.versions: dict[bytes, str] = {}
        self.changes = 0

    def take(self, key: bytes, value: bytes | None, version: str) -> None:
        """Note a change. Versions of a key must rise."""
        assert version > self.versions.get(key, ""), "versions of a key must arrive in order"
        self.versions[key] = version
        self.changes += 1
        if value is None:
            self.latest.pop(key, None)
        else:
            self.latest[key] = int(value)


async def watch(client: sandq.Client, follower: Follower) -> None:
    async with client.kv("t").watch(start="earliest", latest=True) as changes:
        async for change in changes:
            follower.take(change.key, change.value, change.version)


async def consume(client: sandq.Client, follower: Follower) -> None:
    async with client.subscribe("t", group="g", credit=200) as subscription:
        async for message in subscription:
            assert message.key is not None
            follower.take(message.key, None if message.deleted else message.value, message.offset)
            message.ack()


def log_sizes(node: Serving) -> list[int]:
    return [node.broker.catalog.partition("t", at).raft_group.status.messages for at in range(PARTITIONS)]


async def test_followers_have_the_latest_values(tmp_path: Path) -> None:
    expected: MetadataBarrier = {}
    followers = Follower(), Follower(), Follower()
    async with run_node(small_config(tmp_path)) as node, connected(node) as client:
        settings = {"history": "0s", "tombstone_retention": "1h"}
        await client.admin.create_topic("t", kind="compacted", partitions=PARTITIONS, **settings)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(watch, client, followers[0])
            nursery.start_soon(consume, client, followers[1])
            async with trio.open_nursery() as writers:
                for writer in range(WRITERS):
                    writers.start_soon(write, client, writer, expected)
            nursery.start_soon(watch, client, followers[2])  # this watcher begins with the remaining changes
            await until_holds(lambda: all(follower.latest == expected for follower in followers))
            # A deletion of each writer is kept, in addition to the value of each key.
            await until_holds(lambda: sum(log_sizes(node)) == len(expected) + WRITERS)
            nursery.cancel_scope.cancel()
        found = {entry.key: int(entry.value) async for entry in client.kv("t").scan()}
        assert found == expected and len(found) == WRITERS * (KEYS - 1)
        written = WRITERS * (ROUNDS * KEYS * 2 + ROUNDS // 10)
        assert followers[1].changes <= written
        assert followers[2].changes < written // 10, "most changes must have been compacted by then"
    async with run_node(small_config(tmp_path)) as node, connected(node) as client:
        again = {entry.key: int(entry.value) async for entry in client.kv("t").scan()}
        assert again == expected
        late = Follower()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(watch, client, late)
            await until_holds(lambda: late.latest == expected)
            nursery.cancel_scope.cancel()
