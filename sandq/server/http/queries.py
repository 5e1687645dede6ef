"""SQL by HTTP, if the configuration says so: one statement, and its rows as JSON.

A statement runs in a process of its own (`sql_processes`), which asks the cluster as the caller: by the caller's own
token, so that the nodes judge each request.
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
    """A statement, and how it is to be answered."""

    text: str
    database: str
    full_scan: bool
    limit: int
    """Rows of the answer, at most."""


class HttpSql:
    """SQL of one server of HTTP."""

    def __init__(
        self,
        section: SqlSection | None,
        servers: Sequence[str],
        tls: Mapping[str, Any] | None,
        gateway_secret: Callable[[], bytes] | None,
    ) -> None:
        """`section`: None: SQL is off. `servers`: client ports of nodes. `tls`: how these are spoken to, see
        `HttpSettings.sql_tls`. `gateway_secret`: proves to nodes that this server may ask for others."""
        self._section = section
        self._servers = servers
        self._tls = tls
        self._gateway_secret = gateway_secret
        self._processes: SqlProcesses | None = None

    async def run(self, caller: HttpCaller | None, address: str, statement: Statement) -> bytes:
        """Answer a statement by JSON, of what the caller may read: `columns`, `rows` and `more`. `caller`: None: a
        caller that is held to nothing; `address`: of its machine. Raises InvalidRequest, Forbidden, TimedOut; Conflict
        if SQL is off here, or its libraries are not installed."""
        section = self._section
        if section is None:
            raise Conflict(
                "SQL by HTTP is off here: say sql.http: true in the configuration of this node, or in that "
                "of `sandq http`"
            )
        missing = [name for name in _NEEDED if importlib.util.find_spec(name) is None]
        if missing:
            raise Conflict(f"SQL needs {', '.join(missing)}, which this server has not: pip install 'sandq[sql]'")
        if self._processes is None:
            self._processes = SqlProcesses(section, self._servers, self._tls)
        said = {
            "statement": statement.text,
            "database": statement.database,
            "full_scan": statement.full_scan,
            "limit": statement.limit,
            **self._credentials(caller, address),
        }
        owner = ("address", address) if caller is None else ("principal", caller.principal)
        return await self._processes.answer(owner, said)

    def _credentials(self, caller: HttpCaller | None, address: str) -> dict[str, Any]:
        """Return by what the process asks as the caller."""
        if caller is None or caller.token is not None:
            return {"token": None if caller is None else caller.token, "caller": None}
        # The caller has shown a certificate, which cannot be passed on.
        if caller.access is None or self._gateway_secret is None:
            raise Forbidden(
                "SQL by HTTP asks the cluster by your token, and a certificate cannot be passed on: send a token "
                "(Authorization: Bearer ...), or connect to the port of SQL"
            )
        grants = [str(grant) for grant in caller.access.grants]
        secret = self._gateway_secret().hex()
        of = {"principal": caller.principal, "grants": grants, "address": address, "gateway_secret": secret}
        return {"token": None, "caller": of}

    async def close(self) -> None:
        """End the processes."""
        if self._processes is not None:
            await self._processes.close()
