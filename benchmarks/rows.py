"""All rows of the program, by name."""

from __future__ import annotations

from benchmarks import (
    absent,
    abuse,
    access,
    backups,
    cluster,
    cluster_moves,
    console,
    consume,
    held,
    keys,
    lateness,
    outage,
    pending,
    produce,
    ranked,
    scheduled,
    schedules,
    shape,
    small,
    spark,
    sql,
    tls,
)
from benchmarks.result import Row

MEASURES: dict[str, Row] = {
    row.name: row
    for module in (
        produce,
        consume,
        small,
        lateness,
        outage,
        scheduled,
        ranked,
        schedules,
        pending,
        held,
        absent,
        cluster,
        cluster_moves,
        shape,
        keys,
        tls,
        access,
        abuse,
        console,
        backups,
        sql,
        spark,
    )
    for row in module.ROWS
}
ALIASES = {"memory": "pending_1m"}
"""Other names for rows."""
