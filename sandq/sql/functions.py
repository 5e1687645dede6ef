"""The functions that a query may call, and the translation of MySQL's functions to DuckDB.

Any other function is refused, because DuckDB has functions that read files, settings or the machine.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any, Final

from sqlglot import exp
from sqlglot.dialects import DuckDB

from sandq.sql import json_types, json_values
from sandq.sql.budget import STATEMENT_BYTES, STATEMENT_NODES
from sandq.sql.errors import TOO_LARGE, UNKNOWN_FUNCTION, SqlError
from sandq.sql.schema import TABLES, Kind
from sandq.sql.statement import whole_number
from sandq.sql.text_growth import bounded

_ALLOWED_NAMES: Final = """
Abs Acos And AnyValue ArgMax ArgMin Ascii Asin Atan Atan2 Avg BitLength BitwiseAndAgg BitwiseCount BitwiseOrAgg
BitwiseXorAgg ByteLength Case Cast Ceil Chr Coalesce Collate Concat ConcatWs Contains Convert ConvertToCharset
Corr Cos Cot Count CountIf CovarPop CovarSamp CumeDist Date DateAdd DateDiff DateSub DateTrunc Datetime
DatetimeDiff Day Dayname DayOfMonth DayOfWeek DayOfWeekIso DayOfYear Degrees DenseRank Elt EndsWith Exists Exp
Extract FirstValue Floor FromBase64 Greatest GroupConcat Hex Hour If Initcap IsInf IsNan IsNullValue JSONArray
JSONArrayAgg JSONArrayContains JSONExtract JSONExtractScalar JSONKeys JSONObject JSONObjectAgg JSONFormat
JSONType Lag LastDay LastValue Lead Least Left Length Ln Log LogicalAnd LogicalOr Lower LowerHex MD5
MD5Digest Max Median Min Minute Month Monthname Mode NthValue Ntile Nullif NumberToStr Or Pad ParseJSON
PercentRank PercentileCont PercentileDisc Pi Pow Quantile Quarter Radians Rand Rank RegexpCount RegexpExtract
RegexpFullMatch RegexpILike RegexpInstr RegexpLike RegexpReplace RegexpSubstr Repeat Replace Reverse Right Round
RowNumber SHA SHA1Digest SHA2 SHA2Digest Second Sign Sin Space SplitPart Sqrt StartsWith Stddev StddevPop
StddevSamp StrPosition StrToDate StrToTime Substring SubstringIndex Sum Tan Time TimeStrToTime TimeToStr
TimeToUnix TimestampAdd TimestampDiff TimestampSub TimestampTrunc Timestamp ToBase64 ToDays Translate Trim Trunc
TryCast TsOrDsAdd TsOrDsDiff TsOrDsToDate TsOrDsToTime TsOrDsToTimestamp TsOrDsToDatetime Typeof Unhex Unicode
UnixToStr UnixToTime Upper Uuid Variance VariancePop Week WeekOfYear Xor Year
"""
_ALLOWED: Final = frozenset(_ALLOWED_NAMES.split())
_FIXED_NAMES: Final = """
CurrentDate CurrentDatetime CurrentTime CurrentTimestamp CurrentSchema CurrentDatabase CurrentUser SessionUser
CurrentVersion Localtime Localtimestamp UtcDate UtcTime UtcTimestamp Systimestamp CurrentCatalog
CurrentTimestampLTZ
"""
_FIXED: Final = frozenset(_FIXED_NAMES.split())


class Facts:
    """The values that functions without arguments return: the user, the database, the time."""

    def __init__(self, now: datetime, database: str | None, user: str, version: str, connection: int) -> None:
        """`now`: UTC, without a zone."""
        self.now = now
        self.database = database
        self.user = user
        self.version = version
        self.connection = connection


def replace_functions(tree: exp.Expr, facts: Facts) -> exp.Expr:
    """Replace the functions of a tree by DuckDB's functions; the tree is changed.

    Raises SqlError: 1305 if a function is not allowed, 1153 if the limits of nested calls make the tree too large.
    """
    json_types.mark_kinds(tree, facts.database)
    _check_copies(tree)
    root, parts = tree, 0
    # Children first, because the translation of a call contains its translated arguments.
    for node in reversed(list(root.dfs())):
        # The first of three steps that changes a node translates it: JSON, functions, limits of long texts.
        kind = json_types.kind_of(node)
        made = json_values.with_json(node)
        if made is node:
            made = _translated(node, facts)
        if made is node:
            made = bounded(node)
            if made is not node:
                # A bounded call contains its arguments several times, so nested calls grow exponentially.
                parts += sum(1 for _ in made.walk())
                if parts > BOUNDED_PARTS:
                    raise SqlError(TOO_LARGE, _TOO_LARGE)
        if made is node:
            continue
        if json_types.kind_of(made) is None:  # the operators around the node need its kind
            json_types.set_kind(made, kind)
        if node is root:
            root = made
        else:
            node.replace(made)
    return root


_COPIED: Final[Mapping[type, str]] = {
    **{exp.Nullif: "this", exp.Between: "this", exp.In: "this", exp.Case: "this"},
    **{exp.Div: "expression", exp.IntDiv: "expression", exp.Mod: "expression"},
}
"""By type of operator: name of the argument that DuckDB copies when it replaces the operator by several others."""


def _copies(node: exp.Expr) -> int:
    """Return how many copies DuckDB makes of the argument that `_COPIED` names for this operator."""
    if isinstance(node, exp.Case):
        return len(node.args["ifs"])
    return max(len(node.expressions), 1) if isinstance(node, exp.In) else 2


def _check_copies(tree: exp.Expr) -> None:
    """Raise SqlError (1153) for nested operators whose arguments DuckDB would copy too often. DuckDB cannot be
    interrupted while it copies."""
    sizes: dict[int, int] = {}
    for node in reversed(list(tree.dfs())):  # children first
        size = 1 + json_values.parts_of(node) + sum([sizes[id(child)] for child in node.iter_expressions()])
        copied = node.args.get(_COPIED.get(type(node), ""))
        if isinstance(node, (exp.Max, exp.Min)) and json_types.is_json(node):
            copied = node.this  # MAX(x) becomes arg_max(x, key of x), which contains x twice
        if isinstance(copied, exp.Expr):
            size += sizes[id(copied)] * (_copies(node) - 1)
        if size > PARTS:
            raise SqlError(TOO_LARGE, _TOO_LARGE)
        sizes[id(node)] = size


def _translated(node: exp.Expr, facts: Facts) -> exp.Expr:
    """Translate one operator or function; return the same node if DuckDB has it, too.

    Raise SqlError (1305) if it is not allowed.
    """
    if isinstance(node, exp.Collate):
        inner: exp.Expr = node.this
        return inner
    if isinstance(node, exp.Like) and not isinstance(node.parent, exp.Escape):
        return exp.Escape(this=exp.Like(**node.args), expression=exp.Literal.string("\\"))
    if isinstance(node, exp.Introducer):
        text: exp.Expr = node.expression
        return text
    if isinstance(node, exp.Bracket):
        raise unknown("[]")
    if isinstance(node, exp.IntDiv):
        # DuckDB copies the divisor, and nested DIVs copy the copies: `_check_copies` limits them.
        divisor = exp.Nullif(this=node.expression, expression=exp.Literal.number(0))
        quotient = exp.Div(this=exp.paren(node.this, copy=False), expression=divisor)
        whole = _call("trunc", exp.cast(quotient, "DOUBLE", copy=False))
        return exp.cast(whole, "BIGINT", copy=False)
    if isinstance(node, exp.Lambda):
        raise unknown("->")
    kind = type(node).__name__
    of_json = json_values.TYPED.get(kind)
    if of_json is not None:
        return of_json(node)
    if not isinstance(node, exp.Func):
        return node
    if kind in _FIXED:
        return _fixed(node, kind, facts)
    if isinstance(node, exp.Anonymous):
        return _anonymous(node, facts)
    special = _TYPED.get(kind)
    if special is not None:
        return special(node, facts)
    if kind in _ALLOWED:
        return node
    raise unknown(node.sql_name() if hasattr(node, "sql_name") else kind)


class _Bounded(DuckDB.Generator):  # type: ignore[misc]  # it is Any to mypy
    """The generator of DuckDB's SQL with a limited size.

    Some operators repeat their arguments, so a few nested operators would need more memory than there is.
    """

    parts = 0

    def sql(self, *asked: Any, **options: Any) -> str:
        """Return the SQL of a part. Raise SqlError if the statement becomes too large."""
        self.parts += 1
        text: str = super().sql(*asked, **options)
        if self.parts > PARTS or len(text) > TEXT_CHARS:
            raise SqlError(TOO_LARGE, _TOO_LARGE)
        return text


PARTS: Final = 3 * STATEMENT_NODES
"""Maximum number of parts of a translated statement, including copies that DuckDB makes."""
BOUNDED_PARTS: Final = PARTS
"""Maximum number of parts that all bounded calls of a statement have together; nested calls count repeatedly."""
_TOO_LARGE: Final = "the statement has operators or functions that make it too large: simplify it"
TEXT_CHARS: Final = 4 * STATEMENT_BYTES
"""Maximum number of characters of DuckDB's SQL for a statement."""


