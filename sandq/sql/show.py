"""SHOW and DESCRIBE: rows that are known without a request to the cluster."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import pyarrow as pa
from sqlglot import exp

from sandq.sql.catalog import CATALOG, CHARSET, COLLATION
from sandq.sql.errors import NO_DATABASE, SYNTAX, UNKNOWN_DATABASE, UNKNOWN_TABLE, SqlError
from sandq.sql.schema import DATABASES, INFORMATION_SCHEMA, TABLES, Kind, Table, find_table
from sandq.sql.statement import not_supported
from sandq.sql.variables import Variables

LIKE_COLUMN: Final = {
    "VARIABLES": "Variable_name",
    "STATUS": "Variable_name",
    "DATABASES": "Database",
    "COLUMNS": "Field",
    "COLLATION": "Collation",
    "CHARACTER SET": "Charset",
    "TABLE STATUS": "Name",
}
"""The column to which LIKE applies, by the kind of SHOW."""

_EMPTY: Final = {
    "WARNINGS": "Level Code# Message",
    "ERRORS": "Level Code# Message",
    "TRIGGERS": "Trigger Event Table Statement Timing Created sql_mode Definer",
    "EVENTS": "Db Name Definer Type Status",
    "PLUGINS": "Name Status Type Library License",
    "PROCEDURE STATUS": "Db Name Type Definer",
    "FUNCTION STATUS": "Db Name Type Definer",
    "PRIVILEGES": "Privilege Context Comment",
    "OPEN TABLES": "Database Table In_use# Name_locked#",
    "PROFILES": "Query_ID# Duration Query",
    "MASTER STATUS": "File Position# Binlog_Do_DB Binlog_Ignore_DB Executed_Gtid_Set",
    "BINARY LOGS": "Log_name File_size# Encrypted",
    "SLAVE STATUS": "Slave_IO_State",
    "REPLICA STATUS": "Replica_IO_State",
}
_INDEX: Final = (
    "Table Non_unique# Key_name Seq_in_index# Column_name Collation Cardinality# Sub_part# Packed Null Index_type "
    "Comment Index_comment Visible Expression"
)


def shown(show: exp.Show, database: str | None, variables: Variables, status: Sequence[tuple[str, str]]) -> Any:
    """Return the rows (pyarrow.Table) of a SHOW, before LIKE and WHERE. Raises SqlError."""
    what = show.name.upper()
    if what == "VARIABLES":
        return rows_of("Variable_name Value", [*variables.rows()])
    if what == "STATUS":
        return rows_of("Variable_name Value", status)
    if what in ("DATABASES", "SCHEMAS"):
        return rows_of("Database", [(name,) for name in DATABASES])
    if what == "TABLES":
        of = _database(show, database)
        names = _names(of)
        if show.args.get("full"):
            kind = "SYSTEM VIEW" if of == INFORMATION_SCHEMA else "BASE TABLE"
            return rows_of(f"Tables_in_{of} Table_type", [(name, kind) for name in names])
        return rows_of(f"Tables_in_{of}", [(name,) for name in names])
    if what == "TABLE STATUS":
        of = _database(show, database)
        columns = "Name Engine Version# Row_format Rows# Collation Comment"
        tables = [table for table in TABLES.values() if table.database == of]
        return rows_of(columns, [(one.name, "sandq", 10, "Dynamic", None, COLLATION, one.comment) for one in tables])
    if what == "COLUMNS":
        return _columns(_table(show, database), is_full=bool(show.args.get("full")))
    if what == "CREATE TABLE":
        return _create(_table(show, database))
    if what in ("INDEX", "INDEXES", "KEYS"):
        return rows_of(_INDEX, [])
    if what == "ENGINES":
        return CATALOG.table("engines").rename_columns(
            ["Engine", "Support", "Comment", "Transactions", "XA", "Savepoints"]
        )
    if what == "COLLATION":
        return CATALOG.table("collations").rename_columns(
            ["Collation", "Charset", "Id", "Default", "Compiled", "Sortlen", "Pad_attribute"]
        )
    if what in ("CHARACTER SET", "CHARSET"):
        return rows_of("Charset Description Default_collation Maxlen#", [(CHARSET, "UTF-8 Unicode", COLLATION, 4)])
    if what == "CREATE DATABASE":
        of = show.text("target") or show.text("db") or database or ""
        return rows_of("Database Create_Database", [(of, f"CREATE DATABASE `{of}`")])
    if what == "GRANTS":
        return rows_of("Grants", [("GRANT SELECT ON *.*: what your rights in sandq allow (docs/security.md)",)])
    if what in _EMPTY:
        return rows_of(_EMPTY[what], [])
    raise not_supported(f"SHOW {what}")


def rows_of(columns: str, rows: Sequence[Sequence[Any]]) -> Any:
    """Return a table whose columns are texts, or whole numbers if their name ends with #."""
    fields = [(name.rstrip("#"), pa.int64() if name.endswith("#") else pa.string()) for name in columns.split(" ")]
    schema = pa.schema([(name.replace("Create_Database", "Create Database"), kind) for name, kind in fields])
    arrays = [pa.array([row[place] for row in rows], field.type) for place, field in enumerate(schema)]
    return pa.Table.from_arrays(arrays, schema=schema)


