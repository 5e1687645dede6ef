"""System variables of MySQL that clients read, and may set for their session."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from sandq.sql.budget import Budget
from sandq.sql.catalog import CHARSET, COLLATION
from sandq.sql.errors import UNKNOWN_VARIABLE, WRONG_VALUE, SqlError
from sandq.sql.scan import ALLOW

VERSION: Final = "8.4.0-sandq"
MAX_TIME: Final = "max_execution_time"
_LARGEST: Final = (1 << 64) - 1
"""Largest value of a numeric variable, as in MySQL."""
_UTC: Final = ("+00:00", "utc", "system", "etc/utc", "gmt", "z", "default")

_DEFAULTS: Final[dict[str, Any]] = {
    "auto_increment_increment": 1,
    "auto_increment_offset": 1,
    "autocommit": 1,
    "back_log": 80,
    "big_tables": 0,
    "block_encryption_mode": "aes-128-ecb",
    "character_set_client": CHARSET,
    "character_set_connection": CHARSET,
    "character_set_database": CHARSET,
    "character_set_results": CHARSET,
    "character_set_server": CHARSET,
    "character_set_system": "utf8mb3",
    "collation_connection": COLLATION,
    "collation_database": COLLATION,
    "collation_server": COLLATION,
    "default_storage_engine": "sandq",
    "foreign_key_checks": 1,
    "group_concat_max_len": 1024,
    "have_ssl": "YES",
    "hostname": "sandq",
    "init_connect": "",
    "innodb_lock_wait_timeout": 50,
    "interactive_timeout": 28800,
    "license": "Apache-2.0",
    "lock_wait_timeout": 31536000,
    "lower_case_file_system": "OFF",
    "lower_case_table_names": 0,
    "max_allowed_packet": 16777216,
    MAX_TIME: 0,
    "max_join_size": 18446744073709551615,
    "net_buffer_length": 16384,
    "net_read_timeout": 30,
    "net_write_timeout": 60,
    "optimizer_switch": "",
    "performance_schema": 0,
    "port": 3306,
    "profiling": 0,
    "protocol_version": 10,
    "query_cache_size": 0,
    "query_cache_type": "OFF",
    "read_only": 1,
    "session_track_gtids": "OFF",
    ALLOW: 0,
    "socket": "",
    "sql_auto_is_null": 0,
    "sql_mode": "ONLY_FULL_GROUP_BY,STRICT_TRANS_TABLES",
    "sql_notes": 1,
    "sql_quote_show_create": 1,
    "sql_safe_updates": 0,
    "sql_select_limit": 18446744073709551615,
    "sql_warnings": 0,
    "ssl_cipher": "",
    "super_read_only": 1,
    "system_time_zone": "UTC",
    "time_zone": "+00:00",
    "timestamp": 0,
    "transaction_isolation": "READ-COMMITTED",
    "transaction_read_only": 1,
    "tx_isolation": "READ-COMMITTED",
    "tx_read_only": 1,
    "unique_checks": 1,
    "version": VERSION,
    "version_comment": "sandq, a topic broker: read-only",
    "version_compile_machine": "x86_64",
    "version_compile_os": "Linux",
    "wait_timeout": 28800,
}
_FIXED: Final = frozenset({"version", "version_comment", "read_only", "super_read_only", "port", "hostname", "license"})


class Variables:
    """The variables of one session."""

    def __init__(self) -> None:
        self._values = dict(_DEFAULTS)
        self.own: dict[str, Any] = {}
        """User variables: `@name`."""

    def get(self, name: str) -> Any:
        """Return the value of a variable. Raises SqlError (1193) if it does not exist."""
        try:
            return self._values[name.lower()]
        except KeyError:
            raise SqlError(UNKNOWN_VARIABLE, f"Unknown system variable '{name}'") from None

    def set(self, name: str, value: Any) -> None:
        """Set a variable. Raises SqlError if it does not exist, cannot be set, or cannot have this value."""
        name = name.lower()
        self.get(name)
        if name in _FIXED:
            raise SqlError(WRONG_VALUE, f"Variable '{name}' cannot be set")
        if isinstance(value, str) and value.upper() in ("ON", "OFF", "TRUE", "FALSE"):
            value = int(value.upper() in ("ON", "TRUE")) if isinstance(_DEFAULTS[name], int) else value
        if isinstance(value, str) and value.lower() == "default":
            value = _DEFAULTS[name]
        if isinstance(value, bool):
            value = int(value)
        if name == "time_zone" and str(value).lower() not in _UTC:
            raise SqlError(WRONG_VALUE, f"time_zone: all times are UTC here ('+00:00'), not {value!r}")
        if name in (MAX_TIME, ALLOW) and (type(value) is not int or not 0 <= value <= _LARGEST):
            raise SqlError(WRONG_VALUE, f"Variable '{name}' can't be set to the value of '{value}'")
        self._values[name] = value

    def rows(self) -> Iterator[tuple[str, str]]:
        """Return the names and values for SHOW VARIABLES."""
        for name, value in sorted(self._values.items()):
            is_switch = isinstance(_DEFAULTS[name], int) and name in _SWITCHES
            yield name, ("ON" if value else "OFF") if is_switch else str(value)

    @property
    def allows_full_scan(self) -> bool:
        """Whether a query may read a whole topic."""
        return bool(self._values[ALLOW])

    def seconds(self, budget: Budget) -> float:
        """Return the maximum time of a query, in s."""
        asked: int = self._values[MAX_TIME]
        return min(asked / 1000, budget.seconds) if asked else budget.seconds


_SWITCHES_NAMES: Final = """
autocommit read_only super_read_only foreign_key_checks unique_checks performance_schema transaction_read_only
tx_read_only big_tables sql_notes sql_warnings
"""
_SWITCHES: Final = frozenset(_SWITCHES_NAMES.split())
