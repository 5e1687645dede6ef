"""Tests that listed functions work as in MySQL, and that all other functions, also of DuckDB, are refused."""

from __future__ import annotations

import datetime
from typing import Any

import pytest

from sandq.sql import functions
from sandq.sql.budget import Budget
from sandq.sql.duck import Duck
from sandq.sql.errors import TOO_LARGE, UNKNOWN_FUNCTION, SqlError
from sandq.sql.functions import Facts, replace_functions
from sandq.sql.statement import parse

NOW = datetime.datetime(2030, 1, 31, 8, 30, 15, 250_000)
FACTS = Facts(NOW, "sandq", "ada@127.0.0.1", "8.4.0-sandq", 7)
DUCK = Duck(Budget())


def value(expression: str) -> Any:
    tree = parse(f"SELECT {expression} AS v")
    assert tree is not None
    return DUCK.run(replace_functions(tree, FACTS).sql("duckdb", identify=True), {}).to_pylist()[0]["v"]


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("NOW()", datetime.datetime(2030, 1, 31, 8, 30, 15)),
        ("NOW(3)", NOW),
        ("CURDATE()", datetime.date(2030, 1, 31)),
        ("NOW() - INTERVAL 1 HOUR", datetime.datetime(2030, 1, 31, 7, 30, 15)),
        ("DATE_ADD(NOW(), INTERVAL 2 DAY)", datetime.datetime(2030, 2, 2, 8, 30, 15)),
        ("UNIX_TIMESTAMP()", 1896078615),
        ("UNIX_TIMESTAMP('2030-01-31 08:30:15') DIV 60 * 60", 1896078600),
        ("CAST(CAST(UNIX_TIMESTAMP('2030-01-31 08:30:15')/(300) AS SIGNED)*300 AS SIGNED)", 1896078600),
        ("FROM_UNIXTIME(1896078615)", datetime.datetime(2030, 1, 31, 8, 30, 15)),
        ("DATE_FORMAT('2030-01-31 08:30:15', '%Y-%m-%d %H:%i')", "2030-01-31 08:30"),
        ("TIMESTAMPDIFF(MINUTE, '2030-01-31 08:00:00', '2030-01-31 08:30:15')", 30),
        ("HOUR('2030-01-31 08:30:15')", 8),
        ("7 DIV 2", 3),
        ("-7 DIV 2", -3),
        ("7 / 2", 3.5),
        ("1 / 0", None),
        ("IFNULL(NULL, 'x')", "x"),
        ("IF(1 > 2, 'a', 'b')", "b"),
        ("CONCAT('a', 'b', 1)", "ab1"),
        ("SUBSTRING_INDEX('a.b.c', '.', 2)", "a.b"),
        ("SUBSTRING_INDEX('a.b.c', '.', -2)", "b.c"),
        ("JSON_EXTRACT('{\"n\": 5}', '$.n')", "5"),
        ("JSON_UNQUOTE(JSON_EXTRACT('{\"a\": \"x\"}', '$.a'))", "x"),
        ("JSON_EXTRACT('{\"n\": 10}', '$.n') > 9", True),
        ("JSON_EXTRACT('{\"n\": 10}', '$.n') + 1", 11.0),
        ("'a' <=> NULL", False),
        ("'abc' REGEXP '^a'", True),
        ("DATABASE()", "sandq"),
        ("CONNECTION_ID()", 7),
        ("_utf8mb4'x' COLLATE utf8mb4_bin", "x"),
        ("CHAR_LENGTH('äb')", 2),
        ("LOCATE('b', 'abc')", 2),
        ("'x' IN ('x', 'y')", True),
    ],
)
def test_functions_return_the_results_of_mysql(expression: str, expected: Any) -> None:
    assert value(expression) == expected


@pytest.mark.parametrize(
    "expression",
    [
        "getenv('HOME')",
        "current_setting('memory_limit')",
        "read_text('/etc/passwd')",
        "LOAD_FILE('/etc/passwd')",
        "SLEEP(10)",
        "BENCHMARK(1000000, 1)",
        "query_table('x')",
        "duckdb_settings()",
        "UPPER(getenv('HOME'))",
        "1 DIV getenv('HOME')",
        "JSON_EXTRACT(read_text('x'), '$')",
        "DATE_FORMAT(getenv('HOME'), '%Y')",
        "COALESCE(NULL, (SELECT getenv('HOME')))",
    ],
)
def test_other_functions_are_refused_at_any_position(expression: str) -> None:
    with pytest.raises(SqlError) as caught:
        value(expression)
    assert caught.value.number == UNKNOWN_FUNCTION


@pytest.mark.parametrize(
    ("start", "end"),
    [("REPLACE(", ", 'a', t)"), ("CONCAT(t, ", ")"), ("HEX(", ")"), ("TO_BASE64(", ")"), ("CONCAT_WS(t, ", ", t)")],
)
def test_bounded_calls_within_each_other_are_refused_before_they_grow(
    start: str, end: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(functions, "BOUNDED_PARTS", functions.BOUNDED_PARTS // 16)
    tree = parse(f"SELECT {start * 28}t{end * 28} FROM (SELECT 'a' AS t) x")
    assert tree is not None
    with pytest.raises(SqlError) as caught:
        replace_functions(tree, FACTS)
    assert caught.value.number == TOO_LARGE


def test_growth_of_all_calls_in_a_statement_is_summed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(functions, "BOUNDED_PARTS", functions.BOUNDED_PARTS // 16)
    nested = "REPLACE(" * 3 + "t" + ", 'a', t)" * 3
    tree = parse(f"SELECT {nested}")
    assert tree is not None
    replace_functions(tree, FACTS)
    tree = parse(f"SELECT {', '.join([nested] * 100)}")
    assert tree is not None
    with pytest.raises(SqlError) as caught:
        replace_functions(tree, FACTS)
    assert caught.value.number == TOO_LARGE


@pytest.mark.parametrize(
    ("start", "end"),
    [
        ("NULLIF(", ", 1)"),
        ("7 DIV (", ")"),
        ("1 / (", " + 1)"),
        ("7 % (", " + 1)"),
        ("(", ") IN (1, 2, 3)"),
        ("(", ") BETWEEN 0 AND 1"),
        ("CASE ", " WHEN 1 THEN 2 WHEN 2 THEN 1 END"),
    ],
)
def test_operators_that_duckdb_multiplies_are_refused_deep_within_each_other(start: str, end: str) -> None:
    tree = parse(f"SELECT {start * 20}t{end * 20} FROM (SELECT 3 AS t) x")
    assert tree is not None
    with pytest.raises(SqlError) as caught:
        replace_functions(tree, FACTS)
    assert caught.value.number == TOO_LARGE
    value(f"{start * 4}3{end * 4}")


def test_long_chains_of_operators_are_taken() -> None:
    assert value("+".join(["6 / 2"] * 100)) == 300
    assert value("64" + " / 1 % 65 DIV 1" * 20) == 64
    assert value(f"{'+'.join(['NULLIF(1, 2)'] * 100)} BETWEEN 1 AND 200")
