"""Tests that DuckDB is locked down: no files, settings or extensions, and limits of memory, results and input."""

from __future__ import annotations

from functools import partial

import anyio
import pyarrow as pa
import pytest

from sandq.sql.budget import Budget
from sandq.sql.duck import Duck, Ducks, in_thread
from sandq.sql.errors import NO_RESOURCES, TOO_BIG_SELECT, SqlError

NUMBERS = pa.table({"n": range(2000)})


@pytest.mark.parametrize(
    "query",
    [
        "SELECT * FROM read_csv('/etc/passwd')",
        "SELECT * FROM read_text('/etc/passwd')",
        "SELECT * FROM '/etc/passwd'",
        "SELECT * FROM glob('/*')",
        "COPY (SELECT 1) TO '/tmp/sandq-never'",
        "ATTACH '/tmp/sandq-never.db'",
        "INSTALL httpfs",
        "SET threads = 8",
        "SET memory_limit = '100GB'",
        "SET enable_external_access = true",
        "SELECT getenv('HOME')",
    ],
)
def test_duckdb_cannot_reach_the_outside(query: str) -> None:
    duck = Duck(Budget())
    with pytest.raises(SqlError):
        duck.run(query, {})
    assert duck.run("SELECT 1 AS a", {}).to_pylist() == [{"a": 1}]


def test_results_have_limits() -> None:
    duck = Duck(Budget(result_rows=1999))
    with pytest.raises(SqlError) as caught:
        duck.run("SELECT * FROM t, (SELECT 1)", {"t": NUMBERS})
    assert caught.value.number == TOO_BIG_SELECT
    duck = Duck(Budget(result_bytes=100_000))
    with pytest.raises(SqlError) as caught:
        duck.run("SELECT repeat('x', 1000) FROM t", {"t": NUMBERS})
    assert caught.value.number == TOO_BIG_SELECT
    assert duck.run("SELECT count(*) AS n FROM t", {"t": NUMBERS}).to_pylist() == [{"n": 2000}], "and DuckDB continues"


def test_memory_has_a_limit() -> None:
    duck = Duck(Budget(memory_bytes=16 << 20))
    with pytest.raises(SqlError) as caught:
        duck.run("SELECT count(DISTINCT repeat(a.n::VARCHAR, 20) || b.n) FROM t a, t b", {"t": NUMBERS})
    assert caught.value.number == NO_RESOURCES
    assert duck.run("SELECT 1 AS a", {}).to_pylist() == [{"a": 1}]


async def test_cancelled_caller_ends_the_query() -> None:
    ducks = Ducks(Budget())
    endless = "SELECT count(*) FROM t a, t b, t c, t d WHERE a.n + b.n + c.n + d.n = -1"
    async with ducks.one() as duck:
        with anyio.CancelScope() as scope:
            scope.deadline = anyio.current_time() + 0.01
            await in_thread(duck, partial(duck.run, endless, {"t": NUMBERS}))
        assert scope.cancelled_caught
        assert duck.run("SELECT 1 AS a", {}).to_pylist() == [{"a": 1}], "the memory is free for the next statement"
    ducks.close()
