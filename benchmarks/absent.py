"""Measure the cost of cancelling unknown message ids next to large rows on disk."""

from __future__ import annotations

import random
import time
from functools import partial

from benchmarks.process import data_directory
from benchmarks.result import Measured, Row, Setting
from sandq.broker.replication.replica import PartitionReplica
from sandq.model import offsets
from sandq.model.batch import Column, encode
from sandq.model.names import TIMER
from sandq.model.settings import parse_settings
from sandq.partition import commands as c
from sandq.storage.stores import LevelStores

STORE = 1
IDS, QUICK_IDS = 1000, 20
ROWS_MS, ABSENT_MS, NOW_MS = 10, 5, 1_000_000
"""In ms: interval between the due times of two rows; distance from a row to the unknown id after it; time of the
cancel."""
ROUNDS = 3


def cancels(row_bytes: int, large_rows: int, setting: Setting) -> Measured:
    """Return the CPU time of one command. The ids are spread evenly after the rows."""
    ids, large_rows = setting.count(IDS, QUICK_IDS), setting.count(large_rows, 2)
    with data_directory(setting.where) as directory:
        stores = LevelStores(directory / "stores")
        try:
            replica = PartitionReplica(stores, STORE, 1, 0, parse_settings({}, TIMER).record())
            used_s = _cancelled(replica, stores, row_bytes, large_rows, ids)
        finally:
            stores.close()
    return Measured(ids, used_s * 1e3)


def _cancelled(replica: PartitionReplica, stores: LevelStores, row_bytes: int, large_rows: int, ids: int) -> float:
    index = 0

    def apply(at_ms: int, command: c.Command) -> None:
        nonlocal index
        index += 1
        replica.apply(index, c.Entry(at_ms, [command]).encode(), True)
        stores.write(replica.drain())

    apply(0, c.OpenGroup("g", "earliest"))
    rng = random.Random(0)
    for number in range(1, large_rows + 1):
        apply(number * ROWS_MS, c.Append(encode({Column.VALUE: [rng.randbytes(row_bytes)]})))
    apply(NOW_MS, c.Clock())
    stores.flush()
    used_s = 0.0
    for round_ in range(ROUNDS):
        named = [
            offsets.pack((1 + number % large_rows) * ROWS_MS + ABSENT_MS, 1, round_ * ids + number, 0)
            for number in range(ids)
        ]
        began_s = time.thread_time()
        apply(NOW_MS, c.Cancel([(c.TARGET_ID, one) for one in named]))
        used_s += time.thread_time() - began_s
    return used_s / ROUNDS


def _row(name: str, what: str, row_bytes: int, large_rows: int) -> Row:
    what = f"{IDS:,} unknown ids are cancelled together, {what}"
    return Row(f"absent_{name}", "held", what, partial(cancels, row_bytes, large_rows), "ms", driver="none")


_MB = 1_000_000
ROWS = (
    _row("small", "next to rows of 100 B", 100, 1000),
    _row("1mb", "next to a row of 1 MB", _MB, 1),
    _row("10mb", "next to a row of 10 MB", 10 * _MB, 1),
    _row("spread", "each next to a different row of 1 MB", _MB, IDS),
)
