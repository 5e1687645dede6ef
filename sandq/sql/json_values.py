"""Translates MySQL's JSON to DuckDB: comparisons, order, truth values, numbers, and the JSON functions.

MySQL compares two JSON values by their types first (NULL, numbers, strings, objects, arrays, booleans, in this order),
and then within the type. If one side is not JSON, MySQL converts it: a text to a JSON string, a number to a JSON
number. Here each side becomes a key, a STRUCT that DuckDB compares in that order (`mysql_json_key`). The macros contain
their argument only once, as the parameter of a lambda, so that nested calls do not grow exponentially.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any, Final

from sqlglot import exp

from sandq.sql.errors import TOO_LARGE, UNKNOWN_FUNCTION, SqlError
from sandq.sql.json_types import JSON, NUMBER, TEXT, is_json, kind_of, results_of, set_kind
from sandq.sql.text_growth import bounded

MACROS: Final = (
    # In DuckDB's JSON, integers have at most 64 bits, and larger ones are doubles. `i` distinguishes integers that are
    # equal as doubles.
    """CREATE MACRO mysql_json_key(j) AS list_transform([CAST(j AS JSON)], lambda v: CASE json_type(v)
        WHEN 'VARCHAR' THEN {'r': 2, 'd': 0::DOUBLE, 'i': 0::HUGEINT, 't': json_extract_string(v, '$')}
        WHEN 'UBIGINT' THEN {'r': 1, 'd': CAST(v AS DOUBLE), 'i': CAST(v AS HUGEINT), 't': ''}
        WHEN 'BIGINT' THEN {'r': 1, 'd': CAST(v AS DOUBLE), 'i': CAST(v AS HUGEINT), 't': ''}
        WHEN 'DOUBLE' THEN {'r': 1, 'd': CAST(v AS DOUBLE),
            'i': COALESCE(TRY_CAST(trunc(CAST(v AS DOUBLE)) AS HUGEINT), 0::HUGEINT), 't': ''}
        WHEN 'BOOLEAN' THEN {'r': 5, 'd': CASE CAST(v AS VARCHAR) WHEN 'true' THEN 1::DOUBLE ELSE 0::DOUBLE END,
            'i': 0::HUGEINT, 't': ''}
        WHEN 'NULL' THEN {'r': 0, 'd': 0::DOUBLE, 'i': 0::HUGEINT, 't': ''}
        WHEN 'OBJECT' THEN {'r': 3, 'd': 0::DOUBLE, 'i': 0::HUGEINT, 't': CAST(json(v) AS VARCHAR)}
        WHEN 'ARRAY' THEN {'r': 4, 'd': 0::DOUBLE, 'i': 0::HUGEINT, 't': CAST(json(v) AS VARCHAR)}
        END)[1]""",
    "CREATE MACRO mysql_text_key(t) AS {'r': 2, 'd': 0::DOUBLE, 'i': 0::HUGEINT, 't': CAST(t AS VARCHAR)}",
    """CREATE MACRO mysql_json_number(j) AS list_transform([CAST(j AS JSON)], lambda v:
        CASE json_extract_string(v, '$') WHEN 'true' THEN 1::DOUBLE WHEN 'false' THEN 0::DOUBLE
        ELSE TRY_CAST(json_extract_string(v, '$') AS DOUBLE) END)[1]""",
    """CREATE MACRO mysql_json_unquote(t) AS list_transform([CAST(t AS VARCHAR)], lambda v:
        CASE WHEN starts_with(v, '"') AND json_valid(v) THEN json_extract_string(v, '$') ELSE v END)[1]""",
    # A scalar is also a member of an array within the array.
    """CREATE MACRO mysql_json_member(j, k) AS list_transform([CAST(j AS JSON)], lambda mysql_v: CASE
        WHEN mysql_v IS NULL THEN NULL
        WHEN json_type(mysql_v) = 'ARRAY' THEN len(list_filter(json_extract(mysql_v, '$[*]'), lambda mysql_e:
            mysql_json_key(mysql_e) = k OR (json_type(mysql_e) = 'ARRAY' AND len(list_filter(
                json_extract(mysql_e, '$[*]'), lambda mysql_f: mysql_json_key(mysql_f) = k)) > 0))) > 0
        ELSE mysql_json_key(mysql_v) = k END)[1]""",
    """CREATE MACRO mysql_json_length(j) AS list_transform([CAST(j AS JSON)], lambda v: CASE json_type(v)
        WHEN 'ARRAY' THEN CAST(json_array_length(v) AS BIGINT)
        WHEN 'OBJECT' THEN CAST(len(json_keys(v)) AS BIGINT)
        ELSE CASE WHEN v IS NOT NULL THEN 1::BIGINT END END)[1]""",
    """CREATE MACRO mysql_json_type(j) AS CASE json_type(CAST(j AS JSON)) WHEN 'VARCHAR' THEN 'STRING'
        WHEN 'UBIGINT' THEN 'INTEGER' WHEN 'BIGINT' THEN 'INTEGER' WHEN 'NULL' THEN 'NULL'
        ELSE json_type(CAST(j AS JSON)) END""",
    "CREATE MACRO mysql_json_list(l) AS CASE WHEN len(l) > 0 THEN to_json(l) END",
    "CREATE MACRO mysql_json_found(l) AS mysql_json_list(list_filter(l, lambda e: e IS NOT NULL))",
)
"""Macros of each database. Statements cannot call them, because they are no functions of MySQL."""

KEY_PARTS: Final = 60
"""Number of parts by which the key of a JSON value increases the counted size of a statement."""
_COMPARISONS: Final = (exp.EQ, exp.NEQ, exp.GT, exp.GTE, exp.LT, exp.LTE, exp.NullSafeEQ, exp.NullSafeNEQ)
_ARITHMETIC: Final = (exp.Add, exp.Sub, exp.Mul, exp.Div, exp.Mod, exp.Neg)
_SUMMED: Final = (exp.Sum, exp.Avg, exp.Stddev, exp.StddevPop, exp.StddevSamp, exp.Variance, exp.VariancePop)
_CHOICES: Final = (exp.If, exp.Case, exp.Coalesce, exp.Greatest, exp.Least)
_PATTERNS: Final = (exp.Like, exp.RegexpLike, exp.RegexpILike)
_MOST_DEPTH: Final = 4
"""Maximum depth of arrays and objects in the second argument of JSON_CONTAINS."""


VALUES: Final = 32
"""Maximum number of values in a literal of JSON that a function looks for."""
VALUE_PARTS: Final = 1_500
"""Number of parts by which each such value increases the counted size of a statement.

