"""The Spark sink stores each row once and in order while the leader of a partition stops."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import trio

from sandq.spark.sink import chunks as chunks_module
from sandq.spark.sink.identity import Identity
from sandq.spark.sink.options import SinkOptions
from sandq.spark.sink.writers import write_rows
from tests.support.nodes.three import NAMES, three_nodes
from tests.support.waiting import until_answer

ROWS = 6000


async def test_leaders_go_in_mid_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chunks_module, "CHUNK_ROWS", 100)
    monkeypatch.setattr(chunks_module, "BLOCK_ROWS", 100)
    monkeypatch.setattr("sandq.spark.sink.sender.ROUND_BYTES", 3000)
    async with three_nodes(tmp_path) as nodes, nodes.connect() as client:
        await until_answer(client.admin.cluster, lambda info: len(info["nodes"]) == 3)
        await client.admin.create_topic("t", partitions=1, replicas=3)
        stopped = []

        async def change_leader() -> None:
            leader = await nodes.until_led()
            stopped.append(leader)
            await nodes.stop(leader)
            await nodes.until_led()
            await nodes.start(leader)

        def batches() -> Iterator[Any]:
            for start in range(0, ROWS, 500):
                if start in (1500, 3500):
                    trio.from_thread.run(change_leader)
                yield pa.record_batch({"value": pa.array([b"%d" % n for n in range(start, start + 500)])})

        options = SinkOptions(tuple(f"127.0.0.1:{nodes.client_ports[name]}" for name in NAMES), "t")
        for identity in (Identity("test", 0), Identity("test", 0, resent=True)):
            written = await trio.to_thread.run_sync(partial(write_rows, batches(), ["value"], options, identity))
            assert written.rows == ROWS
        assert len(stopped) == 4 and written.already_stored == written.chunks > 40
        found = [int(message.value or b"") async for message in client.messages("t").list(values=True)]
        assert found == [*range(ROWS)]
