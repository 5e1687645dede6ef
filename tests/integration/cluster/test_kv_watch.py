"""Watches of keys on three nodes: no change twice, none missing, while leaders, nodes and connections fail."""

from __future__ import annotations

import json
import random
from collections import defaultdict
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import trio

import sandq
from sandq.errors import SandqError
from sandq.partition.kv import compaction
from tests.support.nodes.patient import patient_client
from tests.support.nodes.proxy import Proxy, proxy_to
from tests.support.nodes.three import NAMES, ThreeNodes, three_nodes
from tests.support.waiting import until_holds

PARTITIONS = 3
WRITERS = 4
KEYS = 5
"""Writes of each writer."""
WRITES = 60
"""Minimum number of changes that each writer makes."""

Row = tuple[bytes, bytes | None, str]
"""Key, value, version."""


class Written:
    """The acknowledged writes, in the order of each key. A key has one writer."""

    def __init__(self, seed: int) -> None:
        self.rows: list[Row] = []
        self.last: dict[bytes, Row] = {}
        self.stop = trio.Event()
        self._rng = random.Random(seed)

    async def write(self, kv: sandq.Keys, name: str) -> None:
        """Write, swap and delete random keys until stopped, and note the last write of each."""
        number = 0
        while number < WRITES or not self.stop.is_set():
            key = f"{name}-{self._rng.randrange(KEYS)}".encode()
            value = None if self._rng.random() < 0.1 else str(number).encode()
            if value is None:
                version = await kv.delete(key)
            elif self._rng.random() < 0.3:
                row = self.last.get(key)
                expected = row[2] if row is not None and row[1] is not None else None
                version = await kv.cas(key, value, expected=expected)
            else:
                version = await kv.put(key, value)
            self.last[key] = (key, value, version)
            self.rows.append(self.last[key])
            number += 1
            await trio.sleep(self._rng.uniform(0, 0.03))


class Seen:
    """Changes that a watch returned, in order."""

    def __init__(self) -> None:
        self.rows: list[Row] = []
        self.latest: dict[bytes, Row] = {}
        self.begun = trio.Event()

    async def all_of(self, kv: sandq.Keys, **options: Any) -> None:
        async with kv.watch(**options) as watch:
            self.begun.set()
            async for change in watch:
                self._note(change)

    async def by_pieces(self, kvs: list[sandq.Keys], rng: random.Random, **options: Any) -> None:
        """Stop the watch now and then, and continue from its position with another client."""
        while True:
            async with rng.choice(kvs).watch(**options) as watch:
                self.begun.set()
                for _ in range(rng.randint(1, 60)):
                    self._note(await anext(watch))
                options["start"] = json.loads(json.dumps(watch.position))

    def _note(self, change: sandq.Change) -> None:
        row = (change.key, change.value, change.version)
        before = self.latest.get(change.key)
        assert before is None or before[2] < row[2], "the changes of each key must be in order, without duplicates"
        self.latest[change.key] = row
        self.rows.append(row)


async def created(nodes: ThreeNodes, client: sandq.Client, **settings: Any) -> None:
    await until_holds(lambda: all(len(n.broker.metadata.nodes) == 3 for n in nodes.running.values()))
    await client.admin.create_topic("t", kind="compacted", partitions=PARTITIONS, replicas=3, **settings)
    for partition in range(PARTITIONS):
        await nodes.until_led(partition=partition)


async def disturb(nodes: ThreeNodes, client: sandq.Client, proxy: Proxy, rng: random.Random) -> None:
    """Leaders change, connections are cut, a node stops."""
    proxy.cut_answer = lambda n: n % 25 == 24
    for name in rng.sample(NAMES, 1):
        for _ in range(3):
            partition = rng.randrange(PARTITIONS)
            leader = await nodes.until_led(partition=partition)
            other = rng.choice([name for name in NAMES if name != leader])
            await client.admin.transfer("t", partition, other)
            await trio.sleep(rng.uniform(0.05, 0.3))
        while not proxy.lost.is_set():
            # Writes to node1 use this connection until it is stopped. Then the client may use node1's own
            # address. Also, node1 may have stopped leading.
            if await nodes.until_led() != "node1":
                with suppress(SandqError):
                    await client.admin.transfer("t", 0, "node1")
            await trio.sleep(0.05)
        await nodes.stop(name)
        await trio.sleep(rng.uniform(0.2, 0.6))
        await nodes.start(name)
    proxy.cut_answer = lambda n: False


