"""SQL by HTTP, where the configuration says so: one statement, and its rows as JSON. Within a process that is HTTP's
alone, by less than what MySQL's port may take: a query has neither the memory nor the time of a node."""

from __future__ import annotations

import base64
import datetime
import decimal
import importlib.util
import json
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import anyio.to_thread

from sandq.client import Client
from sandq.model.access import Access, Right
from sandq.model.config_sql import SqlSection
from sandq.model.errors import Conflict, Forbidden, InvalidRequest, TimedOut

if TYPE_CHECKING:
    from sandq.sql import Ducks

ROWS: Final = 200_000
"""That one statement reads of the cluster, at most."""
BYTES: Final = 64 << 20
"""Of these in memory, and as much again for sorting, joining and grouping."""
QUERIES: Final = 2
"""At a time; the next ones wait, within their time."""
ANSWER_BYTES: Final = 8 << 20
"""Of an answer."""
_NEEDED: Final = ("sqlglot", "duckdb", "pyarrow")
_EXACT: Final = 1 << 53
"""Integers beyond are texts: what reads JSON loses their digits."""
_SLICE: Final = 500


class _SeenAdmin:
    """`client.admin` for a caller. Which topics there are, and how they are set, this server knows itself, and no node
    judges it: it tells of those alone that the caller sees."""

    def __init__(self, admin: Any, access: Access) -> None:
        self._admin = admin
        self._access = access

    def __getattr__(self, name: str) -> Any:
        return getattr(self._admin, name)

    async def list_topics(self) -> list[Any]:
        return [record for record in await self._admin.list_topics() if self._access.sees(record.name)]

    async def topic(self, name: str) -> Any:
        if not self._access.sees(name):
            raise self._access.refusal(Right.READ, name)
        return await self._admin.topic(name)


class _SeenClient:
    """The client for a caller; all else that it asks, nodes judge."""

    def __init__(self, client: Client, access: Access) -> None:
        self._client = client
        self.admin = _SeenAdmin(client.admin, access)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._client, name)


class HttpSql:
    """Of one server of HTTP."""

    def __init__(self, client: Client, section: SqlSection | None) -> None:
        """`section`: None: it is off."""
        self._client = client
        self._section = section
        self._ducks: Ducks | None = None

    async def run(self, access: Access | None, statement: str, *, database: str, full_scan: bool, limit: int) -> bytes:
        """Answer a statement by JSON, of what the caller may see (None: everything): `columns`, `rows` (up to `limit`
        of them), `more`: there are more. Raises InvalidRequest, Forbidden, TimedOut; Conflict: it is off here, or what
        it stands on is not installed."""
        section = self._section
        if section is None:
            raise Conflict(
                "SQL by HTTP is off here: say sql.http: true, with http.workers: 1, in the configuration of this node, "
                "or sql.http: true in that of `sandq http`"
            )
        missing = [name for name in _NEEDED if importlib.util.find_spec(name) is None]
        if missing:
            raise Conflict(f"SQL needs {', '.join(missing)}, which this server has not: pip install 'sandq[sql]'")
        # Who does not ask does not pay for it.
        from sandq.sql import Budget, Ducks, Session, SqlError
        from sandq.sql.errors import ACCESS_DENIED, TABLE_FORBIDDEN
        from sandq.sql.errors import TIMED_OUT as SQL_TIMED_OUT
        from sandq.sql.scan import ALLOW

        budget = Budget(
            scan_rows=min(section.rows, ROWS),
            scan_bytes=min(section.bytes, BYTES),
            result_rows=min(section.rows, ROWS),
            result_bytes=min(section.bytes, BYTES),
            memory_bytes=min(section.memory_bytes, BYTES),
            seconds=section.timeout_ms / 1000,
            queries=min(section.queries, QUERIES),
        )
        if self._ducks is None:
            self._ducks = Ducks(budget)
        try:
            seen: Any = self._client if access is None else _SeenClient(self._client, access)
            session = Session(seen, self._ducks, budget, database=database)
            session.variables.set(ALLOW, int(full_scan))
            answer = await session.run(statement)
        except SqlError as error:
            if error.number in (ACCESS_DENIED, TABLE_FORBIDDEN):
                raise Forbidden(error.message) from None
            if error.number == SQL_TIMED_OUT:
                raise TimedOut(error.message) from None
            raise InvalidRequest(error.message.replace(f"SET {ALLOW} = 1", "say full_scan")) from None
        if answer.kill is not None:
            raise InvalidRequest("KILL is for MySQL's port: by HTTP a statement ends when its client goes")
        return await anyio.to_thread.run_sync(partial(_as_json, answer.table, limit))


def _as_json(table: Any, limit: int) -> bytes:
    if table is None:
        return json.dumps({"columns": [], "rows": [], "more": False}).encode()
    columns = [{"name": field.name, "type": str(field.type)} for field in table.schema]
    parts: list[str] = []
    size = 0
    for start in range(0, min(limit, table.num_rows), _SLICE):
        part = table.slice(start, min(_SLICE, limit - start))
        cells = [[_plain(cell) for cell in column.to_pylist()] for column in part.columns]
        text = json.dumps([list(row) for row in zip(*cells, strict=True)])[1:-1]
        size += len(text)
        if size > ANSWER_BYTES:
            raise InvalidRequest(f"the answer has more than {ANSWER_BYTES:,} bytes: select fewer columns, or rows")
        parts.append(text)
    head = json.dumps({"columns": columns, "more": table.num_rows > limit})[:-1]
    return f'{head}, "rows": [{", ".join(parts)}]}}'.encode()


def _plain(cell: Any) -> Any:
    """What JSON has a form for. A value that is UTF-8 is text, another one {"base64": ...}."""
    if cell is None or isinstance(cell, (bool, str)):
        return cell
    if isinstance(cell, int):
        return cell if -_EXACT < cell < _EXACT else str(cell)
    if isinstance(cell, float):
        return cell if cell == cell and abs(cell) != float("inf") else str(cell)
    if isinstance(cell, datetime.datetime):
        return cell.isoformat(timespec="milliseconds" if cell.microsecond % 1000 == 0 else "microseconds") + "Z"
    if isinstance(cell, decimal.Decimal):
        return _plain(int(cell)) if cell == cell.to_integral_value() else str(cell)
    if isinstance(cell, bytes):
        try:
            return cell.decode()
        except UnicodeDecodeError:
            return {"base64": base64.b64encode(cell).decode()}
    if isinstance(cell, list):
        return [_plain(one) for one in cell]
    if isinstance(cell, dict):
        return {str(name): _plain(one) for name, one in cell.items()}
    return str(cell)