def duckdb_text(tree: exp.Expr) -> str:
    """Return a tree as DuckDB's SQL. Raises SqlError if the SQL is too large."""
    text: str = _Bounded(dialect="duckdb", identify=True, comments=False).generate(tree)
    return text


def unknown(name: str) -> SqlError:
    """Return the error for a function that cannot be called."""
    return SqlError(
        UNKNOWN_FUNCTION, f"FUNCTION {name} does not exist, or may not be called here (docs/sql.md, Functions)"
    )


def timestamp(value: datetime) -> exp.Expr:
    """Return the literal of a time."""
    return exp.cast(exp.Literal.string(value.isoformat(" ", "microseconds")), "TIMESTAMP")


def _fixed(node: exp.Expr, kind: str, facts: Facts) -> exp.Expr:
    """Return the value of a function whose value is the same for all rows, as a literal."""
    if kind in ("CurrentDate", "UtcDate"):
        return exp.cast(exp.Literal.string(facts.now.date().isoformat()), "DATE")
    if kind in ("CurrentTime", "UtcTime", "Localtime"):
        return exp.cast(exp.Literal.string(facts.now.time().isoformat("seconds")), "TIME")
    if kind in ("CurrentSchema", "CurrentDatabase", "CurrentCatalog"):
        return exp.Null() if facts.database is None else exp.Literal.string(facts.database)
    if kind in ("CurrentUser", "SessionUser"):
        return exp.Literal.string(facts.user)
    if kind == "CurrentVersion":
        return exp.Literal.string(facts.version)
    digits = node.args.get("this")
    microseconds = isinstance(digits, exp.Literal) and digits.name not in ("", "0")
    return timestamp(facts.now if microseconds else facts.now.replace(microsecond=0))