async def one_disturbed_day(
    tmp_path: Path,
    rng: random.Random,
    watchers: list[Callable[[list[sandq.Keys]], Awaitable[None]]],
    is_done: Callable[[Written], bool],
    seen: dict[str, Seen],
    **settings: Any,
) -> Written:
    """Write through two clients, one of them over a connection that is cut, during all of this; wait until the watchers
    have seen it."""
    written = Written(rng.randrange(1 << 30))
    async with (
        three_nodes(tmp_path) as nodes,
        proxy_to(nodes.client_ports["node1"]) as proxy,
        nodes.connect() as steady,
        patient_client(f"127.0.0.1:{proxy.port}") as shaken,
    ):
        await created(nodes, steady, **settings)
        kvs = [steady.kv("t"), shaken.kv("t")]
        async with trio.open_nursery() as watching:
            for watch in watchers:
                watching.start_soon(watch, kvs)
            for each in seen.values():
                await each.begun.wait()
            async with trio.open_nursery() as writing:
                for number in range(WRITERS):
                    writing.start_soon(written.write, kvs[number % 2], f"w{number}")
                await disturb(nodes, steady, proxy, rng)
                written.stop.set()
            with suppress(AssertionError):  # the caller checks for missing changes
                await until_holds(lambda: is_done(written))
            watching.cancel_scope.cancel()
    return written


async def test_every_change_is_seen_once_and_in_its_order(tmp_path: Path) -> None:
    seed = random.randrange(1 << 30)
    print(f"seed {seed}")
    rng = random.Random(seed)
    seen = {name: Seen() for name in ("steady", "shaken", "by pieces", "one key")}
    key = b"w0-0"
    written = await one_disturbed_day(
        tmp_path,
        rng,
        [
            lambda kvs: seen["steady"].all_of(kvs[0], start="now"),
            lambda kvs: seen["shaken"].all_of(kvs[1], start="now"),
            lambda kvs: seen["by pieces"].by_pieces(kvs, rng, start="earliest"),
            lambda kvs: seen["one key"].all_of(kvs[1], key=key),
        ],
        lambda written: all(
            len(each.rows) >= len([row for row in written.rows if name != "one key" or row[0] == key])
            for name, each in seen.items()
        ),
        seen,
    )
    assert len(written.rows) >= WRITERS * WRITES
    for name, each in seen.items():
        wanted = [row for row in written.rows if name != "one key" or row[0] == key]
        assert len(each.rows) == len(wanted) and set(each.rows) == set(wanted), name
        by_key: dict[bytes, list[Row]] = defaultdict(list)
        for row in each.rows:
            by_key[row[0]].append(row)
        for one, rows in by_key.items():
            assert rows == [row for row in wanted if row[0] == one], name


async def test_last_value_of_each_key_is_seen_during_compaction(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seed = random.randrange(1 << 30)
    print(f"seed {seed}")
    rng = random.Random(seed)
    monkeypatch.setattr(compaction, "NEW_LEAST", 20)
    monkeypatch.setattr(compaction, "NEW_FACTOR", 0)
    seen = {name: Seen() for name in ("now", "earliest", "by pieces")}
    written = await one_disturbed_day(
        tmp_path,
        rng,
        [
            lambda kvs: seen["now"].all_of(kvs[1], start="now", latest=True),
            lambda kvs: seen["earliest"].all_of(kvs[0], start="earliest", latest=True),
            lambda kvs: seen["by pieces"].by_pieces(kvs, rng, start="earliest", latest=True),
        ],
        lambda written: all(each.latest == written.last for each in seen.values()),
        seen,
        history="0s",
    )
    for name, each in seen.items():
        assert each.latest == written.last, name
        assert {*each.rows} <= {*written.rows}, name
