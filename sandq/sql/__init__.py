"""Read-only SQL over a cluster (`docs/sql.md`). This package uses only the client, and needs the extra `sql`.

Statements are in MySQL's dialect; sqlglot parses them. For each table of a statement, this package extracts bounds from
WHERE, and fetches the rows within these bounds through the client. DuckDB then evaluates the whole statement over these
rows, in memory and without access to files or settings.
"""

from __future__ import annotations

from sandq.sql.budget import Budget
from sandq.sql.duck import Ducks
from sandq.sql.errors import SqlError
from sandq.sql.session import Answer, Session

__all__ = ["Answer", "Budget", "Ducks", "Session", "SqlError"]