def _anonymous(node: exp.Anonymous, facts: Facts) -> exp.Expr:
    """Translate a function for which the parser has no class."""
    name = str(node.this).upper()
    if name in ("DATABASE", "SCHEMA"):
        return exp.Null() if facts.database is None else exp.Literal.string(facts.database)
    if name in ("USER", "CURRENT_USER", "SESSION_USER", "SYSTEM_USER"):
        return exp.Literal.string(facts.user)
    if name == "VERSION":
        return exp.Literal.string(facts.version)
    if name == "CONNECTION_ID":
        return exp.Literal.number(facts.connection)
    if name in ("NOW", "SYSDATE", "UTC_TIMESTAMP", "LOCALTIME", "LOCALTIMESTAMP", "CURRENT_TIMESTAMP"):
        return timestamp(facts.now if node.expressions else facts.now.replace(microsecond=0))
    if name == "UNIX_TIMESTAMP":
        return _unix_timestamp(node, facts)
    make = _NAMED.get(name)
    if make is None:
        raise unknown(name)
    try:
        return make(*node.expressions)
    except TypeError:
        raise SqlError(
            UNKNOWN_FUNCTION, f"FUNCTION {name} is not called with {len(node.expressions)} arguments"
        ) from None


def _call(name: str, *arguments: Any) -> exp.Expr:
    """Return a call of a DuckDB function; the arguments must not belong to a different tree."""
    return exp.Anonymous(this=name, expressions=list(arguments))


