"""A producer at a steady rate, in a process of its own: `python -m benchmarks.busy PORT TOPIC MESSAGES_PER_S`."""

from __future__ import annotations

import sys
import time

from benchmarks.produce import batch_of
from benchmarks.wire import Wire
from sandq.protocol.requests import Produce

BATCH = 100


def main(port: int, topic: str, per_s: int) -> None:
    """Until it is killed. When the node falls behind, so does this: an answer is awaited for every batch."""
    wire = Wire(port)
    batch = batch_of(BATCH)
    began, sent = time.monotonic(), 0
    while True:
        wire.call(Produce(topic, 0, 0, 0, 0, 0, batch).frame)
        sent += BATCH
        ahead_s = sent / per_s - (time.monotonic() - began)
        if ahead_s > 0:
            time.sleep(ahead_s)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2], int(sys.argv[3]))