DuckDB needs about 40 ms to plan each value, and cannot be interrupted meanwhile.
"""
_BY_VALUE: Final = ("JSON_CONTAINS", "JSON_OVERLAPS")


def call(name: str, *arguments: Any) -> exp.Expr:
    """Return a call of a DuckDB function; the arguments must not belong to a different tree."""
    return exp.Anonymous(this=name, expressions=list(arguments))


_BOUND: Final = "mysql_bound"
"""Name of the lambda parameter of `_bind`."""


def _bind(value: exp.Expr, make: Callable[[exp.Expr], exp.Expr]) -> exp.Expr:
    """Return `make(value)` as an expression that evaluates `value` once: it is a lambda's parameter."""
    name = exp.to_identifier(_BOUND)
    inside = exp.Lambda(this=make(exp.column(name)), expressions=[name.copy()], colon=True)
    as_list = call("list_transform", exp.Array(expressions=[exp.cast(value, "JSON", copy=False)]), inside)
    return call("list_extract", as_list, exp.Literal.number(1))


def parts_of(node: exp.Expr) -> int:
    """Return the number of parts that an operator's keys or a JSON literal's values add to a statement."""
    if isinstance(node, exp.Anonymous) and str(node.this).upper() in _BY_VALUE:
        return VALUE_PARTS * sum(1 + part.name.count(",") for part in node.expressions if isinstance(part, exp.Literal))
    if isinstance(node, (*_COMPARISONS, exp.Between)):
        return 2 * KEY_PARTS if any(is_json(part) for part in node.iter_expressions()) else 0
    if isinstance(node, exp.In):
        return KEY_PARTS if any(is_json(part) for part in node.iter_expressions()) else 0
    return KEY_PARTS if isinstance(node, (exp.Ordered, exp.Max, exp.Min)) and is_json(node.this) else 0


