"""Translates errors of DuckDB and of the parser for users of MySQL: what is wrong, where, and what to do.

A user of MySQL does not know the names that DuckDB and the parser use for types, classes and functions ("INT64",
"STRING_LITERAL").
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final

import duckdb

from sandq.sql.errors import (
    COLUMN_COUNT,
    INCORRECT_VALUE,
    INVALID_JSON,
    NESTED_AGGREGATE,
    NO_RESOURCES,
    NOT_GROUPED,
    OUT_OF_RANGE,
    SEVERAL_ROWS,
    SYNTAX,
    TOO_LARGE_RESULT,
    UNKNOWN,
    UNKNOWN_COLUMN,
    UNKNOWN_FUNCTION,
    WRONG_ARGUMENTS,
    WRONG_PATTERN,
    SqlError,
)

NO_MEMORY: Final = "the query needs more memory than memory_bytes allows: read fewer rows"
_CHARS: Final = 10_000
"""Maximum number of characters of a message that are examined: DuckDB quotes values, which may have megabytes."""

_TYPES: Final = (
    (r"STRING_LITERAL|VARCHAR", "text"),
    (
        r"INTEGER_LITERAL|U?(?:TINY|SMALL|BIG|HUGE)INT|U?INT(?:EGER|8|16|32|64|128)|DECIMAL\([\d,]+\)|DOUBLE|FLOAT",
        "number",
    ),
    (r"TIMESTAMP(?: WITH TIME ZONE)?|DATETIME", "time"),
    (r"BLOB", "bytes"),
    (r"BOOLEAN", "truth value"),
    (r"STRUCT\(.*\)", "JSON"),
)
_VALUE: Final = r"""['"](?P<value>.*?)['"]"""

_Made = Callable[[re.Match[str]], tuple[int, str]]


def _type(text: str) -> str:
    """Replace DuckDB's names of types in a text."""
    for pattern, name in _TYPES:
        text = re.sub(rf"\b(?:{pattern})", name, text)
    return text.lower() if text.isupper() else text


def _candidates(found: re.Match[str]) -> str:
    """Return the names that DuckDB suggests, as a question."""
    names = re.findall(r'"([^"]+)"', found["known"] or "")
    return f": did you mean {' or '.join(names)}?" if names else ""


def _wrong_arguments(found: re.Match[str]) -> tuple[int, str]:
    """Return the error for arguments whose types a function does not accept."""
    name, types = found["name"].strip('"'), _type(found["types"])
    sign = name if name.isidentifier() else f"operator {name}"
    return WRONG_ARGUMENTS, f"Incorrect arguments to {sign}: ({types}). Change their types: CAST(... AS SIGNED)"


def _cannot_mix(found: re.Match[str]) -> tuple[int, str]:
    """Return the error for two types that cannot be compared or mixed."""
    left, right = _type(found["left"]), _type(found["right"])
    return (
        WRONG_ARGUMENTS,
        f"{left} and {right} are not compared or mixed: change one of them (CAST)",
    )


_MESSAGES: Final[tuple[tuple[str, _Made], ...]] = (
    (
        r'Referenced column "(?P<value>.*?)" (?:not found in FROM clause|was not found).*?(?P<known>Candidate.*)?$',
        lambda found: (UNKNOWN_COLUMN, f"Unknown column '{found['value']}'{_candidates(found)}"),
    ),
    (
        r'Referenced table "(?P<value>.*?)" not found!(?P<known>.*)$',
        lambda found: (UNKNOWN_COLUMN, f"Unknown table '{found['value']}' of a column{_candidates(found)}"),
    ),
    (
        r'Column "(?P<value>.*?)" does not exist on',
        lambda found: (UNKNOWN_COLUMN, f"Unknown column '{found['value']}' in USING: both tables need it"),
    ),
    (
        r'column "(?P<value>.*?)" must appear in the GROUP BY',
        lambda found: (
            NOT_GROUPED,
            f"'{found['value']}' is neither in GROUP BY nor aggregated: add it there, or use ANY_VALUE",
        ),
    ),
    (
        r"(?:Could not choose a best candidate function|No function matches)"
        r""".*?['"](?P<name>"?[^('"]+"?)\((?P<types>.*?)\)['"]""",
        _wrong_arguments,
    ),
    (r"Cannot (?:compare|mix) values of type (?P<left>.+?) and (?:type )?(?P<right>.+?)(?: in | - |$)", _cannot_mix),
    (
        rf"Could not (?:convert|cast) string {_VALUE} to (?P<type>\S+)",
        lambda found: (INCORRECT_VALUE, f"Incorrect {_type(found['type'])} value: '{found['value']}'"),
    ),
    (
        rf"(?:invalid (?:timestamp|date|time) field format|(?:timestamp|date) field value out of range): {_VALUE}",
        lambda found: (
            INCORRECT_VALUE,
            f"Incorrect DATETIME value: '{found['value']}': 'YYYY-MM-DD HH:MM:SS' is expected",
        ),
    ),
    (
        rf"Could not parse string {_VALUE} according to format specifier",
        lambda found: (INCORRECT_VALUE, f"Incorrect DATETIME value: '{found['value']}' for function str_to_date"),
    ),
    (
        r"Malformed JSON at byte (?P<at>\d+) of input: (?P<why>.*?)\.?(?:\s+Input: (?P<value>.*))?$",
        lambda found: (
            INVALID_JSON,
            f"Invalid JSON text: {found['why']} at position {found['at']} of {(found['value'] or 'a text')[:100]}. "
            "Use the column json, which is NULL where a value is no JSON, or JSON_VALID",
        ),
    ),
    (
        r"Overflow in \w+ of \w+ (?P<value>\(.*?\))",
        lambda found: (OUT_OF_RANGE, f"BIGINT value is out of range in {found['value']}"),
    ),
    (r"More than one row returned by a subquery", lambda found: (SEVERAL_ROWS, "Subquery returns more than 1 row")),
    (
        r"Set operations can only apply to expressions with the same number",
        lambda found: (COLUMN_COUNT, "The used SELECT statements have a different number of columns"),
    ),
    (r"aggregate function calls cannot be nested", lambda found: (NESTED_AGGREGATE, "Invalid use of group function")),
    (
        r"extract specifier \"(?P<value>.*?)\" not recognized",
        lambda found: (SYNTAX, f"'{found['value']}' is no unit of time: SECOND, MINUTE, HOUR, DAY ... are"),
    ),
    (
        r"(?P<value>(?:missing|invalid|unexpected|no argument for|bad|trailing) .{1,80}: .*)$",
        lambda found: (WRONG_PATTERN, f"Got error '{found['value'][:200]}' from regexp"),
    ),
)
"""Patterns of DuckDB's messages, with the number and the message of the translation."""

WRAPPED: Final = "Result of "
"""Beginning of the message of a wrapped call (`text_growth`)."""


def translated(error: duckdb.Error) -> SqlError:
    """Return an error of DuckDB with a number of MySQL's, in one line."""
    text = str(error).split("\n\n")[0].split("\nLINE")[0].replace("\n", " ")
    if isinstance(error, duckdb.InvalidInputException) and WRAPPED in text:
        return SqlError(TOO_LARGE_RESULT, text[text.index(WRAPPED) :])
    if isinstance(error, duckdb.OutOfMemoryException):
        return SqlError(NO_RESOURCES, NO_MEMORY)
    kind, _, said = text.partition(": ")
    return _by_message(said if kind.endswith("Error") else text, _number_of(error))


def translated_text(text: str) -> SqlError:
    """Translate a message of DuckDB that Arrow's reader has passed on."""
    if "Out of Memory" in text:
        return SqlError(NO_RESOURCES, NO_MEMORY)
    if WRAPPED in text:
        return SqlError(TOO_LARGE_RESULT, text[text.index(WRAPPED) :])
    return _by_message(text, UNKNOWN)


def _by_message(message: str, number: int) -> SqlError:
    """Translate a message by the first pattern that matches. If no pattern matches, keep the message without its list
    of candidates."""
    message = message[:_CHARS]
    for pattern, made in _MESSAGES:
        found = re.search(pattern, message)
        if found is not None:
            return SqlError(*made(found))
    return SqlError(number, re.split(r"\s*Candidate (?:functions|bindings|tables)", message)[0].strip())


def _number_of(error: duckdb.Error) -> int:
    """Return MySQL's number for an error whose message has no translation."""
    if isinstance(error, duckdb.CatalogException):
        return UNKNOWN_FUNCTION
    return SYNTAX if isinstance(error, (duckdb.ParserException, duckdb.BinderException)) else UNKNOWN


def syntax_text(description: str) -> str:
    """Return the parser's message without the parser's names of tokens."""
    if description.startswith("Required keyword"):
        return "something is missing"
    if description.startswith("Invalid expression"):
        return "unexpected"
    if description.startswith("Error tokenizing"):
        return "a text, a name or a comment does not end, or has a sign that is not known"
    return re.sub(r"^Expecting (\S+)$", r"\1 is expected", description)
