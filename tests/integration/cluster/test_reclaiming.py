"""Overwritten values are removed soon, on every replica."""

from __future__ import annotations

import contextlib
import random
from pathlib import Path

import pytest

from sandq.partition.kv import compaction
from tests.support.nodes.three import NAMES, ThreeNodes, three_nodes
from tests.support.waiting import until_holds

KEYS = 100
VALUE = random.Random(1).randbytes(1000)
"""Return a value that cannot be compressed."""
ROUNDS = 100
LIVE_BYTES = KEYS * len(VALUE)


def store_bytes(nodes: ThreeNodes, name: str) -> int:
    size = 0
    for file in (nodes.data_dir(name) / "stores.level").glob("*.ldb"):
        with contextlib.suppress(FileNotFoundError):  # a compaction removed the file meanwhile
            size += file.stat().st_size
    return size


async def test_stores_shrink(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compaction, "IDLE_MS", 200)
    async with three_nodes(tmp_path) as nodes, nodes.connect() as client:
        await until_holds(lambda: all(len(n.broker.metadata.nodes) == 3 for n in nodes.running.values()))
        await client.admin.create_topic("t", kind="compacted", replicas=3, history="0s")
        kv = client.kv("t")
        for number in range(ROUNDS):
            await kv.put_many([(f"key{at}", bytes([number]) + VALUE) for at in range(KEYS)])
        # The Raft log has every write of each key, the store only the last value.
        await until_holds(lambda: all(nodes.host(name).status.messages == KEYS for name in NAMES))
        await until_holds(lambda: all(0 < store_bytes(nodes, name) < 5 * LIVE_BYTES for name in NAMES))
        assert [entry.value[0] async for entry in kv.scan()] == [ROUNDS - 1] * KEYS
