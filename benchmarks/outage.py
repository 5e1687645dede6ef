"""Measure an outage of a service that handlers call: whether the healthy tenants of a fair topic notice it."""

from __future__ import annotations

import threading
import time
from functools import partial
from types import TracebackType

from benchmarks.driver import measure, node_with
from benchmarks.process import memory_bytes
from benchmarks.produce import TOPIC
from benchmarks.result import Goal, Measured, Row, Setting

RATIO = Goal(2, "x", at_least=False)
PER_S = 2000
SECONDS = 120
BACKOFF = {"kind": "fixed", "first": "30s"}
SAMPLE_S = 2.0
_MB = 1_000_000


class _Memory:
    """Samples the anonymous memory of a process while the block runs."""

    def __init__(self, pid: int) -> None:
        self.most = 0
        self._pid = pid
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._sample)

    def __enter__(self) -> _Memory:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._is_over.set()
        self._thread.join()

    def _sample(self) -> None:
        while not self._is_over.wait(SAMPLE_S):
            self.most = max(self.most, memory_bytes(self._pid)["anonymous"])


def outage(setting: Setting) -> Measured:
    """Run the same load without and with an outage. The value is the 99th percentile of the lateness of healthy tenants
    during the outage, divided by that without it."""
    seconds = setting.count(SECONDS, 3)
    found: dict[bool, Measured] = {}
    most: dict[bool, float] = {}
    for is_down in (False, True):
        backoff = BACKOFF if not setting.quick else BACKOFF | {"first": "1s"}
        with node_with(setting, TOPIC, 1, kind="fair", max_attempts="none", backoff=backoff) as node:
            assert node.pid is not None
            time.sleep(0.2)
            with _Memory(node.pid) as memory:
                found[is_down] = measure(
                    node.metered, "outage", address=node.address, seconds=seconds, per_s=PER_S, is_down=is_down
                )
            most[is_down] = memory.most / _MB
    usual, measured = found[False], found[True]
    assert usual.latency is not None and measured.latency is not None
    measured.value = measured.latency.at(0.99) / usual.latency.at(0.99)
    measured.details |= {
        "usual p99 ms": usual.latency.at(0.99),
        "usual CPU us": usual.cpu_us or 0.0,
        "usual MB": most[False],
        "MB": most[True],
    }
    return measured


ROWS = (
    Row(
        "outage",
        "lateness",
        f"{PER_S:,}/s of 20 tenants, half of which fail for {SECONDS} s, back-off 30 s: lateness of the others",
        partial(outage),
        "x of the same load without failures",
        RATIO,
    ),
)
