"""Helpers of readers: build Arrow tables from rows, and convert a scan's bounds into arguments of requests."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from typing import Any, Final

import anyio
import pyarrow as pa

from sandq.model.times import LEAST_INSTANT_MS, TIME_MAX_MS
from sandq.sql.bounds import Bound
from sandq.sql.budget import Held
from sandq.sql.caller_view import CallerView
from sandq.sql.scan import Scan
from sandq.sql.schema import Kind, Table

AT_ONCE: Final = 8
"""Maximum number of concurrent requests of a query."""
_BATCH_ROWS: Final = 5000
"""Number of rows that are converted to columns, and counted, together."""

Row = Mapping[str, Any]


def empty(table: Table, needed: Sequence[str]) -> Any:
    """Return a table without rows."""
    return schema_of(table, needed).empty_table()


def span_of(bound: Bound) -> tuple[int | None, int | None]:
    """Return a bound of a time (microseconds) as `since` and `until` in milliseconds; `until` is exclusive."""
    low, high = bound.low, bound.high
    low_open, high_open = bound.low_open, bound.high_open
    if bound.values is not None:
        if not bound.values:
            return 1, 1  # an empty range: no row matches
        first, last = min(bound.values), max(bound.values)
        low, low_open = (first, False) if low is None or first > low else (low, low_open)
        high, high_open = (last, False) if high is None or last < high else (high, high_open)
    # The values of a column are whole milliseconds, so `since` is rounded up and `until` covers the millisecond of
    # `high`, unless `high` itself is excluded.
    since = None if low is None else low // 1000 + 1 if low_open or low % 1000 else low // 1000
    until = None if high is None else high // 1000 if high_open and not high % 1000 else high // 1000 + 1
    if since is not None and since < LEAST_INSTANT_MS:
        since = None
    if until is not None:
        until = None if until > TIME_MAX_MS else max(until, LEAST_INSTANT_MS)
    return None if since is None else min(since, TIME_MAX_MS), until


def time(ms: int | None) -> int | None:
    """Convert a time to the microseconds of a column. Times after the year 9999 become its last millisecond."""
    # SQL clients cannot represent later times. A row with a later time must not make the whole table unreadable.
    return None if ms is None else min(ms, _LAST_MS) * 1000


_LAST_MS: Final = 253_402_300_799_999
"""Last millisecond of the year 9999, in epoch milliseconds."""


async def topics_of(view: CallerView, bound: Bound, groups: Bound | None = None) -> list[str]:
    """Return the topics that a statement names, otherwise all that the caller may read completely.

    With `groups`, topics of which the caller may read one of these groups are included.
    """
    if bound.values is not None:
        return [str(name) for name in bound.values]
    named = None if groups is None or groups.values is None else [str(name) for name in groups.values]
    return [record.name for record in await view.topics(named)]


async def groups_of(view: CallerView, topic: str, bound: Bound) -> list[str]:
    """Return the groups that a statement names, otherwise all groups of the topic."""
    if bound.values is not None:
        return [str(name) for name in bound.values]
    return sorted({str(row["group"]) for row in await view.groups(topic)})


def prefix_of(bound: Bound) -> str | None:
    """Return a prefix of all values that a bound allows; None if there is none."""
    if bound.prefix is not None:
        return bound.prefix
    if bound.values is not None and len(bound.values) == 1 and isinstance(bound.values[0], str):
        return bound.values[0] or None
    return None


async def gathered(scan: Scan, rows: AsyncIterator[Any], made: Callable[[Any], Row], held: Held) -> Any:
    """Convert rows to a table, in batches. Raises SqlError (`Held`) if there are too many."""
    tables, waiting = [], []
    async for row in rows:
        waiting.append(made(row))
        if len(waiting) >= _BATCH_ROWS:
            tables.append(table_of(scan, waiting, held))
            waiting = []
    tables.append(table_of(scan, waiting, held))
    return pa.concat_tables(tables)


def schema_of(table: Table, needed: Sequence[str]) -> Any:
    """Return the needed columns of a table as a schema of Arrow."""
    columns = [table.column(name) for name in needed]
    return pa.schema([(column.name, column.kind.value.arrow) for column in columns if column is not None])


def table_of(scan: Scan, rows: Sequence[Row], held: Held) -> Any:
    """Convert rows to an Arrow table with the needed columns. Count its rows and bytes in `held`, which has limits."""
    schema = schema_of(scan.table, scan.needed)
    arrays = [_array([row.get(field.name) for row in rows], field.type) for field in schema]
    table = pa.Table.from_arrays(arrays, schema=schema)
    held.add(len(rows), table.nbytes)
    return table


def _array(cells: list[Any], kind: Any) -> Any:
    """Return cells as a column. Booleans become 0 and 1."""
    if kind == _BOOL:
        cells = [None if cell is None else int(cell) for cell in cells]
    return pa.array(cells, kind)


_BOOL: Final = Kind.BOOL.value.arrow


async def each(ask: Callable[[Any], Awaitable[Any]], items: Sequence[Any]) -> list[Any]:
    """Call `ask` for each item, several at a time; return the results in the order of the items."""
    answers: list[Any] = [None] * len(items)
    if len(items) == 1:
        return [await ask(items[0])]
    # Workers take positions from one shared iterator.
    failed: list[Exception] = []
    positions = iter(range(len(items)))

    async def work() -> None:
        """Ask about the next items, until all are asked or one has failed."""
        for position in positions:
            if failed:
                return
            try:
                answers[position] = await ask(items[position])
            except Exception as error:
                failed.append(error)

    async with anyio.create_task_group() as tasks:
        for _ in range(min(AT_ONCE, len(items))):
            tasks.start_soon(work)
    if failed:
        raise failed[0]
    return answers