def with_json(node: exp.Expr) -> exp.Expr:
    """Translate an operator over JSON; return the same node if no part of it is JSON. Its parts may be changed."""
    if isinstance(node, _COMPARISONS):
        return _translate_comparison(node)
    if isinstance(node, exp.In):
        return _translate_in(node)
    if isinstance(node, exp.Between):
        _replace_by_keys(node, ("this", "low", "high"))
    elif isinstance(node, _ARITHMETIC + _SUMMED):
        for name in ("this", "expression"):
            node.set(name, _as_number(node.args.get(name)))
    elif isinstance(node, (exp.And, exp.Or, exp.Xor, exp.Not, exp.Where, exp.Having)):
        for name in ("this", "expression"):
            node.set(name, _as_truth(node.args.get(name)))
    elif isinstance(node, exp.Is) and isinstance(node.expression, exp.Boolean):
        node.set("this", _as_truth(node.this))
    elif isinstance(node, _PATTERNS) and is_json(node.this):
        node.set("this", exp.cast(node.this, "VARCHAR", copy=False))
    elif isinstance(node, exp.Ordered):
        _translate_order(node)
    elif isinstance(node, (exp.Max, exp.Min)) and is_json(node.this) and not node.expressions:
        name = "arg_max" if isinstance(node, exp.Max) else "arg_min"
        return _with_kind(call(name, node.this, _key(node.this.copy())), JSON)
    elif isinstance(node, exp.GroupConcat) and is_json(node.this):
        node.set("this", exp.cast(node.this, "VARCHAR", copy=False))
    elif isinstance(node, exp.Nullif) and (is_json(node.this) or is_json(node.expression)):
        is_equal = exp.EQ(this=_key(node.this.copy()), expression=_key(node.expression))
        return exp.Case(ifs=[exp.If(this=is_equal, true=exp.Null())], default=node.this)
    elif isinstance(node, _CHOICES):
        _translate_choice(node)
    elif isinstance(node, exp.Cast) and is_json(node.this):
        return _translate_cast(node)
    return node


def _with_kind(node: exp.Expr, kind: str | None) -> exp.Expr:
    """Store the kind of an expression, and return the expression."""
    set_kind(node, kind)
    return node


def _key(node: exp.Expr) -> exp.Expr:
    """Return the comparison key of a value: a STRUCT that DuckDB compares in MySQL's order of JSON values.

    SQL's NULL stays NULL.
    """
    if is_json(node):
        return call("mysql_json_key", node)
    if isinstance(node, exp.Literal) and node.is_string:
        return call("mysql_text_key", node)
    if isinstance(node, exp.Null):
        return node
    return call("mysql_json_key", call("to_json", node))


def _replace_by_keys(node: exp.Expr, names: tuple[str, ...]) -> None:
    """Replace these arguments by their keys if one of them is JSON."""
    if any(is_json(node.args.get(name)) for name in names):
        for name in names:
            node.set(name, _key(node.args[name]))


def _translate_comparison(node: exp.Expr) -> exp.Expr:
    """Translate a comparison.

    If a side is JSON, compare the keys of both sides, which have MySQL's order. A text that is extracted from JSON is
    compared with a number as DOUBLE.
    """
    left, right = node.this, node.expression
    for part, other in ((left, right), (right, left)):
        if is_json(part) and isinstance(other, (exp.Any, exp.All, exp.Tuple)):
            raise SqlError(
                UNKNOWN_FUNCTION, f"JSON is not compared with {type(other).__name__.upper()}: use IN, or ->> for a text"
            )
    if is_json(left) or is_json(right):
        _replace_by_keys(node, ("this", "expression"))
        return node
    for name, other in (("this", right), ("expression", left)):
        if kind_of(node.args[name]) == TEXT and kind_of(other) == NUMBER:
            node.set(name, exp.TryCast(this=node.args[name], to=exp.DataType.build("DOUBLE")))
    return node


