"""The section `sql` of the configuration: what SQL may take. Where it is served: `listen.sql`.

sql      {http, connections, queries, timeout, rows, bytes, memory_bytes}
"""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from sandq.model import schema

_MIB, _GIB = 2**20, 2**30


class SqlSection(schema.Section):
    """Limits of SQL, which a process of its own serves."""

    http: bool = False
    """Whether HTTP answers statements, too (`POST /sql`, the console)."""
    connections: Annotated[int, schema.integer(1, 10_000)] = 100
    """Clients at a time."""
    queries: Annotated[int, schema.integer(1, 64)] = 4
    """That run at a time; the next ones wait."""
    timeout_ms: Annotated[int, schema.duration(100, 3_600_000)] = Field(default=30_000, alias="timeout")
    """Of a query, from its arrival to its last row."""
    rows: Annotated[int, schema.integer(1, 100_000_000)] = 1_000_000
    """That a query reads of the cluster, and that it answers, each."""
    bytes: Annotated[int, schema.size(_MIB, 16 * _GIB)] = 128 * _MIB
    """Of these rows in memory."""
    memory_bytes: Annotated[int, schema.size(16 * _MIB, 16 * _GIB)] = 128 * _MIB
    """For sorting, joining and grouping of a query, beside its rows."""
