"""What one query may take: rows, bytes, time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from sandq.sql.errors import TOO_BIG_SELECT, SqlError

MIB: Final = 1 << 20
STATEMENT_BYTES: Final = 256 * 1024
"""The longest statement, its parameters included."""
STATEMENT_NODES: Final = 20_000
"""Parts of a statement once it is parsed; each costs time before anything is asked."""
NESTING: Final = 30
"""Brackets within brackets."""
VALUE_BYTES: Final = 64 * 1024
"""Of a variable."""
IDS: Final = 1000
"""Messages or keys that one query names."""


@dataclass(frozen=True)
class Budget:
    """The limits of a query; each has a name in docs/sql.md."""

    scan_rows: int = 1_000_000
    """Rows that are fetched from the cluster."""
    scan_bytes: int = 128 * MIB
    """Bytes of these, as columns in memory."""
    result_rows: int = 1_000_000
    result_bytes: int = 128 * MIB
    memory_bytes: int = 128 * MIB
    """What joins, sorts and groups may hold."""
    seconds: float = 30.0
    """From the statement to its last row; `max_execution_time` may shorten it."""
    queries: int = 4
    """That run at a time; the next ones wait, within their seconds."""


class Held:
    """Count what a query has fetched; raise SqlError (1104) when it is too much."""

    def __init__(self, budget: Budget) -> None:
        self._budget = budget
        self.rows = 0
        self.bytes = 0

    def add(self, rows: int, size: int) -> None:
        """Add rows that have just come, and their bytes."""
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
