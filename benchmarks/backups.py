"""Measure how fast backups are created and restored, and how late messages are meanwhile."""

from __future__ import annotations

import os
import threading
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path

import anyio

import sandq
from benchmarks.driver import Load, node_with
from benchmarks.process import Meter, MeteredNode
from benchmarks.produce import TOPIC
from benchmarks.result import Goal, Measured, Row, Setting
from sandq.backup import create_backup, open_location, restore_backup
from sandq.backup.locations import Location
from sandq.backup.manifest import Manifest
from sandq.model.features import KNOWN

FAST = Goal(60, "MB/s")
LATENESS = Goal(50, "ms", at_least=False)
KEPT = "kept"
VALUE_BYTES = 1000
TOTAL_BYTES, QUICK_BYTES = 1_000_000_000, 2_000_000
BESIDE_BYTES = 300_000_000
PARTITIONS = 4
PER_S = 1000
MESSAGES, QUICK_MESSAGES = 20_000, 500
LEAD_MS, QUICK_LEAD_MS = 1000, 15_000
RATE = 20_000_000
"""Rate limit of backups that run together with other work. Backups that run alone have no limit."""
AT_ONCE = 5000
RISEN_S = 30.0


async def _filled(client: sandq.Client, total: int) -> None:
    """Create a topic of this size, in messages of `VALUE_BYTES` that do not compress, due in hours."""
    await client.admin.create_topic(KEPT, partitions=PARTITIONS)
    left = max(1, total // VALUE_BYTES)
    while left:
        count = min(left, AT_ONCE)
        await client.produce_many(KEPT, [{"value": os.urandom(VALUE_BYTES), "delay": "5h"} for _ in range(count)])
        left -= count


async def _until_risen(client: sandq.Client) -> None:
    with anyio.fail_after(RISEN_S):
        while (await client.admin.cluster())["feature_level"] < KNOWN.highest:  # noqa: ASYNC110
            await anyio.sleep(0.05)


Work = Callable[[sandq.Client, Location], Awaitable[Manifest]]


def _timed(
    setting: Setting, prepare: Work | None, work: Callable[[sandq.Client, Location, str], Awaitable[int]]
) -> Measured:
    """Return MB/s of rows."""

    async def run(node: MeteredNode) -> tuple[int, float, Meter]:
        async with sandq.connect(f"127.0.0.1:{node.port}", timeout="60s", delivery_timeout="120s") as client:
            await _until_risen(client)
            await _filled(client, setting.count(TOTAL_BYTES, QUICK_BYTES))
            location = open_location(str(Path(node.directory) / "backups"))
            made = "" if prepare is None else (await prepare(client, location)).backup_id
            meter, began_s = Meter(node.metered), anyio.current_time()
            size = await work(client, location, made)
            return size, anyio.current_time() - began_s, meter

    with node_with(setting, TOPIC) as node:
        size, seconds, meter = anyio.run(partial(run, node), backend="trio")
        used = meter.stop()
    messages = size // VALUE_BYTES
    return Measured(messages, size / 1e6 / seconds, cpu_us=used.cpu_s * 1e6 / messages, details={"MB": size / 1e6})


async def _create(client: sandq.Client, location: Location, _: str) -> int:
    return (await create_backup(client, location, topics=[KEPT])).plain_bytes


async def _restore(client: sandq.Client, location: Location, backup_id: str) -> int:
    return (await restore_backup(client, location, backup_id, prefix="r-", verify=False)).bytes


def create(setting: Setting) -> Measured:
    """Create a backup of 1 GB."""
    return _timed(setting, None, _create)


def restore(setting: Setting) -> Measured:
    """Restore a backup of 1 GB under a different topic name."""
    return _timed(setting, lambda client, location: create_backup(client, location, topics=[KEPT]), _restore)


class _Beside:
    """Create and restore backups in a loop, in a thread, until it is stopped."""

    def __init__(self, node: MeteredNode, total: int) -> None:
        self._node = node
        self._total = total
        self._ready, self._over = threading.Event(), threading.Event()
        self._error: Exception | None = None
        self.rounds = 0
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def ready(self) -> None:
        """Wait until the thread can run backups. Call it once the topic exists."""
        self._ready.wait()

    def stop(self) -> None:
        """Stop the loop. Raises the error that ended it earlier."""
        self._over.set()
        self._thread.join()
        if self._error is not None:
            raise self._error

    def _run(self) -> None:
        try:
            anyio.run(self._work, backend="trio")
        except Exception as error:
            self._error = error
        finally:
            self._ready.set()

    async def _work(self) -> None:
        location = open_location(str(Path(self._node.directory) / "backups"))
        async with sandq.connect(f"127.0.0.1:{self._node.port}", timeout="60s", delivery_timeout="120s") as client:
            await _until_risen(client)
            await _filled(client, self._total)
            self._ready.set()
            while not self._over.is_set():
                made = await create_backup(client, location, topics=[KEPT], rate=RATE)
                await restore_backup(client, location, made.backup_id, prefix="r-", verify=False, rate=RATE)
                await client.admin.delete_topic(f"r-{KEPT}")
                self.rounds += 1


def lateness(setting: Setting) -> Measured:
    """Deliver messages that are due evenly, while backups are created and restored."""
    messages = setting.count(MESSAGES, QUICK_MESSAGES)
    with node_with(setting, TOPIC, lease="60s") as node:
        beside = _Beside(node, setting.count(BESIDE_BYTES, QUICK_BYTES))
        beside.ready()
        lead_ms = setting.count(LEAD_MS, QUICK_LEAD_MS)
        with Load("lateness", port=node.port, messages=messages, per_s=PER_S, lead_ms=lead_ms) as load:
            load.ready()
            meter = Meter(node.metered)
            load.go()
            result = load.result()
            used = meter.stop()
        beside.stop()
    measured = Measured.of(result, used)
    assert measured.latency is not None
    measured.value = measured.latency.at(0.99)
    measured.cpu_us = measured.fsyncs = None
    measured.details["backups and restores"] = float(beside.rounds)
    return measured


_WHAT = f"1 GB in messages of {VALUE_BYTES:,} B, {PARTITIONS} partitions"
ROWS = (
    Row("backup_create", "backups", f"{_WHAT}: a backup to a directory", create, "MB/s", FAST, "client"),
    Row("backup_restore", "backups", f"{_WHAT}: restored under a different name", restore, "MB/s", FAST, "client"),
    Row(
        "backup_lateness",
        "backups",
        f"{PER_S:,} messages/s due, during backups and restores of 300 MB at 20 MB/s: p99",
        lateness,
        "ms",
        LATENESS,
        "client",
    ),
)
