"""Measure how abusive clients affect others: eight of one kind run while a victim produces and waits.

docs/operations.md lists the limits for each kind; tests/integration/test_abuse.py tests them. This measures the rest:
the victim's response time, and the node's use of processor and memory.
"""

from __future__ import annotations

import threading
import time
from contextlib import ExitStack, suppress
from functools import partial

from benchmarks.driver import TOGETHER_S, Load
from benchmarks.load.abuse import KINDS, fill
from benchmarks.process import Meter, MeteredNode, memory_bytes, running
from benchmarks.result import Goal, Measured, Row, Setting

P99 = Goal(50, "ms", at_least=False)
MEMORY_MB = 256
"""Goal for the growth of the node's memory during the load, in MB."""
ABUSERS = 8
SETTLE_S = 1.0
LOOK_S = 0.02


def beside(kind: str, setting: Setting) -> Measured:
    """Measure a victim while abusers of this kind run. The value is the 99th percentile of its response times.

    `kind`: empty to measure the victim alone."""
    seconds = float(setting.count(6, 2))
    with running(setting.where, setting.name) as node, ExitStack() as stack:
        assert node.pid is not None
        http = node.metered[0][1]
        fill(node.port)
        victim = stack.enter_context(Load("victim", port=node.port, seconds=seconds))
        abusers = [
            stack.enter_context(Load("abuse", kind=kind, port=node.port, http=http, seconds=seconds))
            for _ in range(ABUSERS if kind else 0)
        ]
        for load in (victim, *abusers):
            load.ready()
        time.sleep(SETTLE_S)
        before, meter = memory_bytes(node.pid)["anonymous"], Meter(node.metered)
        memory = _Highest(node)
        at_s = time.perf_counter() + TOGETHER_S
        for load in (*abusers, victim):
            load.go(at_s)
        result = victim.result()
        used_s = meter.cpu_s()
        asked = sum(load.result().messages for load in abusers)
        highest = memory.stop()
    assert result.latency is not None
    return Measured(
        result.messages,
        result.latency.at(0.99),
        latency=result.latency,
        details={
            "MB over before": (highest - before) / 1e6,
            "node's CPU %": used_s / result.seconds * 100,
            "asked": float(asked),
            **result.details,
        },
    )


class _Highest:
    """The largest memory of a node, sampled all the time."""

    def __init__(self, node: MeteredNode) -> None:
        self._pid = node.pid or 0
        self._bytes = 0
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._sample, daemon=True)
        self._thread.start()

    def _sample(self) -> None:
        while not self._ended.wait(LOOK_S):
            with suppress(OSError, KeyError):  # the process is about to end
                self._bytes = max(self._bytes, memory_bytes(self._pid)["anonymous"])

    def stop(self) -> int:
        self._ended.set()
        self._thread.join()
        return self._bytes


def _row(kind: str, what: str) -> Row:
    return Row(f"abuse_{kind or 'none'}", "abuse", what, partial(beside, kind), "ms p99", P99)


ROWS = (
    _row("", "one client that produces and waits, alone"),
    *[_row(kind, f"the same with {ABUSERS} abusers: {kind.replace('_', ' ')}") for kind in KINDS],
)