def described(node: exp.Table, database: str | None) -> Any:
    """Return the rows of DESCRIBE."""
    return _columns(_find((node.db or database or "").lower(), node.name), is_full=False)


def _database(show: exp.Show, database: str | None) -> str:
    """Return the database of a SHOW."""
    of = (show.text("db") or database or "").lower()
    if not of:
        raise SqlError(NO_DATABASE, "No database selected: USE sandq")
    if of not in DATABASES:
        raise SqlError(UNKNOWN_DATABASE, f"Unknown database '{of}': there are {', '.join(DATABASES)}")
    return of


def _names(database: str) -> list[str]:
    """Return the names of a database's tables."""
    if database == INFORMATION_SCHEMA:
        return [name.upper() for name in CATALOG.names]
    return [name for of, name in TABLES if of == database]


def _table(show: exp.Show, database: str | None) -> Table | str:
    """Return the table of a SHOW, as `_find` does."""
    target = show.args.get("target")
    if isinstance(target, exp.Table):
        return _find((target.db or show.text("db") or database or "").lower(), target.name)
    name = show.text("target")
    if not name:
        raise SqlError(SYNTAX, "a table is expected")
    of, _, last = name.rpartition(".")
    return _find((show.text("db") or of or database or "").lower(), last)


def _find(database: str, name: str) -> Table | str:
    """Return a table; its name if it belongs to information_schema. Raises SqlError if it does not exist."""
    if not database:
        raise SqlError(NO_DATABASE, "No database selected: USE sandq")
    name = name.lower()
    if database == INFORMATION_SCHEMA and name in CATALOG.names:
        return name
    table = find_table(database, name)
    if table is None:
        raise SqlError(UNKNOWN_TABLE, f"Table '{database}.{name}' doesn't exist")
    return table


def _columns(table: Table | str, *, is_full: bool) -> Any:
    """Return the rows of SHOW COLUMNS. `is_full`: with the additional columns of SHOW FULL COLUMNS."""
    rows: list[tuple[Any, ...]] = []
    if isinstance(table, str):
        for field in CATALOG.table(table).schema:
            kind = "bigint" if field.type == pa.int64() else "varchar(255)"
            rows.append((field.name, kind, COLLATION, "YES", "", None, "", "select", ""))
    else:
        for column in table.columns:
            is_text = column.kind not in (Kind.BYTES, Kind.JSON) and column.kind.value.arrow == pa.string()
            collation = COLLATION if is_text else None
            rows.append(
                (column.name, column.kind.value.column, collation, "YES", "", None, "", "select", column.comment)
            )
    if is_full:
        return rows_of("Field Type Collation Null Key Default Extra Privileges Comment", rows)
    return rows_of("Field Type Null Key Default Extra", [(*row[:2], *row[3:7]) for row in rows])


def _create(table: Table | str) -> Any:
    """Return the row of SHOW CREATE TABLE."""
    if isinstance(table, str):
        raise not_supported("SHOW CREATE TABLE of information_schema")
    lines = [f"  `{one.name}` {one.kind.value.column} DEFAULT NULL COMMENT '{one.comment}'" for one in table.columns]
    text = f"CREATE TABLE `{table.name}` (\n" + ",\n".join(lines)
    text += f"\n) ENGINE=sandq DEFAULT CHARSET={CHARSET} COLLATE={COLLATION} COMMENT='{table.comment}'"
    schema = pa.schema([("Table", pa.string()), ("Create Table", pa.string())])
    return pa.Table.from_arrays([pa.array([table.name]), pa.array([text])], schema=schema)
