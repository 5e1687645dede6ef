"""Tests that errors suit MySQL users: they name no type, class or function of the parser or of DuckDB."""

from __future__ import annotations

import datetime
import re

import pytest

from sandq.sql.budget import Budget
from sandq.sql.duck import Duck
from sandq.sql.errors import SqlError
from sandq.sql.functions import Facts, duckdb_text, replace_functions
from sandq.sql.statement import parse

FACTS = Facts(datetime.datetime(2030, 1, 1), "sandq", "ada", "8.4.0-sandq", 7)
DUCK = Duck(Budget())
INNER = re.compile(
    r"sqlglot|DuckDB|INT\d|BIGINT_|VARCHAR|LITERAL|TIMESTAMP|andidate|class|Binder|explicit", re.IGNORECASE
)
ROWS = "(SELECT 1 AS n, 'x' AS t, CAST('2030-01-01' AS DATETIME) AS at UNION ALL SELECT 2, 'y', NULL) r"


def refused(text: str) -> SqlError:
    with pytest.raises(SqlError) as caught:
        tree = parse(text)
        assert tree is not None
        DUCK.run(duckdb_text(replace_functions(tree, FACTS)), {})
    return caught.value


@pytest.mark.parametrize(
    ("text", "number", "message"),
    [
        (f"SELECT no FROM {ROWS}", 1054, "Unknown column 'no': did you mean n"),
        (f"SELECT x.t FROM {ROWS}", 1054, "Unknown table 'x' of a column: did you mean r?"),
        ("SELECT * FROM (SELECT 1 a) x JOIN (SELECT 1 b) y USING (a)", 1054, "Unknown column 'a' in USING"),
        (f"SELECT t, COUNT(*) FROM {ROWS}", 1055, "'t' is neither in GROUP BY nor aggregated"),
        (f"SELECT SUM(SUM(n)) FROM {ROWS}", 1111, "Invalid use of group function"),
        (f"SELECT SUM(t) FROM {ROWS}", 1210, "Incorrect arguments to sum: (text)"),
        (f"SELECT t + 1 FROM {ROWS}", 1210, "Incorrect arguments to operator +: (text, number)"),
        ("SELECT ABS('x')", 1210, "Incorrect arguments to abs: (text)"),
        (f"SELECT at > 20300101 FROM {ROWS}", 1210, "time and number are not compared"),
        ("SELECT '[' REGEXP '['", 1139, "Got error 'missing ]: [' from regexp"),
        ("SELECT 1 UNION SELECT 1, 2", 1222, "different number of columns"),
        (f"SELECT (SELECT t FROM {ROWS})", 1242, "Subquery returns more than 1 row"),
        ("SELECT CAST('x' AS SIGNED)", 1292, "Incorrect number value: 'x'"),
        (f"SELECT t = 1 FROM {ROWS}", 1292, "Incorrect number value: 'x'"),
        ("SELECT DATE_ADD('no', INTERVAL 1 DAY)", 1292, "Incorrect DATETIME value: 'no'"),
        ("SELECT STR_TO_DATE('x', '%Y')", 1292, "Incorrect DATETIME value: 'x'"),
        ("SELECT 9223372036854775807 + 1", 1690, "BIGINT value is out of range in (9223372036854775807 + 1)"),
        ("SELECT JSON_EXTRACT('abc', '$.a')", 3140, "Invalid JSON text: unexpected character at position 0"),
        ("SELECT TIMESTAMPDIFF(FORTNIGHT, NOW(), NOW())", 1064, "'fortnight' is no unit of time"),
        ("SELEC 1", 1064, "unexpected near '1' at line 1, column 7"),
        ("SELECT (1", 1064, ") is expected near '1'"),
        ("SELECT 1 +", 1064, "something is missing near '+'"),
        ("SELECT 'a", 1064, "does not end"),
    ],
)
def test_error_has_the_number_and_text_of_mysql(text: str, number: int, message: str) -> None:
    error = refused(text)
    assert (error.number, message in error.message) == (number, True), error.message
    assert INNER.search(error.message) is None
    assert len(error.state) == 5


def test_error_that_quotes_a_long_value_is_short() -> None:
    error = refused(f"SELECT CAST('{'x' * 100_000}' AS SIGNED)")
    assert len(error.message) <= 1000 and INNER.search(error.message) is None