def _translate_in(node: exp.In) -> exp.Expr:
    """Translate IN. If a side is JSON, compare the keys of both sides.

    `IN (SELECT v ...)` becomes `IN (SELECT key of v FROM (SELECT v ...))`.
    """
    query = node.args.get("query")
    if query is None:
        if is_json(node.this) or any(is_json(part) for part in node.expressions):
            node.set("this", _key(node.this))
            node.set("expressions", [_key(part) for part in node.expressions])
        return node
    if is_json(node.this) or is_json(query):
        inner = query.this if isinstance(query, exp.Subquery) else query
        column = exp.column(exp.to_identifier("v", quoted=True), table=exp.to_identifier("mysql_in", quoted=True))
        set_kind(column, kind_of(query))
        alias = exp.TableAlias(
            this=exp.to_identifier("mysql_in", quoted=True), columns=[exp.to_identifier("v", quoted=True)]
        )
        select = exp.Select(expressions=[_key(column)]).from_(exp.Subquery(this=inner, alias=alias), copy=False)
        node.set("query", exp.Subquery(this=select))
        node.set("this", _key(node.this))
    return node


def _as_number(part: Any) -> Any:
    """Return the argument of an operator for numbers: JSON and texts from JSON as DOUBLE."""
    if is_json(part):
        return call("mysql_json_number", part)
    if isinstance(part, exp.Expr) and kind_of(part) == TEXT:
        return exp.TryCast(this=part, to=exp.DataType.build("DOUBLE"))
    return part


def _as_truth(part: Any) -> Any:
    """Return JSON as a condition: its number is not 0."""
    if not is_json(part):
        return part
    return exp.paren(exp.NEQ(this=call("mysql_json_number", part), expression=exp.Literal.number(0)), copy=False)


def _translate_order(node: exp.Ordered) -> None:
    """Order JSON by its keys, in ORDER BY of a query, a window or an aggregate."""
    select = node.find_ancestor(exp.Query, exp.AggFunc)
    if isinstance(select, exp.AggFunc):
        if select.find(exp.Distinct) is None and is_json(node.this):
            node.set("this", _key(node.this))
        return
    if not isinstance(select, exp.Select) or select.args.get("distinct"):
        return  # DuckDB can order these only by columns of the result
    part: Any = node.this
    if isinstance(part, exp.Literal) and not part.is_string and part.name.isdigit():
        index = int(part.name) - 1  # ORDER BY 2: the second column of the result
        if node.find_ancestor(exp.Window) is None and 0 <= index < len(select.expressions):
            chosen = select.expressions[index]
            if is_json(chosen):
                node.set("this", _with_kind(exp.column(chosen.alias_or_name, quoted=True), JSON))
                node.set("this", _key(node.this))
        return
    if is_json(part):
        node.set("this", _key(part))


def _translate_choice(node: exp.Expr) -> None:
    """Translate IF, CASE, COALESCE, GREATEST and LEAST.

    If only some of their results are JSON, convert all results to text; GREATEST and LEAST of JSON always compare
    texts. `CASE value WHEN ...` with JSON compares by keys (`_key`).
    """
    if isinstance(node, exp.If):
        node.set("this", _as_truth(node.this) if not _is_when_of_value(node) else node.this)
        if isinstance(node.parent, exp.Case):
            return
    if isinstance(node, exp.Case):
        ifs = node.args["ifs"]
        if node.this is not None and (is_json(node.this) or any(is_json(part.this) for part in ifs)):
            node.set("this", _key(node.this))
            for part in ifs:
                part.set("this", _key(part.this))
    results = results_of(node)
    has_json = any(is_json(part) for part in results)
    if has_json and (isinstance(node, (exp.Greatest, exp.Least)) or not all(is_json(part) for part in results)):
        for part in results:
            part.replace(exp.cast(part.copy(), "VARCHAR", copy=False))


def _is_when_of_value(node: exp.If) -> bool:
    """Return whether an expression is a WHEN of `CASE value WHEN ...`."""
    return isinstance(node.parent, exp.Case) and node.parent.this is not None


def _translate_cast(node: exp.Cast) -> exp.Expr:
    """Translate CAST of JSON to a type. A value that does not fit becomes NULL."""
    kind = node.to.this
    if kind == exp.DataType.Type.JSON:
        return node
    if kind in exp.DataType.INTEGER_TYPES:

        def whole(value: exp.Expr) -> exp.Expr:
            """Return a value as an integer: from its text, or else from its number."""
            # DOUBLE alone would lose digits, because it has 53 bits.
            ways = [call("mysql_json_unquote", value), call("mysql_json_number", value.copy())]
            first, second = [exp.TryCast(this=way, to=node.to.copy()) for way in ways]
            return exp.Coalesce(this=first, expressions=[second])

        return _bind(node.this, whole)
    if kind in exp.DataType.NUMERIC_TYPES:
        return exp.TryCast(this=call("mysql_json_number", node.this), to=node.to.copy())
    if kind in exp.DataType.TEMPORAL_TYPES:
        return exp.TryCast(this=call("mysql_json_unquote", node.this), to=node.to.copy())
    return node


