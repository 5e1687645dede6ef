"""Tests that functions that multiply text stay within the limit for the product of their inputs, for any origin of the
inputs."""

from __future__ import annotations

import datetime
from typing import Any

import pytest

from sandq.sql.budget import Budget
from sandq.sql.duck import Ducks
from sandq.sql.errors import NO_RESOURCES, TIME_OVERFLOW, TOO_LARGE_RESULT, SqlError
from sandq.sql.session import Session

COLUMNS = "FROM information_schema.columns"
FEW = f"{COLUMNS} WHERE table_name = 'messages' AND ordinal_position < 6"
LONG = "REPEAT(LEFT(column_name, 3), 60000)"


@pytest.fixture
def session() -> Session:
    client: Any = None  # no request goes to a cluster
    budget = Budget(memory_bytes=16 << 20)
    return Session(client, Ducks(budget), budget)


async def cell(session: Session, text: str) -> Any:
    table = (await session.run(text)).table
    return table.column(0)[0].as_py()


async def refused(session: Session, text: str) -> int:
    with pytest.raises(SqlError) as caught:
        await session.run(text)
    return caught.value.number


@pytest.mark.parametrize(
    "query",
    [
        "SELECT LENGTH(REPLACE(REPEAT('a', 60000), 'a', REPEAT('b', 65000)))",
        f"SELECT REPLACE({LONG}, 'o', REPEAT('b', 65000)) {FEW}",
        f"SELECT REPLACE(c, 'o', d) FROM (SELECT {LONG} AS c, {LONG} AS d {FEW}) t",
        f"SELECT REGEXP_REPLACE({LONG}, '.', REPEAT('b', 65000)) {FEW}",
        f"SELECT REGEXP_REPLACE({LONG}, '.*', REPEAT('\\\\0', 100)) {FEW}",
        f"SELECT REPEAT(c, 65536) FROM (SELECT {LONG} AS c {FEW}) t",
        f"SELECT CONCAT({', '.join(['c'] * 100)}) FROM (SELECT {LONG} AS c {FEW}) t",
        f"SELECT CONCAT_WS(c, {', '.join(['c'] * 100)}) FROM (SELECT {LONG} AS c {FEW}) t",
        f"SELECT JSON_OBJECT('a', c, 'b', c, 'd', c, 'e', c) FROM (SELECT {LONG} AS c {FEW}) t",
        *[
            f"WITH RECURSIVE r AS (SELECT 1 AS n, CAST('ab' AS CHAR) AS x UNION ALL SELECT n + 1, {grown} FROM r "
            "WHERE n < 60) SELECT MAX(LENGTH(x)) FROM r"
            for grown in (
                *("CONCAT(x, x)", "REPLACE(x, 'b', 'abab')", "REPLACE(x, x, CONCAT(x, x))", "HEX(x)"),
                *("REPEAT(x, 3)", "CONCAT_WS(x, x, x)", "REGEXP_REPLACE(x, 'a', 'aaa')"),
            )
        ],
    ],
)
async def test_call_that_makes_too_long_a_text_is_refused(session: Session, query: str) -> None:
    assert await refused(session, query) == TOO_LARGE_RESULT
    assert await cell(session, "SELECT 1") == 1


async def test_aggregates_of_texts_are_bounded_by_memory(session: Session) -> None:
    grouped = "GROUP_CONCAT(REPEAT(a.column_name, 100))"
    query = f"SELECT LENGTH({grouped}) FROM information_schema.columns a, information_schema.columns b"
    assert await refused(session, query) == NO_RESOURCES
    assert await cell(session, "SELECT 1") == 1


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("CONCAT(column_name, '-', ordinal_position)", "topic-1"),
        ("CONCAT(column_name, NULL)", None),
        ("CONCAT_WS(',', column_name, NULL, 'x')", "topic,x"),
        ("REPLACE(column_name, 'o', 'oo')", "toopic"),
        ("REPLACE(column_name, 'o', '')", "tpic"),
        ("REPLACE(REPLACE(REPLACE(column_name, 'o', 'aa'), 'a', 'bb'), 'b', 'cc')", "tccccccccpic"),
        ("REGEXP_REPLACE(column_name, '[op]+', '-')", "t-ic"),
        ("HEX(column_name)", "746F706963"),
        ("TO_BASE64(CAST(column_name AS BINARY))", "dG9waWM="),
        ("REPEAT(column_name, 2)", "topictopic"),
        ("LPAD(column_name, 7, '*')", "**topic"),
        ("MAX(column_name) OVER (PARTITION BY CONCAT(column_name, 'x') ORDER BY CONCAT('x', column_name))", "topic"),
        ("JSON_OBJECT('a', column_name)", '{"a":"topic"}'),
    ],
)
async def test_calls_within_bounds_return_their_results(
    session: Session, expression: str, expected: str | None
) -> None:
    where = "WHERE table_name = 'messages' AND column_name = 'topic'"
    assert await cell(session, f"SELECT {expression} {COLUMNS} {where}") == expected


async def test_calls_may_be_grouped_and_ordered_by(session: Session) -> None:
    name = "CONCAT(table_name, '.', table_schema)"
    query = f"SELECT {name}, COUNT(*) {COLUMNS} GROUP BY {name} HAVING {name} LIKE 'mess%' ORDER BY {name}"
    assert await cell(session, query) == "messages.sandq"
    query = f"SELECT GROUP_CONCAT(DISTINCT {name} ORDER BY {name}) {COLUMNS} WHERE table_name = 'messages'"
    assert await cell(session, query) == "messages.sandq"


@pytest.mark.parametrize(
    "expression",
    [
        "DATE_ADD('9999-12-31', INTERVAL 1 YEAR)",
        "DATE_SUB('0001-01-01', INTERVAL 1 DAY)",
        "CAST(DATE_ADD('9999-12-31', INTERVAL 9 YEAR) AS DATE)",
    ],
)
async def test_time_that_clients_cannot_show_is_refused(session: Session, expression: str) -> None:
    assert await refused(session, f"SELECT {expression}") == TIME_OVERFLOW
    assert await refused(session, f"SET @a = {expression}") == TIME_OVERFLOW
    assert await cell(session, "SELECT DATE_ADD('9999-12-30', INTERVAL 1 DAY)") == datetime.datetime(9999, 12, 31)
