"""Measure the effect of the number of partitions and the size of messages."""

from __future__ import annotations

from functools import partial

from benchmarks.produce import VALUE, produce
from benchmarks.result import Measured, Row, Setting

PARTITIONS = (1, 4, 16, 64)
SIZES = {"10b": 10, "100b": 100, "1kb": 1000, "10kb": 10_000, "100kb": 100_000, "1mb": 1_000_000}
BATCH_BYTES = 100_000
TOTAL_BYTES = 256_000_000
QUICK_BYTES = 16_000_000
CONNECTIONS = 16
WINDOW = 4


def sized(value_bytes: int, setting: Setting) -> Measured:
    """Size of a batch in bytes, unless one message is larger."""
    size = max(1, BATCH_BYTES // value_bytes)
    each = size * value_bytes * CONNECTIONS
    measured = produce(
        CONNECTIONS, size, TOTAL_BYTES // each, max(1, QUICK_BYTES // each), setting,
        window=WINDOW, value_bytes=value_bytes,
    )  # fmt: skip
    measured.details["MB/s"] = measured.value * value_bytes / 1e6
    return measured


ROWS = tuple(
    Row(
        f"partitions_{count}",
        "shape",
        f"{count} partition{'s' if count > 1 else ''}, batches of 100 x {len(VALUE)} B, {CONNECTIONS} connections",
        partial(produce, CONNECTIONS, 100, 1000, 40, partitions=count, window=16),
    )
    for count in PARTITIONS
) + tuple(
    Row(
        f"size_{name}",
        "shape",
        f"values of {size:,} B, {max(1, BATCH_BYTES // size):,} a batch, "
        f"{CONNECTIONS} connections, {WINDOW} in flight on each",
        partial(sized, size),
    )
    for name, size in SIZES.items()
)
