"""The section `sql` of the configuration: limits of SQL. `listen.sql` says where it is served.

sql      {http, connections, queries, timeout, rows, bytes, memory_bytes}
"""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from sandq.model import schema

_MIB, _GIB = 2**20, 2**30


class SqlSection(schema.Section):
    """Limits of SQL, which is served by a separate process."""

    http: bool = False
    """Whether SQL statements are accepted over HTTP, too (`POST /sql`, the console)."""
    connections: Annotated[int, schema.integer(1, 10_000)] = 100
    """Maximum number of concurrent client connections."""
    queries: Annotated[int, schema.integer(1, 64)] = 4
    """Maximum number of queries that run at a time; further queries wait."""
    timeout_ms: Annotated[int, schema.duration(100, 3_600_000)] = Field(default=30_000, alias="timeout")
    """Timeout of a query in ms, from its arrival to its last row."""
    rows: Annotated[int, schema.integer(1, 100_000_000)] = 1_000_000
    """Maximum number of rows that a query reads from the cluster, and maximum number of rows that it returns."""
    bytes: Annotated[int, schema.size(_MIB, 16 * _GIB)] = 128 * _MIB
    """Maximum size of these rows in memory, in bytes."""
    memory_bytes: Annotated[int, schema.size(16 * _MIB, 16 * _GIB)] = 128 * _MIB
    """Memory for sorting, joining and grouping in a query, in bytes, in addition to its rows."""