# -- functions --------------------------------------------------------------------------------------------------------


def path_text(path: Any) -> str | None:
    """Translate a literal path of MySQL; None if it is no literal. Raises SqlError if the path is not supported."""
    if isinstance(path, exp.Literal):
        if not path.is_string or not path.name.startswith("$"):
            raise SqlError(UNKNOWN_FUNCTION, f"Invalid JSON path expression '{path.name[:60]}': it begins with $")
        return _LAST.sub(lambda found: f"[#-{int(found[1] or 0) + 1}]", path.name)
    if not isinstance(path, exp.JSONPath):
        return None
    parts = ["$"]
    for part in path.expressions:
        if isinstance(part, exp.JSONPathKey):
            is_any = isinstance(part.this, exp.JSONPathWildcard)
            parts.append(".*" if is_any else '."{}"'.format(str(part.this).replace('"', '\\"')))
        elif isinstance(part, exp.JSONPathSubscript):
            parts.append(f"[{'*' if isinstance(part.this, exp.JSONPathWildcard) else part.this}]")
        elif isinstance(part, exp.JSONPathWildcard):
            parts.append(".*" if parts[-1] != ".*" else "*")
        elif not isinstance(part, exp.JSONPathRoot):
            raise SqlError(UNKNOWN_FUNCTION, f"the JSON path {path.sql('mysql')[:60]} is not supported")
    return "".join(parts)


# MySQL's `[last]` and `[last-1]` are `[#-1]` and `[#-2]` in DuckDB.
_LAST: Final = re.compile(r"\[\s*last\s*(?:-\s*(\d{1,9})\s*)?\]")


def extract(json_value: exp.Expr, path: Any) -> exp.Expr:
    """Return JSON_EXTRACT with one path; the values of a path with * become an array."""
    text = path_text(path)
    if text is None:
        return _with_kind(call("json_extract", json_value, path), JSON)
    found = call("json_extract", json_value, exp.Literal.string(text))
    outside = "".join(text.split('"')[::2])
    return _with_kind(call("mysql_json_list", found) if "*" in outside else found, JSON)


def json_extract(node: exp.Expr) -> exp.Expr:
    """Translate JSON_EXTRACT, -> and ->>."""
    others = node.expressions
    if not others:
        found = extract(node.this, node.expression)
    else:
        paths = [node.expression, *others]
        if any("*" in (path_text(path) or "") for path in paths):
            raise SqlError(UNKNOWN_FUNCTION, "FUNCTION JSON_EXTRACT takes * in its only path alone")

        def values(value: exp.Expr) -> exp.Expr:
            """Return the values at all paths as one array."""
            return call("mysql_json_found", exp.Array(expressions=[extract(value.copy(), path) for path in paths]))

        found = _with_kind(_bind(node.this, values), JSON)
    return _with_kind(call("mysql_json_unquote", found), TEXT) if isinstance(node, exp.JSONExtractScalar) else found


def _at_path(json_value: exp.Expr, path: Any) -> exp.Expr:
    """Return the value at a path; the whole value if `path` is None."""
    return json_value if path is None else extract(json_value, path)


def _value_of_literal(node: Any) -> Any:
    """Return the value of a JSON literal."""
    if isinstance(node, (exp.Cast, exp.ParseJSON)):
        node = node.this
        if isinstance(node, exp.Anonymous) and str(node.this) == "to_json":  # JSON_QUOTE
            text = node.expressions[0].this
            return text.name if isinstance(text, exp.Literal) else _not_literal()
    if not isinstance(node, exp.Literal) or not node.is_string:
        return _not_literal()
    if node.name.count(",") >= VALUES:
        raise SqlError(TOO_LARGE, f"JSON_CONTAINS and JSON_OVERLAPS take a literal of at most {VALUES:,} values")
    try:
        found = json.loads(node.name)
        json.dumps(found, ensure_ascii=False, allow_nan=False).encode()  # refuse NaN and half surrogate pairs
        return found
    except (ValueError, RecursionError):
        raise SqlError(UNKNOWN_FUNCTION, "Invalid JSON text in argument 2 to function json_contains") from None


