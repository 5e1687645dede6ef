"""Limits of a query: rows, bytes, time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from sandq.sql.errors import TOO_BIG_SELECT, SqlError

MIB: Final = 1 << 20
STATEMENT_BYTES: Final = 256 * 1024
"""Maximum length of a statement with its parameters."""
STATEMENT_NODES: Final = 20_000
"""Maximum number of nodes of a parsed statement. Each node costs time before the first request to the cluster."""
NESTING: Final = 30
"""Maximum depth of brackets."""
VALUE_BYTES: Final = 64 * 1024
"""Maximum bytes of a variable."""
IDS: Final = 1000
"""Maximum number of messages or keys that a query names."""


@dataclass(frozen=True)
class Budget:
    """The limits of a query; each has a name in docs/sql.md."""

    scan_rows: int = 1_000_000
    """Maximum number of rows that are fetched from the cluster."""
    scan_bytes: int = 128 * MIB
    """Maximum bytes of these rows, as columns in memory."""
    result_rows: int = 1_000_000
    result_bytes: int = 128 * MIB
    memory_bytes: int = 128 * MIB
    """Maximum bytes for joining, sorting and grouping."""
    seconds: float = 30.0
    """Maximum time from the statement to its last row; `max_execution_time` may shorten it."""
    queries: int = 4
    """Maximum number of concurrent queries. Further queries wait; the wait counts as part of their time."""


class Held:
    """Counts the rows and bytes that a query has fetched. Raises SqlError (1104) above the limits."""

    def __init__(self, budget: Budget) -> None:
        self._budget = budget
        self.rows = 0
        self.bytes = 0

    def add(self, rows: int, size: int) -> None:
        """Count fetched rows and their bytes."""
        self.rows += rows
        self.bytes += size
        if self.rows > self._budget.scan_rows:
            raise SqlError(
                TOO_BIG_SELECT,
                f"the query reads more than {self._budget.scan_rows:,} rows (scan_rows): "
                "bound deliver_at more closely, or name partitions, keys or ids",
            )
        if self.bytes > self._budget.scan_bytes:
            raise SqlError(
                TOO_BIG_SELECT,
                f"the query reads more than {self._budget.scan_bytes:,} bytes (scan_bytes): "
                "bound deliver_at more closely, or select fewer columns",
            )
