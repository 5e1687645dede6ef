"""Tests that the bounds of columns come from WHERE and are never narrower."""

from __future__ import annotations

from typing import Any

import pytest
import sqlglot
from sqlglot import exp

from sandq.sql.bounds import Bounds, bounds_of


def bounds(where: str) -> Bounds:
    """Return the bounds in a WHERE."""
    select = sqlglot.parse_one(f"SELECT 1 FROM t WHERE {where}", read="mysql")

    def column_of(part: exp.Expr) -> str | None:
        return part.name if isinstance(part, exp.Column) else None

    def evaluate(part: exp.Expr, column: str) -> Any:
        if isinstance(part, exp.Null):
            return None
        if not isinstance(part, exp.Literal):
            raise ValueError("not known")
        return part.name if part.is_string else int(part.name)

    return bounds_of([select.args["where"].this], column_of, evaluate)


@pytest.mark.parametrize(
    ("where", "column", "reported"),
    [
        ("a = 1", "a", "= 1"),
        ("1 = a", "a", "= 1"),
        ("a IN (1, 2, 2)", "a", "= 1 or 2"),
        ("a = 1 OR a = 2", "a", "= 1 or 2"),
        ("(a = 1 OR (2 = a))", "a", "= 1 or 2"),
        ("a = 1 AND a = 2", "a", "= nothing"),
        ("a IN (1, 2) AND a IN (2, 3)", "a", "= 2"),
        ("a > 1 AND a <= 5", "a", "> 1, <= 5"),
        ("1 < a AND 5 >= a", "a", "> 1, <= 5"),
        ("a >= 1 AND a > 1 AND a > 0", "a", "> 1"),
        ("a BETWEEN 2 AND 4", "a", ">= 2, <= 4"),
        ("a LIKE 'user/%'", "a", "begins with user/"),
        ("b = 1 AND (a = 2 AND c LIKE '%x')", "a", "= 2"),
        ("a = NULL", "a", "= nothing"),
    ],
)
def test_supported_condition_bounds_its_column(where: str, column: str, reported: str) -> None:
    assert bounds(where).of(column).text() == reported


@pytest.mark.parametrize(
    "where",
    [
        "a = 1 OR b = 2",
        "NOT a = 1",
        "a <> 1",
        "a NOT IN (1, 2)",
        "a NOT BETWEEN 1 AND 2",
        "a NOT LIKE 'x%'",
        "a IS NULL",
        "a <=> 1",
        "a = b",
        "a = RAND()",
        "a = (SELECT 1)",
        "a IN (SELECT 1)",
        "LOWER(a) = 'x'",
        "a + 1 = 2",
        "a LIKE 'x_y%'",
        "a LIKE '%x'",
        "a LIKE 'x'",
        "(a = 1) = 0",
        "a = 1 XOR a = 2",
        "IF(a = 1, 0, 1)",
        "CASE WHEN a = 1 THEN 0 ELSE 1 END",
        "a = 1 OR a > 5",
    ],
)
def test_unsupported_condition_bounds_nothing(where: str) -> None:
    found = bounds(where)
    assert found.of("a").text() == ""
    assert found.rest, "so that a LIMIT does not end the read too early"