def _not_literal() -> Any:
    """Raise SqlError for a second argument of JSON_CONTAINS that is no literal."""
    raise SqlError(
        UNKNOWN_FUNCTION,
        "FUNCTION JSON_CONTAINS takes a literal of JSON as its second argument: '5', '\"text\"', '[1]'",
    )


def json_contains(target: exp.Expr, candidate: exp.Expr, path: Any = None) -> exp.Expr:
    """Translate JSON_CONTAINS."""
    if isinstance(candidate, exp.Null):
        return exp.Null()
    value = _value_of_literal(candidate)
    return _bind(_at_path(target, path), lambda bound: _contains(bound, value, 0))


def _literal_key(value: Any) -> exp.Expr:
    """Return the key of a JSON value that the statement contains."""
    text = exp.Literal.string(json.dumps(value, ensure_ascii=False, separators=(",", ":")))
    return call("mysql_json_key", exp.cast(text, "JSON", copy=False))


def _contains(target: exp.Expr, value: Any, depth: int) -> exp.Expr:
    """Return the condition that `target` contains the JSON value `value` (JSON_CONTAINS).

    An array is contained if each of its elements is, an object if each of its members is, a scalar if it is equal
    to `target` or to one of its elements. For example, [1, [2]] is contained if 1 is a member, and if some element of
    `target` contains [2]. `depth`: number of arrays and objects around `value`.
    """
    if depth > _MOST_DEPTH:
        raise SqlError(UNKNOWN_FUNCTION, f"FUNCTION JSON_CONTAINS takes arrays and objects {_MOST_DEPTH} deep at most")
    if isinstance(value, list):
        parts = [
            _some_element(target, one, depth) if isinstance(one, list) else _contains(target.copy(), one, depth + 1)
            for one in value
        ]
        return _by_type(target, {"ARRAY": _conjunction(parts)})
    if isinstance(value, dict):
        parts = []
        for name, one in value.items():
            if '"' in name or "\\" in name:
                raise SqlError(UNKNOWN_FUNCTION, 'FUNCTION JSON_CONTAINS takes no name with " or \\ in it')
            inner = call("json_extract", target.copy(), exp.Literal.string(f'$."{name}"'))
            parts.append(exp.Coalesce(this=_contains(inner, one, depth + 1), expressions=[exp.false()]))
        cases = {"OBJECT": _conjunction(parts)}
        if not target.name.startswith(_ELEMENT):  # an element of an array is searched one level deep
            cases["ARRAY"] = _some_element(target, value, depth)
        return _by_type(target, cases)
    return call("mysql_json_member", target, _literal_key(value))


_ELEMENT: Final = "mysql_element"
"""Beginning of the names of lambda parameters for the elements of an array."""


def _conjunction(parts: list[exp.Expr]) -> exp.Expr:
    """Join conditions by AND; without conditions, return TRUE."""
    found: exp.Expr = exp.true()
    for part in parts:
        found = exp.And(this=found, expression=part)
    return exp.paren(found, copy=False)


def _some_element(target: exp.Expr, value: Any, depth: int) -> exp.Expr:
    """Return whether an element of an array contains a value."""
    element = exp.to_identifier(f"{_ELEMENT}{depth}")
    inner = exp.Coalesce(this=_contains(exp.column(element), value, depth + 1), expressions=[exp.false()])
    found = exp.Lambda(this=inner, expressions=[element], colon=True)
    elements = call("json_extract", target.copy(), exp.Literal.string("$[*]"))
    count = call("len", call("list_filter", elements, found))
    return exp.GT(this=count, expression=exp.Literal.number(0))


def _by_type(target: exp.Expr, cases: dict[str, exp.Expr], otherwise: exp.Expr | None = None) -> exp.Expr:
    """Return CASE: the condition for the JSON type of `target`, `otherwise` for other types, NULL for NULL."""
    unknown = exp.If(this=exp.Is(this=target.copy(), expression=exp.Null()), true=exp.Null())
    ifs = [unknown]
    for name, condition in cases.items():
        is_type = exp.EQ(this=call("json_type", target.copy()), expression=exp.Literal.string(name))
        ifs.append(exp.If(this=is_type, true=condition))
    return exp.Case(ifs=ifs, default=otherwise or exp.false())


