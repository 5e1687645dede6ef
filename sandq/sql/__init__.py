"""SQL over a cluster, read-only: `docs/sql.md`. It stands on the client alone, and needs the extra `sql`.

A statement is MySQL's (sqlglot parses it). Of each table that it names, bounds are taken out of WHERE and asked of the
cluster through the client; over the rows that come, DuckDB answers the whole statement, in memory and locked up.
"""

from __future__ import annotations

from sandq.sql.budget import Budget
from sandq.sql.duck import Ducks
from sandq.sql.errors import SqlError
from sandq.sql.session import Answer, Session

__all__ = ["Answer", "Budget", "Ducks", "Session", "SqlError"]
