"""Tests of statements: read-only, one at a time, and within limits. Errors have MySQL's numbers."""

from __future__ import annotations

import pytest
from sqlglot import exp

from sandq.sql.budget import NESTING, STATEMENT_BYTES
from sandq.sql.errors import READ_ONLY, SYNTAX, TOO_LARGE, SqlError
from sandq.sql.statement import parse


@pytest.mark.parametrize(
    "text",
    [
        "INSERT INTO messages VALUES (1)",
        "update messages set text = 'x'",
        "DELETE FROM messages",
        "/* a comment */ DROP TABLE messages",
        "-- one\nTRUNCATE messages",
        "CREATE TABLE x (a int)",
        "CREATE TEMPORARY TABLE x AS SELECT 1",
        "ALTER TABLE messages ADD x int",
        "REPLACE INTO messages VALUES (1)",
        "GRANT SELECT ON x TO y",
        "LOCK TABLES messages READ",
        "LOAD DATA INFILE '/etc/passwd' INTO TABLE messages",
        "CALL x()",
        "INSTALL PLUGIN x SONAME 'y'",
        "FLUSH TABLES",
        "WITH a AS (SELECT 1) DELETE FROM messages",
    ],
)
def test_write_statement_is_refused_with_an_alternative(text: str) -> None:
    with pytest.raises(SqlError) as caught:
        parse(text)
    assert caught.value.number == READ_ONLY
    assert "sandctl" in caught.value.message


@pytest.mark.parametrize("text", ["SELECT 1; SELECT 2", "SELEC 1", "SELECT FROM WHERE", "SELECT 'open"])
def test_wrong_syntax_is_reported(text: str) -> None:
    with pytest.raises(SqlError) as caught:
        parse(text)
    assert (caught.value.number, caught.value.state) == (SYNTAX, "42000")


@pytest.mark.parametrize(
    "text",
    [
        "SELECT '" + "x" * STATEMENT_BYTES + "'",
        "SELECT " + "(" * (NESTING + 1) + "1" + ")" * (NESTING + 1),
        "SELECT " + ",".join("1" * 21_000),
    ],
)
def test_oversized_value_is_refused(text: str) -> None:
    with pytest.raises(SqlError) as caught:
        parse(text)
    assert caught.value.number == TOO_LARGE


def test_nesting_without_brackets_is_answered() -> None:
    """No statement ends the process, with any kind of deep nesting."""
    for text in ("SELECT " + "NOT " * 5000 + "1", "SELECT " + "CASE WHEN 1 THEN " * 500 + "1" + " END" * 500):
        try:
            parse(text)
        except SqlError as error:
            assert error.number in (SYNTAX, TOO_LARGE)


def test_single_statement_is_parsed() -> None:
    assert isinstance(parse("SELECT 1;"), exp.Select)
    assert parse("/* nothing */ ;") is None
    assert parse("") is None
    assert isinstance(parse("(SELECT 1) UNION (SELECT 2)"), exp.Query)


def doubled(count: int, end: str) -> str:
    """Return a statement with `count` queries in a WITH, each of which uses the one before twice."""
    parts = ["a0 AS (SELECT 1 AS n)"] + [f"a{at} AS (SELECT * FROM a{at - 1} x, a{at - 1} y)" for at in range(1, count)]
    return f"WITH {', '.join(parts)} {end}"


@pytest.mark.parametrize(
    "text",
    [
        doubled(25, "SELECT COUNT(*) FROM a24"),
        doubled(600, "SELECT COUNT(*) FROM a599"),
        doubled(25, "SELECT (SELECT COUNT(*) FROM A24)"),
        f"SELECT * FROM ({doubled(25, 'SELECT COUNT(*) FROM a24')}) t",
        f"WITH b AS ({doubled(10, 'SELECT * FROM a9')}) {', '.join(['SELECT * FROM b' + ', b' * 9])}",
        doubled(12, "SELECT 1 UNION ALL SELECT n FROM a11"),
    ],
)
def test_statement_that_grows_by_names_of_with_is_refused(text: str) -> None:
    with pytest.raises(SqlError) as caught:
        parse(text)
    assert caught.value.number == TOO_LARGE


@pytest.mark.parametrize(
    "text",
    [
        doubled(8, "SELECT COUNT(*) FROM a7"),
        "WITH RECURSIVE r (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM r WHERE n < 9) SELECT * FROM r a, r b, r c",
        f"WITH late AS (SELECT {', '.join(f'{at} AS c{at}' for at in range(50))}) SELECT * FROM late{', late' * 9}",
    ],
)
def test_statement_that_uses_names_of_with_a_few_times_is_taken(text: str) -> None:
    assert parse(text) is not None