def _seconds_of(time: Any) -> exp.Expr:
    """Return the seconds since 1970 as MySQL does for DATETIME(3): with three decimals only if they are not zero."""
    return exp.cast(_call("epoch", exp.cast(time.copy(), "TIMESTAMP")), "DECIMAL(18,3)")


def _unix_timestamp(node: exp.Expr, facts: Facts) -> exp.Expr:
    """Translate UNIX_TIMESTAMP: the seconds of a time, or of the statement's time."""
    time = (node.expressions or [None])[0] if isinstance(node, exp.Anonymous) else node.this
    if time is None:
        seconds = (facts.now - datetime(1970, 1, 1)).total_seconds()
        return exp.Literal.number(int(seconds))
    return _seconds_of(time)


_FUNCTIONS_OF_TIMES: Final = """
Year Quarter Month Week WeekOfYear Day DayOfMonth DayOfWeek DayOfYear Hour Minute Second Dayname Monthname LastDay
TimestampDiff DateDiff DatetimeDiff DateAdd DateSub TimestampAdd TimestampSub DateTrunc TimestampTrunc TimeToStr
"""


def _of_times(node: exp.Expr, facts: Facts) -> exp.Expr:
    """Translate a function of times, whose arguments may also be texts."""
    for name in ("this", "expression") if type(node).__name__.endswith("Diff") else ("this",):
        part = node.args.get(name)
        if isinstance(part, exp.Literal) and part.is_string:
            node.set(name, exp.cast(part.copy(), "TIMESTAMP"))
    return node


_LONG: Final = 65_536
"""Maximum number of characters that REPEAT, SPACE or a function that pads may create."""


def _check_count(node: exp.Expr, facts: Facts) -> exp.Expr:
    """Return a call of REPEAT, SPACE or a function that pads. Raise SqlError unless its number is a small constant.

    DuckDB does not count the memory of the texts that these functions create. Nested calls of these functions are
    refused, too.
    """
    of = node.this if isinstance(node, (exp.Repeat, exp.Pad)) else None
    count = node.this if isinstance(node, exp.Space) else node.args.get("times", node.expression)
    is_known = isinstance(count, exp.Literal) and (number := whole_number(count.name)) is not None and number <= _LONG
    if not is_known or (of is not None and of.find(exp.Repeat, exp.Pad, exp.Space) is not None):
        raise SqlError(
            UNKNOWN_FUNCTION,
            f"FUNCTION {type(node).__name__.upper()} is called with a number of at most {_LONG:,} alone",
        )
    return node


_BYTES: Final = frozenset(
    column.name for table in TABLES.values() for column in table.columns if column.kind is Kind.BYTES
)


def _length(node: exp.Expr) -> exp.Expr:
    """Translate a function to the number of bytes of a text or of bytes."""
    of = node.this
    is_bytes = of.name.lower() in _BYTES if isinstance(of, exp.Column) else isinstance(of, (exp.Unhex, exp.FromBase64))
    in_bytes = isinstance(node, exp.ByteLength) or node.args.get("binary")
    return _call("octet_length" if is_bytes else "strlen" if in_bytes else "length", of)


def _timestamp_diff(node: exp.Expr, facts: Facts) -> exp.Expr:
    """Return the number of whole units between two times."""
    _of_times(node, facts)
    unit = exp.Literal.string(node.text("unit").lower() or "day")
    return _call("date_sub", unit, *[exp.cast(part.copy(), "TIMESTAMP") for part in (node.expression, node.this)])


