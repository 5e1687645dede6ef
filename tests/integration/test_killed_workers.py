"""A message that kills its workers becomes dead. Other messages of these workers are not affected."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator

import pytest

import sandq.sync
import sandq.testing
from tests.support.waiting import PATIENCE_S

ITERATES = """
import os, sys, sandq.sync
with sandq.sync.connect(sys.argv[1]) as client, client.subscribe("t", group="g") as subscription:
    for message in subscription:
        if message.value == b"poison":
            os._exit(9)
        message.ack().wait()
"""
BATCHES = """
import os, sys, sandq.sync
with sandq.sync.connect(sys.argv[1]) as client, client.subscribe("t", group="g", credit=1) as subscription:
    for batch in subscription.batches():
        if b"poison" in batch.values:
            os._exit(9)
        batch.ack().wait()
"""
RUNS = """
import os, sys, trio, sandq
async def handler(message):
    if message.value == b"poison":
        await trio.sleep(0.05)  # while the other handlers settle theirs
        os._exit(9)
async def main():
    async with sandq.connect(sys.argv[1]) as client:
        await client.run("t", "g", handler, concurrency=4)
trio.run(main)
"""


@pytest.fixture
def broker() -> Iterator[sandq.testing.Broker]:
    with sandq.testing.broker() as broker:
        yield broker


@pytest.mark.parametrize(
    ("worker", "partitions"), [(ITERATES, 3), (BATCHES, 1), (RUNS, 3)], ids=["iterates", "batches", "runs"]
)
def test_message_that_kills_its_worker_dies_alone(broker: sandq.testing.Broker, worker: str, partitions: int) -> None:
    settings = {"max_attempts": 3, "lease": "30s", "backoff": {"kind": "none"}}
    broker.create_topic("t", partitions=partitions, **settings)
    with sandq.sync.connect(broker.address) as client:
        for value in ["poison", *[f"innocent {number}" for number in range(8)]]:
            client.produce("t", value)
        for _ in range(3):
            ended = subprocess.run(
                [sys.executable, "-c", worker, broker.address], timeout=PATIENCE_S, capture_output=True, check=False
            )
            assert ended.returncode == 9, ended.stderr.decode()
            broker.advance("31s")
        assert [letter.value for letter in client.dead("t", "g").list()] == [b"poison"]
