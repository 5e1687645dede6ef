"""Tests that JSON is compared, sorted and extracted as in MySQL: 310 queries with the answers of a real server."""

from __future__ import annotations

import datetime
import json
from typing import Any

import pytest

from sandq.sql.budget import Budget
from sandq.sql.duck import Duck
from sandq.sql.errors import TOO_LARGE, UNKNOWN_FUNCTION, SqlError
from sandq.sql.functions import Facts, duckdb_text, replace_functions
from sandq.sql.json_values import VALUES
from sandq.sql.statement import parse
from tests.support.sql_json import ASKED, plain

FACTS = Facts(datetime.datetime(2030, 1, 1), "sandq", "ada", "8.4.0-sandq", 7)
DUCK = Duck(Budget())


def rows(text: str) -> list[list[Any]]:
    tree = parse(text)
    assert tree is not None
    found = DUCK.run(duckdb_text(replace_functions(tree, FACTS)), {}).to_pylist()
    return [[plain(cell) for cell in row.values()] for row in found]


def test_json_queries_return_the_results_of_mysql() -> None:
    assert len(ASKED) >= 300
    wrong = [(asked.query, found, asked.expected) for asked in ASKED if (found := rows(asked.text)) != asked.expected]
    assert wrong == []


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        # MariaDB has neither MEMBER OF nor CAST(... AS JSON).
        ("'a' MEMBER OF('[\"a\", \"b\"]')", 1),
        ("'c' MEMBER OF('[\"a\", \"b\"]')", 0),
        ("3 MEMBER OF(CAST('[1, 3]' AS JSON))", 1),
        ("CAST('{\"a\": 1}' AS JSON) = CAST('{ \"a\" : 1 }' AS JSON)", 1),
        ("CAST('null' AS JSON) IS NULL", 0),
        ("CAST('true' AS JSON) = TRUE", 1),
        ("CAST('true' AS JSON) = 1", 0),
        ("CAST('[1]' AS JSON) > CAST('{}' AS JSON)", 1),
        ("CAST('{}' AS JSON) > 'text'", 1),
        ("CAST('\"text\"' AS JSON) > 5", 1),
        ("CAST('5' AS JSON) > CAST('null' AS JSON)", 1),
        ("CAST('9007199254740993' AS JSON) = 9007199254740992", 0),
        ("CAST('1e400' AS JSON) > 5", 1),
        ("CAST('-1e400' AS JSON) < 5", 1),
    ],
)
def test_json_that_only_mysql_has_is_compared_by_its_manual(expression: str, expected: Any) -> None:
    assert rows(f"SELECT {expression}") == [[expected]]


@pytest.mark.parametrize("name", ["v", "j", "k", "e", "t", "l"])
def test_columns_named_as_parameters_of_macros_are_the_users(name: str) -> None:
    table = f"(SELECT 'a' AS {name}, '\"a\"' AS x) q"
    assert rows(f"SELECT {name} MEMBER OF('[\"a\"]') AS m, CAST(x AS JSON) = {name} AS c FROM {table}") == [[1, 1]]


@pytest.mark.parametrize(
    ("expression", "number"),
    [
        ("JSON_CONTAINS('[1]', CONCAT('1', ''))", UNKNOWN_FUNCTION),
        ("JSON_CONTAINS('[1]', '{')", UNKNOWN_FUNCTION),
        ("JSON_CONTAINS('[1]', '[" + "1, " * 1001 + "1]')", TOO_LARGE),
        ("JSON_CONTAINS('[1]', '[[[[[[1]]]]]]')", UNKNOWN_FUNCTION),
        ("JSON_CONTAINS_PATH('{}', 'some', '$.a')", UNKNOWN_FUNCTION),
        ("JSON_EXTRACT('{}', '$.a', '$[*]')", UNKNOWN_FUNCTION),
        ("mysql_json_key('1')", UNKNOWN_FUNCTION),
        ("CAST('1' AS JSON) = ANY (SELECT 1)", UNKNOWN_FUNCTION),
    ],
)
def test_json_function_without_a_meaning_here_is_refused(expression: str, number: int) -> None:
    with pytest.raises(SqlError) as caught:
        rows(f"SELECT {expression}")
    assert caught.value.number == number


def test_nested_casts_of_json_do_not_grow_exponentially() -> None:
    deep = "'5'"
    for _ in range(12):
        deep = f"CAST(JSON_EXTRACT({deep}, '$') AS SIGNED)"
    tree = parse(f"SELECT {deep}")
    assert tree is not None
    assert len(duckdb_text(replace_functions(tree, FACTS))) < 12 * 400


def test_nested_maxima_of_json_are_refused_before_they_grow() -> None:
    deep = "JSON_EXTRACT('5', '$')"
    for _ in range(14):
        deep = f"(SELECT MAX({deep}))"
    with pytest.raises(SqlError) as caught:
        rows(f"SELECT {deep}")
    assert caught.value.number == TOO_LARGE


def test_many_values_are_compared_with_json_within_the_bounds() -> None:
    values = ", ".join(f"'u{number}'" for number in range(900))
    assert rows(f"SELECT JSON_EXTRACT('{{\"u\": \"u7\"}}', '$.u') IN ({values})") == [[1]]


@pytest.mark.parametrize("function", ["JSON_CONTAINS", "JSON_OVERLAPS"])
def test_literals_with_many_values_are_refused_before_duckdb_plans_them(function: str) -> None:
    many = json.dumps(list(range(VALUES + 1)))
    with pytest.raises(SqlError, match=r"make it too large|at most 32 values"):
        rows(f"SELECT {function}(CAST('[1]' AS JSON), '{many}')")
    one = json.dumps(list(range(VALUES)))
    with pytest.raises(SqlError, match="make it too large"):
        rows(f"SELECT {function}(CAST('[1]' AS JSON), '{one}'), {function}(CAST('[1]' AS JSON), '{one}')")


@pytest.mark.parametrize("literal", ['"\\\\ud800"', "NaN", "1e400", '{"\\\\ud800": 1}'])
def test_literals_that_are_no_json_are_refused(literal: str) -> None:
    with pytest.raises(SqlError, match="Invalid JSON text in argument 2"):
        rows(f"SELECT JSON_CONTAINS(j, '{literal}') FROM t")