def _from_unixtime(node: exp.Expr, facts: Facts) -> exp.Expr:
    """Translate FROM_UNIXTIME: the time of seconds since 1970."""
    return _time_of(node.this)


def _time_of(seconds: Any) -> exp.Expr:
    """Return the expression for the time that is this many seconds after 1970."""
    micros = exp.cast(
        exp.Mul(this=exp.cast(seconds.copy(), "DOUBLE"), expression=exp.Literal.number(1_000_000)), "BIGINT"
    )
    return _call("make_timestamp", micros)


_TYPED: Final[dict[str, Callable[[Any, Facts], exp.Expr]]] = {
    "SubstringIndex": lambda node, facts: _substring_index(node.this, node.args["delimiter"], node.args["count"]),
    **dict.fromkeys(_FUNCTIONS_OF_TIMES.split(), _of_times),
    "TimestampDiff": _timestamp_diff,
    **dict.fromkeys(("Repeat", "Space", "Pad"), _check_count),
    **dict.fromkeys(("Length", "ByteLength"), lambda node, facts: _length(node)),
    "Upper": lambda node, facts: _call("upper", exp.cast(node.this.copy(), "VARCHAR")),
    "Lower": lambda node, facts: _call("lower", exp.cast(node.this.copy(), "VARCHAR")),
    "TimeToUnix": _unix_timestamp,
    "UnixSeconds": _unix_timestamp,
    "StrToUnix": _unix_timestamp,
    "UnixToTime": _from_unixtime,
}

_NAMED: Final[dict[str, Callable[..., exp.Expr]]] = {
    "FROM_UNIXTIME": lambda seconds: _time_of(seconds),
    **json_values.NAMED,
    "SUBSTRING_INDEX": lambda text, by, count: _substring_index(text, by, count),
    "MICROSECOND": lambda time: exp.Mod(
        this=exp.paren(_call("microsecond", time)), expression=exp.Literal.number(1_000_000)
    ),
    "CHARACTER_LENGTH": lambda text: _call("length", text),
    "OCTET_LENGTH": lambda text: _length(exp.ByteLength(this=text)),
    "LOCATE": lambda part, text: _call("instr", text, part),
    "INSTR": lambda text, part: _call("instr", text, part),
    "MID": lambda text, start, count: _call("substring", text, start, count),
    "LTRIM": lambda text: _call("ltrim", text),
    "RTRIM": lambda text: _call("rtrim", text),
    "MOD": lambda left, right: exp.Mod(this=exp.paren(left.copy()), expression=exp.paren(right.copy())),
    "LOG10": lambda number: _call("log10", number),
    "LOG2": lambda number: _call("log2", number),
    "TRUNCATE": lambda number, digits: _call("trunc", number, digits),
}


_CUTS: Final = 3
"""Maximum number of nested calls of SUBSTRING_INDEX."""


def _substring_index(text: Any, by: Any, count: Any) -> exp.Expr:
    """Translate SUBSTRING_INDEX: split the text at `by`, keep the first (or last) parts, and join these again."""
    number = f"-{count.this.name}" if isinstance(count, exp.Neg) else count.name
    if not (isinstance(by, exp.Literal) and by.is_string and whole_number(number.removeprefix("-")) is not None):
        raise SqlError(UNKNOWN_FUNCTION, "FUNCTION SUBSTRING_INDEX is called with a text and a number alone")
    last = number.startswith("-")
    cut = exp.Slice(this=exp.Literal.number(number if last else 1), expression=None if last else count)
    if len(list(text.find_all(exp.Bracket))) > _CUTS:  # each nested call doubles the time of DuckDB's parser
        raise SqlError(UNKNOWN_FUNCTION, f"FUNCTION SUBSTRING_INDEX is called within itself {_CUTS} times at most")
    parts = exp.Bracket(this=_call("string_split", text, by.copy()), expressions=[cut])
    return _call("array_to_string", parts, by)
