"""Keys on three nodes: acknowledged writes survive failovers, on every leader; conditions are linearizable."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import trio

from sandq.model.batch import Column, encode
from sandq.partition.kv.key_table import Value
from sandq.partition.kv.writes import ABSENT
from sandq.protocol.frames import Type
from tests.support.nodes.raw_client import RawClient
from tests.support.nodes.three import NAMES, ThreeNodes, three_nodes
from tests.support.waiting import until_holds

TASKS = 3
LATER = ("NOT_LEADER", "UNAVAILABLE", "OVERLOADED")
"""The write certainly had no effect."""


class Keys:
    """Sends requests to the leader, repeatedly until the result is certain."""

    def __init__(self, nodes: ThreeNodes) -> None:
        self._nodes = nodes

    async def _call(self, kind: int, *fields: Any) -> list[Any]:
        """Return the first reply that is not a retriable error. Return TIMED_OUT without a retry."""
        while True:
            leader = self._nodes.leader()
            if leader is not None and leader in self._nodes.running:
                try:
                    client = await RawClient.connect(self._nodes.running[leader].client_port, hello=False)
                    try:
                        await client.call(Type.HELLO, 2, "raw", {})
                        reply = await client.call(kind, "t", 0, *fields)
                    finally:
                        await trio.aclose_forcefully(client.stream)
                except (OSError, EOFError, trio.BrokenResourceError):
                    return [255, 0, "TIMED_OUT"]
                if reply[0] == Type.REPLY or reply[2] not in LATER:
                    return reply
            await trio.sleep(0.02)

    async def get(self, key: bytes) -> Value | None:
        while True:
            reply = await self._call(Type.KV_GET, False, [key])
            if reply[0] == Type.REPLY:
                (row,) = reply[3]
                return None if row is None else Value.load(row)

    async def swap(self, key: bytes, value: bytes, expected: bytes) -> bool | None:
        """Return whether it was written; None if unknown."""
        batch = encode({Column.VALUE: [value], Column.KEY: [key], Column.EXPECTED_VERSION: [expected]})
        reply = await self._call(Type.PRODUCE, 0, 0, 0, 0, batch)
        return None if reply[0] != Type.REPLY else reply[3] is None


async def created(nodes: ThreeNodes) -> None:
    async with nodes.connect() as client:
        await client.admin.create_topic("t", kind="compacted", replicas=3, history="0s")


async def test_counters_that_are_swapped_count_right_across_failovers(tmp_path: Path) -> None:
    """Each task adds one to a counter by compare-and-set. The counter is at least the number of acknowledged
    increments, and at most the number of increments that may have been done."""
    rng = random.Random(7)
    async with three_nodes(tmp_path) as nodes:
        await until_holds(lambda: all(len(n.broker.metadata.nodes) == 3 for n in nodes.running.values()))
        await created(nodes)
        keys, sure, maybe = Keys(nodes), [0], [0]
        stop = trio.Event()

        async def count() -> None:
            while not stop.is_set():
                before = sure[0]
                found = await keys.get(b"counter")
                number, version = (int(found.value), found.version) if found else (0, ABSENT)
                assert before <= number, "every increment acknowledged before the read must be included"
                assert number <= sure[0] + maybe[0] + TASKS, (
                    "increments of others that are not yet acknowledged may be included"
                )
                done = await keys.swap(b"counter", b"%d" % (number + 1), version)
                sure[0] += done is True
                maybe[0] += done is None

        async with trio.open_nursery() as nursery:
            for _ in range(TASKS):
                nursery.start_soon(count)
            for _ in range(3):
                await trio.sleep(rng.uniform(0.3, 0.6))
                leader = await nodes.until_led()
                await nodes.stop(leader)
                await trio.sleep(rng.uniform(0.2, 0.4))
                await nodes.start(leader)
            await until_holds(lambda: sure[0] > 30)
            stop.set()
        found = await keys.get(b"counter")
        assert found is not None and sure[0] <= int(found.value) <= sure[0] + maybe[0]
        await nodes.until_even()
        rows = {nodes.host(name).replica.machine.keys.bytes for name in NAMES}  # type: ignore[attr-defined]
        assert len(rows) == 1, "all replicas must have the same rows"
