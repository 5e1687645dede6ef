"""information_schema: the tables that tools read to show a database."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import pyarrow as pa

from sandq.sql.schema import DATABASES, INFORMATION_SCHEMA, TABLES, Kind

COLLATION: Final = "utf8mb4_bin"
CHARSET: Final = "utf8mb4"
_INT: Final = pa.int64()
_TEXT: Final = pa.string()

_TABLES: Final = (
    "TABLE_CATALOG TABLE_SCHEMA TABLE_NAME TABLE_TYPE ENGINE VERSION# ROW_FORMAT TABLE_ROWS# AVG_ROW_LENGTH# "
    "DATA_LENGTH# MAX_DATA_LENGTH# INDEX_LENGTH# DATA_FREE# AUTO_INCREMENT# CREATE_TIME UPDATE_TIME CHECK_TIME "
    "TABLE_COLLATION CHECKSUM# CREATE_OPTIONS TABLE_COMMENT"
)
_COLUMNS: Final = (
    "TABLE_CATALOG TABLE_SCHEMA TABLE_NAME COLUMN_NAME ORDINAL_POSITION# COLUMN_DEFAULT IS_NULLABLE DATA_TYPE "
    "CHARACTER_MAXIMUM_LENGTH# CHARACTER_OCTET_LENGTH# NUMERIC_PRECISION# NUMERIC_SCALE# DATETIME_PRECISION# "
    "CHARACTER_SET_NAME COLLATION_NAME COLUMN_TYPE COLUMN_KEY EXTRA PRIVILEGES COLUMN_COMMENT GENERATION_EXPRESSION "
    "SRS_ID#"
)
_EMPTY: Final = {
    "statistics": "TABLE_CATALOG TABLE_SCHEMA TABLE_NAME NON_UNIQUE# INDEX_SCHEMA INDEX_NAME SEQ_IN_INDEX# COLUMN_NAME "
    "COLLATION CARDINALITY# SUB_PART# PACKED NULLABLE INDEX_TYPE COMMENT INDEX_COMMENT IS_VISIBLE EXPRESSION",
    "key_column_usage": "CONSTRAINT_CATALOG CONSTRAINT_SCHEMA CONSTRAINT_NAME TABLE_CATALOG TABLE_SCHEMA TABLE_NAME "
    "COLUMN_NAME ORDINAL_POSITION# POSITION_IN_UNIQUE_CONSTRAINT# REFERENCED_TABLE_SCHEMA REFERENCED_TABLE_NAME "
    "REFERENCED_COLUMN_NAME",
    "table_constraints": "CONSTRAINT_CATALOG CONSTRAINT_SCHEMA CONSTRAINT_NAME TABLE_SCHEMA TABLE_NAME CONSTRAINT_TYPE "
    "ENFORCED",
    "referential_constraints": "CONSTRAINT_CATALOG CONSTRAINT_SCHEMA CONSTRAINT_NAME UNIQUE_CONSTRAINT_CATALOG "
    "UNIQUE_CONSTRAINT_SCHEMA UNIQUE_CONSTRAINT_NAME MATCH_OPTION UPDATE_RULE DELETE_RULE TABLE_NAME "
    "REFERENCED_TABLE_NAME",
    "check_constraints": "CONSTRAINT_CATALOG CONSTRAINT_SCHEMA CONSTRAINT_NAME CHECK_CLAUSE",
    "routines": "SPECIFIC_NAME ROUTINE_CATALOG ROUTINE_SCHEMA ROUTINE_NAME ROUTINE_TYPE DATA_TYPE ROUTINE_COMMENT",
    "parameters": "SPECIFIC_CATALOG SPECIFIC_SCHEMA SPECIFIC_NAME ORDINAL_POSITION# PARAMETER_MODE PARAMETER_NAME "
    "DATA_TYPE",
    "triggers": "TRIGGER_CATALOG TRIGGER_SCHEMA TRIGGER_NAME EVENT_MANIPULATION EVENT_OBJECT_TABLE ACTION_STATEMENT "
    "ACTION_TIMING",
    "events": "EVENT_CATALOG EVENT_SCHEMA EVENT_NAME DEFINER STATUS",
    "views": "TABLE_CATALOG TABLE_SCHEMA TABLE_NAME VIEW_DEFINITION CHECK_OPTION IS_UPDATABLE DEFINER SECURITY_TYPE",
    "partitions": "TABLE_CATALOG TABLE_SCHEMA TABLE_NAME PARTITION_NAME",
    "column_privileges": "GRANTEE TABLE_SCHEMA TABLE_NAME COLUMN_NAME PRIVILEGE_TYPE IS_GRANTABLE",
    "table_privileges": "GRANTEE TABLE_SCHEMA TABLE_NAME PRIVILEGE_TYPE IS_GRANTABLE",
    "schema_privileges": "GRANTEE TABLE_SCHEMA PRIVILEGE_TYPE IS_GRANTABLE",
    "user_privileges": "GRANTEE TABLE_CATALOG PRIVILEGE_TYPE IS_GRANTABLE",
    "files": "FILE_ID# FILE_NAME TABLESPACE_NAME ENGINE",
}
_KEYWORDS: Final = ("key", "group", "partition", "range", "order", "select", "where", "limit", "table", "index")


class Catalog:
    """Tables of information_schema by name; created once."""

    def __init__(self) -> None:
        self._made = {
            "schemata": _made(
                "CATALOG_NAME SCHEMA_NAME DEFAULT_CHARACTER_SET_NAME DEFAULT_COLLATION_NAME SQL_PATH",
                [("def", name, CHARSET, COLLATION, None) for name in DATABASES],
            ),
            "character_sets": _made(
                "CHARACTER_SET_NAME DEFAULT_COLLATE_NAME DESCRIPTION MAXLEN#",
                [(CHARSET, COLLATION, "UTF-8 Unicode", 4), ("binary", "binary", "Binary pseudo charset", 1)],
            ),
            "collations": _made(
                "COLLATION_NAME CHARACTER_SET_NAME ID# IS_DEFAULT IS_COMPILED SORTLEN# PAD_ATTRIBUTE",
                [
                    (COLLATION, CHARSET, 46, "Yes", "Yes", 1, "PAD SPACE"),
                    ("utf8mb4_general_ci", CHARSET, 45, "", "Yes", 1, "PAD SPACE"),
                    ("utf8mb4_0900_ai_ci", CHARSET, 255, "", "Yes", 0, "NO PAD"),
                    ("binary", "binary", 63, "Yes", "Yes", 1, "NO PAD"),
                ],
            ),
            "engines": _made(
                "ENGINE SUPPORT COMMENT TRANSACTIONS XA SAVEPOINTS",
                [("sandq", "DEFAULT", "A topic broker, read-only", "NO", "NO", "NO")],
            ),
            "keywords": _made("WORD RESERVED#", [(word.upper(), 1) for word in _KEYWORDS]),
        }
        for name, columns in _EMPTY.items():
            self._made[name] = _made(columns, [])
        self._made["tables"] = _made(_TABLES, [*self._table_rows()])
        self._made["columns"] = _made(_COLUMNS, [*self._column_rows()])

    @property
    def names(self) -> Sequence[str]:
        """Return the names of the tables of information_schema, in lower case."""
        return list(self._made)

    def table(self, name: str) -> Any:
        """Return one table of information_schema (pyarrow.Table)."""
        return self._made[name]

    def _table_rows(self) -> list[tuple[Any, ...]]:
        """Return the rows of `tables`."""
        rows: list[tuple[str | None, ...]] = [
            ("def", table.database, table.name, "BASE TABLE", "sandq", table.comment) for table in TABLES.values()
        ]
        rows += [
            ("def", INFORMATION_SCHEMA, name.upper(), "SYSTEM VIEW", None, "")
            for name in [*self._made, "tables", "columns"]
        ]
        nothing: list[None] = [None]
        return [(*row[:5], 10, "Dynamic", *nothing * 10, COLLATION, None, "", row[5]) for row in rows]

    def _column_rows(self) -> list[tuple[Any, ...]]:
        """Return the rows of `columns`: columns of sandq's tables, then columns of information_schema."""
        rows: list[tuple[Any, ...]] = []
        for table in TABLES.values():
            for place, column in enumerate(table.columns, 1):
                kind = column.kind
                is_text = kind.value.arrow == _TEXT and kind is not Kind.JSON
                chars = {
                    Kind.NAME: 255,
                    Kind.OFFSET: 26,
                    Kind.WORD: 32,
                    Kind.TEXT: 2**32 - 1,
                    Kind.BYTES: 2**32 - 1,
                }.get(kind)
                digits = {Kind.INT: 10, Kind.BIGINT: 19, Kind.DOUBLE: 22, Kind.BOOL: 3}.get(kind)
                rows.append(
                    (
                        *("def", table.database, table.name, column.name, place, None, "YES", kind.value.data),
                        *(chars, None if chars is None else min(chars * 4, 2**32 - 1), digits),
                        *(
                            0 if digits is not None and kind is not Kind.DOUBLE else None,
                            3 if kind is Kind.TIME else None,
                        ),
                        *((CHARSET, COLLATION) if is_text else (None, None)),
                        *(kind.value.column, "", "", "select", column.comment, "", None),
                    )
                )
        for name, made in self._made.items():
            for place, field in enumerate(made.schema, 1):
                data = "bigint" if field.type == _INT else "varchar"
                full = "bigint" if field.type == _INT else "varchar(255)"
                size = None if field.type == _INT else 255
                rows.append(
                    (
                        *("def", INFORMATION_SCHEMA, name.upper(), field.name, place, None, "YES", data, size, size),
                        *(None, None, None, CHARSET, COLLATION, full, "", "", "select", "", "", None),
                    )
                )
        return rows


def _made(columns: str, rows: Sequence[Sequence[Any]]) -> Any:
    """Return a table. `columns`: names of columns; a name that ends with # is a whole number, others are texts."""
    names = columns.split()
    schema = pa.schema([(name.rstrip("#"), _INT if name.endswith("#") else _TEXT) for name in names])
    arrays = [pa.array([row[place] for row in rows], field.type) for place, field in enumerate(schema)]
    return pa.Table.from_arrays(arrays, schema=schema)


CATALOG: Final = Catalog()