def json_overlaps(left: exp.Expr, right: exp.Expr) -> exp.Expr:
    """Translate JSON_OVERLAPS with a literal on one side."""
    target, literal = (left, right) if not isinstance(left, exp.Literal) else (right, left)
    value = _value_of_literal(literal)
    if isinstance(value, dict) or (isinstance(value, list) and any(isinstance(one, (list, dict)) for one in value)):
        raise SqlError(UNKNOWN_FUNCTION, "FUNCTION JSON_OVERLAPS takes a literal of scalars on one side")
    values = value if isinstance(value, list) else [value]

    def overlaps(bound: exp.Expr) -> exp.Expr:
        """Return the condition that a document contains one of the values."""
        found: exp.Expr = exp.false()
        for one in values:
            found = exp.Or(this=found, expression=call("mysql_json_member", bound.copy(), _literal_key(one)))
        return _by_type(bound, {}, found)

    return _bind(target, overlaps)


def json_contains_path(target: exp.Expr, which: exp.Expr, *paths: exp.Expr) -> exp.Expr:
    """Translate JSON_CONTAINS_PATH."""
    word = which.name.lower() if isinstance(which, exp.Literal) else ""
    if word not in ("one", "all") or not paths:
        raise SqlError(UNKNOWN_FUNCTION, "FUNCTION JSON_CONTAINS_PATH takes 'one' or 'all', and paths")

    def has(bound: exp.Expr) -> exp.Expr:
        """Return the condition that a document has one of the paths, or all of them."""
        found: exp.Expr | None = None
        for path in paths:
            one = exp.paren(exp.Not(this=exp.Is(this=_at_path(bound.copy(), path), expression=exp.Null())), copy=False)
            found = one if found is None else (exp.Or if word == "one" else exp.And)(this=found, expression=one)
        return _by_type(bound, {}, found)

    return _bind(target, has)


def json_value(node: exp.JSONValue) -> exp.Expr:
    """Translate JSON_VALUE: a scalar as text or as the named type; NULL for arrays, objects and JSON null."""
    text = call("json_extract_string", node.this, exp.Literal.string(path_text(node.args["path"]) or "$"))
    returning = node.args.get("returning")
    if isinstance(returning, exp.DataType):
        return exp.TryCast(this=text, to=returning.copy())
    return _with_kind(text, TEXT)


def member_of(node: exp.JSONArrayContains) -> exp.Expr:
    """Translate MEMBER OF."""
    target = node.expression
    return call("mysql_json_member", exp.cast(target, "JSON", copy=False), _key(node.this))


def json_keys(node: exp.JSONKeys) -> exp.Expr:
    """Translate JSON_KEYS."""

    def names(bound: exp.Expr) -> exp.Expr:
        """Return an expression for the names of an object's members; NULL for other values."""
        return _by_type(bound, {"OBJECT": call("to_json", call("json_keys", bound.copy()))}, exp.Null())

    return _with_kind(_bind(_at_path(node.this, node.args.get("expression")), names), JSON)


NAMED: Final[dict[str, Callable[..., exp.Expr]]] = {
    "JSON_UNQUOTE": lambda text: _with_kind(call("mysql_json_unquote", text), TEXT),
    "JSON_LENGTH": lambda value, path=None: call("mysql_json_length", _at_path(value, path)),
    "JSON_CONTAINS": json_contains,
    "JSON_OVERLAPS": json_overlaps,
    "JSON_CONTAINS_PATH": json_contains_path,
    "JSON_ARRAY": lambda *parts: _with_kind(bounded(exp.JSONArray(expressions=list(parts))), JSON),
    "JSON_QUOTE": lambda text: exp.cast(call("to_json", exp.cast(text, "VARCHAR", copy=False)), "VARCHAR", copy=False),
    "JSON_VALID": lambda text: call("json_valid", exp.cast(text, "VARCHAR", copy=False)),
}
"""Functions for which the parser has no class."""
TYPED: Final[dict[str, Callable[[Any], exp.Expr]]] = {
    "JSONExtract": json_extract,
    "JSONExtractScalar": json_extract,
    "JSONValue": json_value,
    "JSONArrayContains": member_of,
    "JSONKeys": json_keys,
    "JSONType": lambda node: call("mysql_json_type", node.this),
}
"""By class of the parser: the translation of a function."""
