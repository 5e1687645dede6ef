"""Whether reading at the cursor stays as cheap as it was while all that was read before is trimmed behind it."""

from __future__ import annotations

import time
from itertools import pairwise

from benchmarks.consume import settle, subscribe
from benchmarks.process import Where, cpu_s, running
from benchmarks.produce import TOPIC, batch_of, frames_of
from benchmarks.result import Goal, Result
from benchmarks.wire import Flow, Wire, drive
from sandq.protocol.frames import Type

MESSAGES = 3_000_000
QUICK_MESSAGES = 40_000
BATCH = 10
"""A log row each: there are many rows to walk over, if anything did."""
PARTS = 10
GOAL = Goal(1.25, "x", at_least=False)


def trimming(where: Where, quick: bool) -> Result:
    """The node's CPU for the last tenth over that for the second (the first one warms up)."""
    messages = QUICK_MESSAGES if quick else MESSAGES
    with running(where, "trimming") as node:
        assert node.pid is not None
        wire = Wire(node.port)
        wire.create_topic(TOPIC, 1, lease="60s")
        drive([Flow(wire, frames_of([batch_of(BATCH)] * (messages // BATCH), 0), 64)])
        wire.socket.setblocking(True)
        began = time.perf_counter()
        subscribe(wire)
        marks = [cpu_s(node.pid)]
        got = acks = 0
        while got < messages:
            out = []
            for frame in wire.receive():
                if frame[0] == Type.DELIVER:
                    acks += 1
                    answer, count = settle(frame, acks + 1, each=False)
                    out.append(answer)
                    got += count
            if out:
                wire.socket.sendall(b"".join(out))
            if got >= len(marks) * messages // PARTS:
                marks.append(cpu_s(node.pid))
        seconds = time.perf_counter() - began
        wire.close()
    parts = [after - before for before, after in pairwise(marks)]
    value = parts[-1] / parts[1] if parts[1] else 1.0
    what = f"CPU for the last tenth over the second, batches of {BATCH}, trimmed as they are acked"
    result = Result("trimming", what, "raw", messages, value, "x", GOAL)
    result.cpu_us = sum(parts) * 1e6 / messages
    result.details = {"msg/s": messages / seconds, "most of a tenth, x": max(parts[1:]) / parts[1] if parts[1] else 1.0}
    return result
