"""Runs queries in DuckDB over fetched rows: in memory, one thread per query, without files, settings or extensions."""

from __future__ import annotations

import datetime
from collections.abc import AsyncIterator, Callable, Hashable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final, TypeVar

import anyio
import anyio.lowlevel
import anyio.to_thread
import duckdb

from sandq.sql.budget import Budget
from sandq.sql.duck_errors import NO_MEMORY, translated, translated_text
from sandq.sql.errors import NO_RESOURCES, TIME_OVERFLOW, TOO_BIG_SELECT, SqlError
from sandq.sql.json_values import MACROS
from sandq.sql.slots import StatementSlots

T = TypeVar("T")
_AGAIN_S: Final = 0.05
"""Interval of repeated interrupts, in seconds: DuckDB ignores an interrupt that comes before the query has begun."""
_BATCH_ROWS: Final = 8192


class Duck:
    """A database in memory, for one query at a time."""

    def __init__(self, budget: Budget) -> None:
        """Create the database. Its queries cannot reach files, extensions or Python variables, or change settings."""
        self._budget = budget
        self.is_broken = False
        config: dict[str, str | bool | int | float | list[str]] = {
            "threads": "1",
            "memory_limit": f"{max(budget.memory_bytes >> 20, 16)}MiB",
            "temp_directory": "",
            "error_on_division_by_zero": "false",
            "ieee_floating_point_ops": "false",
            "python_enable_replacements": "false",
            "autoinstall_known_extensions": "false",
            "autoload_known_extensions": "false",
            "allow_community_extensions": "false",
        }
        self._database = duckdb.connect(":memory:", config=config)
        self._database.execute("SET TimeZone = 'UTC'")
        for macro in MACROS:
            self._database.execute(macro)
        for name, value in (("enable_external_access", False), ("lock_configuration", True)):
            self._database.execute(f"SET {name} = {str(value).lower()}")

    def run(self, query: str, tables: Mapping[str, Any]) -> Any:
        """Run a query over these tables; return a pyarrow.Table. Raises SqlError if it fails or is too large."""
        import pyarrow as pa

        reader = None
        try:
            for name, table in tables.items():
                self._database.register(name, table)
            reader = self._database.sql(query).to_arrow_reader(_BATCH_ROWS)
            batches, rows, size = [], 0, 0
            for batch in reader:
                batches.append(batch)
                rows, size = rows + batch.num_rows, size + batch.nbytes
                self._check(rows, size)
            table = pa.Table.from_batches(batches, schema=reader.schema)
            _check_times(table)
            return table
        except duckdb.Error as error:
            raise translated(error) from None
        except MemoryError:
            raise SqlError(NO_RESOURCES, NO_MEMORY) from None
        except (OSError, RuntimeError, pa.ArrowException) as error:  # an error of DuckDB from Arrow's reader
            raise translated_text(str(error).split("\n")[0]) from None
        finally:
            self._clean(reader, tables)

    def schema(self, query: str, tables: Mapping[str, Any]) -> Any:
        """Return the columns (pyarrow.Schema) of a query's result, without reading rows. Raises SqlError."""
        return self.run(f"SELECT * FROM ({query}) LIMIT 0", tables).schema

    def _clean(self, reader: Any, tables: Mapping[str, Any]) -> None:
        """Release the rows. If that fails, mark the database as broken, so that it is not used again."""
        try:
            if reader is not None:
                reader.close()
            for name in tables:
                self._database.unregister(name)
        except duckdb.Error:
            self.is_broken = True

    def _check(self, rows: int, size: int) -> None:
        """Raise SqlError (1104) if a result has too many rows or bytes."""
        budget = self._budget
        if rows > budget.result_rows:
            raise SqlError(TOO_BIG_SELECT, f"more than {budget.result_rows:,} rows (result_rows): add a LIMIT")
        if size > budget.result_bytes:
            raise SqlError(TOO_BIG_SELECT, f"more than {budget.result_bytes:,} bytes (result_bytes): add a LIMIT")

    def values(self, expressions: Sequence[str]) -> Sequence[Any]:
        """Evaluate expressions that need no table. Raises SqlError."""
        try:
            found = self._database.execute(f"SELECT {', '.join(expressions)}").fetchall()[0]
        except duckdb.Error as error:
            raise translated(error) from None
        except (OverflowError, ValueError):
            raise SqlError(TIME_OVERFLOW, _OVERFLOW) from None
        return tuple(found)

    def interrupt(self) -> None:
        """Interrupt the running query; called from a different thread."""
        self._database.interrupt()

    def close(self) -> None:
        """Close the database and free its memory."""
        self._database.close()


class Ducks:
    """A pool with a database for each concurrent query; a database is created when it is first needed."""

    def __init__(self, budget: Budget) -> None:
        self._budget = budget
        self._idle: list[Duck] = []
        self._slots = StatementSlots(budget.queries)

    @asynccontextmanager
    async def one(self, owner: Hashable = None) -> AsyncIterator[Duck]:
        """Use a database during the block; wait until the caller `owner` may have one (`StatementSlots`)."""
        async with self._slots.one(owner):
            duck = self._idle.pop() if self._idle else await anyio.to_thread.run_sync(Duck, self._budget)
            try:
                yield duck
            finally:
                if duck.is_broken:
                    duck.close()
                else:
                    self._idle.append(duck)

    def close(self) -> None:
        """Close all idle databases."""
        while self._idle:
            self._idle.pop().close()


async def in_thread(duck: Duck, work: Callable[[], T]) -> T:
    """Run `work`, which uses the database, in a thread. If cancelled, interrupt the database and wait for it."""
    done = anyio.Event()

    async def interrupt_when_cancelled() -> None:
        """Interrupt the query when this task is cancelled, again and again until the thread is done."""
        try:
            await anyio.sleep_forever()
        finally:
            with anyio.CancelScope(shield=True):
                while not done.is_set():
                    duck.interrupt()
                    with anyio.move_on_after(_AGAIN_S):
                        await done.wait()

    failure: BaseException | None = None
    result: Any = None
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(interrupt_when_cancelled)
        # The thread itself cannot be cancelled: wait until the interrupt has ended its query.
        with anyio.CancelScope(shield=True):
            try:
                result = await anyio.to_thread.run_sync(work)
            except BaseException as error:
                failure = error
            done.set()
        tasks.cancel_scope.cancel()
    await anyio.lowlevel.checkpoint_if_cancelled()
    if failure is not None:
        raise failure
    found: T = result
    return found


_OVERFLOW: Final = "Datetime function: datetime field overflow: years 1 to 9999 are known"
_FIRST: Final = datetime.datetime(1, 1, 1)
_LAST: Final = datetime.datetime(9999, 12, 31, 23, 59, 59, 999_999)


def _check_times(table: Any) -> None:
    """Raise SqlError (1441) for a time that clients cannot represent."""
    import pyarrow as pa
    import pyarrow.compute as pc

    for column in table.columns:
        if pa.types.is_timestamp(column.type) or pa.types.is_date(column.type):
            instants = column.cast(pa.timestamp("us"), safe=False)
            for word, limit in (("greater", _LAST), ("less", _FIRST)):
                if pc.any(pc.call_function(word, [instants, pa.scalar(limit, pa.timestamp("us"))])).as_py():
                    raise SqlError(TIME_OVERFLOW, _OVERFLOW)
