"""Errors of SQL. Each has a number and a state of MySQL, and a message that says what to do."""

from __future__ import annotations

from typing import Final

from sandq.model.errors import Forbidden, InvalidRequest, SandqError, TimedOut, Unauthenticated

ACCESS_DENIED: Final = 1045
NO_DATABASE: Final = 1046
UNKNOWN_COMMAND: Final = 1047
UNKNOWN_DATABASE: Final = 1049
UNKNOWN_COLUMN: Final = 1054
NOT_GROUPED: Final = 1055
SYNTAX: Final = 1064
UNKNOWN_THREAD: Final = 1094
TOO_BIG_SELECT: Final = 1104
UNKNOWN: Final = 1105
NESTED_AGGREGATE: Final = 1111
WRONG_PATTERN: Final = 1139
TABLE_FORBIDDEN: Final = 1142
UNKNOWN_TABLE: Final = 1146
TOO_LARGE: Final = 1153
UNKNOWN_VARIABLE: Final = 1193
WRONG_ARGUMENTS: Final = 1210
COLUMN_COUNT: Final = 1222
WRONG_VALUE: Final = 1231
SEVERAL_ROWS: Final = 1242
NOT_SUPPORTED: Final = 1235
UNKNOWN_STATEMENT: Final = 1243
READ_ONLY: Final = 1290
INCORRECT_VALUE: Final = 1292
TOO_LARGE_RESULT: Final = 1301
UNKNOWN_FUNCTION: Final = 1305
INTERRUPTED: Final = 1317
TIME_OVERFLOW: Final = 1441
NO_RESOURCES: Final = 1041
TOO_MANY_CONNECTIONS: Final = 1040
TOO_MANY_STATEMENTS: Final = 1461
OUT_OF_RANGE: Final = 1690
TIMED_OUT: Final = 3024
INVALID_JSON: Final = 3140
TLS_REQUIRED: Final = 3159
WRONG_COMMAND_ORDER: Final = 2027

MESSAGE_CHARS: Final = 1000
"""Maximum length of an error's message. DuckDB's messages quote values, which may have megabytes."""
_STATES: Final = {
    ACCESS_DENIED: "28000",
    NO_DATABASE: "3D000",
    UNKNOWN_COMMAND: "08S01",
    UNKNOWN_DATABASE: "42000",
    UNKNOWN_COLUMN: "42S22",
    NOT_GROUPED: "42000",
    WRONG_PATTERN: "42000",
    COLUMN_COUNT: "21000",
    SEVERAL_ROWS: "21000",
    INCORRECT_VALUE: "22007",
    OUT_OF_RANGE: "22003",
    INVALID_JSON: "22032",
    SYNTAX: "42000",
    TOO_BIG_SELECT: "42000",
    TABLE_FORBIDDEN: "42000",
    UNKNOWN_TABLE: "42S02",
    TOO_LARGE: "08S01",
    WRONG_VALUE: "42000",
    NOT_SUPPORTED: "42000",
    UNKNOWN_FUNCTION: "42000",
    INTERRUPTED: "70100",
    TIME_OVERFLOW: "22008",
    TOO_MANY_CONNECTIONS: "08004",
    TOO_MANY_STATEMENTS: "42000",
}


class SqlError(InvalidRequest):
    """A statement failed. `number` is MySQL's error number, `state` its SQLSTATE."""

    def __init__(self, number: int, message: str) -> None:
        super().__init__(message if len(message) <= MESSAGE_CHARS else message[: MESSAGE_CHARS - 1] + "…")
        self.number = number

    @property
    def state(self) -> str:
        """SQLSTATE of the error: five characters."""
        return _STATES.get(self.number, "HY000")


def as_sql(error: SandqError) -> SqlError:
    """Convert an error of the cluster into an error with a number of MySQL."""
    if isinstance(error, SqlError):
        return error
    if isinstance(error, Unauthenticated):
        return SqlError(ACCESS_DENIED, error.message)
    if isinstance(error, Forbidden):
        return SqlError(TABLE_FORBIDDEN, error.message)
    if isinstance(error, TimedOut):
        return SqlError(TIMED_OUT, error.message)
    return SqlError(UNKNOWN, error.message)
