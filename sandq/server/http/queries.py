"""SQL over HTTP, if the configuration enables it: one statement per request, and its rows as JSON.

A statement runs in a separate process (`sql_processes`), which uses the cluster with the caller's own token. So the
nodes check each of its requests.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from sandq.model.config_sql import SqlSection
from sandq.model.errors import Conflict, Forbidden
from sandq.server.http.caller import HttpCaller
from sandq.server.http.sql_processes import SqlProcesses

_NEEDED: Final = ("sqlglot", "duckdb", "pyarrow")


@dataclass(frozen=True, slots=True)
class Statement:
    """A statement, and the options of its result."""

    text: str
    database: str
    full_scan: bool
    limit: int
    """Maximum number of rows in the response."""


class HttpSql:
    """SQL of one HTTP server."""

    def __init__(
        self,
        section: SqlSection | None,
        servers: Sequence[str],
        tls: Mapping[str, Any] | None,
        gateway_secret: Callable[[], bytes] | None,
    ) -> None:
        """Create the runner of statements.

        `section`: None if SQL is off. `servers`: client ports of nodes. `tls`: see `HttpSettings.sql_tls`.
        `gateway_secret`: proves to nodes that this server may send requests for other callers."""
        self._section = section
        self._servers = servers
        self._tls = tls
        self._gateway_secret = gateway_secret
        self._processes: SqlProcesses | None = None

    async def run(self, caller: HttpCaller | None, address: str, statement: Statement) -> bytes:
        """Run a statement, and return its result as JSON: `columns`, `rows` and `more`.

        The statement reads only data that the caller may read. `caller`: None if it may do everything. `address`:
        address of the client. Raise InvalidRequest, Forbidden or TimedOut; Conflict if SQL is off, or its libraries are
        not installed."""
        section = self._section
        if section is None:
            raise Conflict(
                "SQL over HTTP is off: set sql.http: true in the configuration of this node, or in that of `sandq http`"
            )
        missing = [name for name in _NEEDED if importlib.util.find_spec(name) is None]
        if missing:
            raise Conflict(f"SQL needs {', '.join(missing)}, which this server lacks: pip install 'sandq[sql]'")
        if self._processes is None:
            self._processes = SqlProcesses(section, self._servers, self._tls)
        statement_json = {
            "statement": statement.text,
            "database": statement.database,
            "full_scan": statement.full_scan,
            "limit": statement.limit,
            **self._credentials(caller, address),
        }
        owner = ("address", address) if caller is None else ("principal", caller.principal)
        return await self._processes.answer(owner, statement_json)

    def _credentials(self, caller: HttpCaller | None, address: str) -> dict[str, Any]:
        """Return the credentials with which the process acts as the caller."""
        if caller is None or caller.token is not None:
            return {"token": None if caller is None else caller.token, "caller": None}
        # The caller has used a certificate, which cannot be passed on to a process.
        if caller.access is None or self._gateway_secret is None:
            raise Forbidden(
                "SQL over HTTP needs your token, because a certificate cannot be passed on: send a token "
                "(Authorization: Bearer ...), or connect to the SQL port"
            )
        grants = [str(grant) for grant in caller.access.grants]
        secret = self._gateway_secret().hex()
        of = {"principal": caller.principal, "grants": grants, "address": address, "gateway_secret": secret}
        return {"token": None, "caller": of}

    async def close(self) -> None:
        """End the processes."""
        if self._processes is not None:
            await self._processes.close()
