"""What pending messages cost in memory: the node's RSS over that of an empty one."""

from __future__ import annotations

import random
import time

from benchmarks.process import Where, memory_bytes, running
from benchmarks.produce import PARTITIONS, TOPIC, batch_of, frames_of
from benchmarks.result import Goal, Result
from benchmarks.wire import Flow, Wire, drive

GOAL = Goal(100, "MB", at_least=False)
MESSAGES = 1_000_000
QUICK_MESSAGES = 20_000
BATCH = 1000
SETTLE_S = 3.0
_MB = 1_000_000


def memory(where: Where, quick: bool) -> Result:
    """Schedule far ahead, let it settle, look."""
    messages = QUICK_MESSAGES if quick else MESSAGES
    rng = random.Random(1)
    with running(where, "memory") as node:
        assert node.pid is not None
        wires = [Wire(node.port) for _ in range(PARTITIONS)]
        wires[0].create_topic(TOPIC, PARTITIONS)
        time.sleep(1.0)
        empty = memory_bytes(node.pid)
        peak = empty["rss"]
        for _ in range(messages // BATCH // PARTITIONS // 5):
            drive(
                [
                    Flow(wire, frames_of([batch_of(BATCH, rng) for _ in range(5)], at), 2)
                    for at, wire in enumerate(wires)
                ]
            )
            peak = max(peak, memory_bytes(node.pid)["rss"])
        time.sleep(0.2 if quick else SETTLE_S)
        full = memory_bytes(node.pid)
        for wire in wires:
            wire.close()
    over = (full["rss"] - empty["rss"]) / _MB
    result = Result("memory", "RSS over an empty node, all pending for a month", "raw", messages, over, "MB", GOAL)
    result.details = {
        "empty MB": empty["rss"] / _MB,
        "over it at most, while producing MB": (peak - empty["rss"]) / _MB,
        "of it anonymous MB": (full["anonymous"] - empty["anonymous"]) / _MB,
    }
    return result
