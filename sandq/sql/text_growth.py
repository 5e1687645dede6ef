"""Limits functions that create long texts from short ones.

DuckDB does not count the memory of such texts. A call with constant arguments is checked before the query runs. A call
over rows is wrapped: `CASE WHEN <bytes of the result> > TEXT_BYTES THEN error(...) ELSE <call> END`. This limits the
result for each row, independent of the origin of its arguments (columns, common table expressions, recursion). The
wrapped call evaluates its arguments twice, and the arguments of nested calls more often; `duckdb_text` limits the size
of the statement.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

from sqlglot import exp

from sandq.sql.errors import TOO_LARGE_RESULT, SqlError

TEXT_BYTES: Final = 4 << 20
"""Maximum bytes of the result of such a call. HEX of the largest message has half as many."""
_VALUE_BYTES: Final = 64
"""Bytes of a number, a time or a truth value as text."""
_OTHER_TIMES: Final = 4
"""Maximum bytes of the result of any other function per byte of its arguments (UPPER, JSON_QUOTE, CAST)."""
_EXPONENT: Final = 40
"""Bits of the largest size that is computed; larger sizes are too large anyway."""

Size = int | None
"""Number of bytes of a text. None if the number depends on the rows."""


def bounded(node: exp.Expr) -> exp.Expr:
    """Return a call whose result has at most `TEXT_BYTES`: the given call, or a wrapped one.

    Raises SqlError (1301) if the result is larger for all rows.
    """
    made = _SIZES.get(type(node))
    size = None if made is None else made(node)
    if size is None:
        return node
    known, over_rows = size
    if known is not None:
        if known > TEXT_BYTES:
            raise _too_large(node)
        return node
    if _must_be_stable(node):
        return node
    message = exp.Literal.string(_too_large(node).message)
    condition = exp.GT(this=exp.paren(over_rows(), copy=False), expression=exp.Literal.number(TEXT_BYTES))
    refusal = exp.Anonymous(this="error", expressions=[message])
    return exp.Case(ifs=[exp.If(this=condition, true=refusal)], default=node.copy())


def _must_be_stable(node: exp.Expr) -> bool:
    """Return whether DuckDB does not allow error() at the position of a call.

    DuckDB does not allow error() in PARTITION BY and ORDER BY of a window, and in an aggregate over distinct ordered
    values.
    """
    child: exp.Expr = node
    while (parent := child.parent) is not None:
        if isinstance(parent, exp.Window) and child is not parent.this:
            return True
        if isinstance(parent, exp.AggFunc) and parent.find(exp.Distinct) and parent.find(exp.Order):
            return True
        child = parent
    return False


def _too_large(node: exp.Expr) -> SqlError:
    """Return the error for a result of a function that is too large."""
    name = node.sql_name() if isinstance(node, exp.Func) else type(node).__name__.upper()
    return SqlError(TOO_LARGE_RESULT, f"Result of {name}() was larger than {TEXT_BYTES:,} bytes: shorten its arguments")


# -- what is known before the query runs ------------------------------------------------------------------------------


def size_of(node: Any) -> Size:
    """Return the maximum bytes of the result of a constant expression; None if it depends on rows."""
    if node is None or isinstance(node, (exp.Null, exp.Boolean, exp.DataType, exp.Var)):
        return _VALUE_BYTES
    if isinstance(node, exp.Literal):
        return len(node.name.encode()) if node.is_string else _VALUE_BYTES
    if isinstance(node, (exp.Column, exp.Query, exp.Star, exp.AggFunc, exp.Window, exp.Placeholder)):
        return None
    made = _SIZES.get(type(node))
    if made is not None:
        size = made(node)
        if size is not None:
            return size[0]
    total = _VALUE_BYTES
    for child in node.iter_expressions():
        part = size_of(child)
        if part is None:
            return None
        total += part
    times = _OTHER_TIMES if isinstance(node, exp.Func) and not isinstance(node, _SAME_SIZE) else 1
    return min(total * times, 1 << _EXPONENT)


_SAME_SIZE: Final = (exp.Cast, exp.Case, exp.If, exp.Coalesce, exp.Nullif, exp.Substring, exp.Left, exp.Right, exp.Trim)


# -- what is known of each row ----------------------------------------------------------------------------------------


def _bytes_of(node: exp.Expr) -> exp.Expr:
    """Return DuckDB's expression for the bytes of a value as text; 0 of NULL."""
    known = size_of(node)
    if known is not None:
        return exp.Literal.number(known)
    text = exp.cast(node.copy(), "VARCHAR", copy=False)
    length = exp.Anonymous(this="strlen", expressions=[text])
    return exp.Coalesce(this=length, expressions=[exp.Literal.number(0)])


def _number_of(node: exp.Expr) -> exp.Expr:
    """Return DuckDB's expression for a number of times, at least 0."""
    number = exp.cast(node.copy(), "BIGINT", copy=False)
    return exp.Greatest(
        this=exp.Coalesce(this=number, expressions=[exp.Literal.number(0)]), expressions=[exp.Literal.number(0)]
    )


def _sum(parts: Sequence[exp.Expr]) -> exp.Expr:
    """Return the sum of expressions."""
    found: exp.Expr = exp.Literal.number(0)
    for part in parts:
        found = exp.Add(this=found, expression=part)
    return found


def _product(left: exp.Expr, right: exp.Expr) -> exp.Expr:
    """Return the product of two expressions."""
    # As DOUBLE, a product never overflows.
    return exp.Mul(this=exp.cast(exp.paren(left), "DOUBLE"), expression=exp.cast(exp.paren(right), "DOUBLE"))


Sizes = tuple[Size, Callable[[], exp.Expr]] | None
"""Maximum bytes of a call's result: as a number, and as a function that returns an expression for them.

The function is used if the number is None. `Sizes` is None if the result cannot have more bytes than the arguments.
"""


def _of_replace(node: Any) -> Sizes:
    """Return the size of REPLACE; None: the text only becomes shorter."""
    text, old, new = node.this, node.expression, node.args.get("replacement")
    if new is None:
        return None
    return _of_replaced_text(text, old, new)


def _of_replaced_text(text: Any, old: Any, new: Any) -> Sizes:
    """Return the size of a text in which `new` replaces `old`; None if `new` is not longer than `old`."""
    old_size, new_size = size_of(old), size_of(new)
    if _is_text(old) and _is_text(new) and new_size is not None and old_size and new_size <= old_size:
        return None
    return _multiplied(text, new)


def _is_text(node: Any) -> bool:
    """Return whether an expression is a literal of text."""
    return isinstance(node, exp.Literal) and node.is_string


def _of_regexp_replace(node: Any) -> Sizes:
    """Return the size of REGEXP_REPLACE."""
    new = node.args.get("replacement")
    # Upper bound. A text of n bytes has at most n + 1 matches (empty ones included). A character of
    # the replacement is inserted once per match. A reference (`\\1`) inserts at most n bytes, because matches do not
    # overlap.
    return None if new is None else _multiplied(node.this, new)


def _multiplied(text: Any, by: Any) -> Sizes:
    """Return the upper bound `(bytes of text + 1) * (bytes of by + 1)`.

    It holds if `by` is inserted at most once before each character and once at the end.
    """
    sizes = size_of(text), size_of(by)
    if sizes[0] is not None and sizes[1] is not None:
        return (sizes[0] + 1) * (sizes[1] + 1), exp.Null

    def over_rows() -> exp.Expr:
        """Return the bound, computed for each row."""
        one = exp.Literal.number(1)
        return _product(
            exp.Add(this=_bytes_of(text), expression=one), exp.Add(this=_bytes_of(by), expression=one.copy())
        )

    return None, over_rows


def _of_sum(parts: Sequence[Any], times: int = 1) -> Sizes:
    """Return the sum of the sizes of `parts`, multiplied by `times`."""
    sizes = [size_of(part) for part in parts]
    known = [size for size in sizes if size is not None]
    if len(known) == len(sizes):
        return sum(known) * times, exp.Null

    def over_rows() -> exp.Expr:
        """Return the bound, computed for each row."""
        return _product(_sum([_bytes_of(part) for part in parts]), exp.Literal.number(times))

    return None, over_rows


def _of_concat_ws(node: Any) -> Sizes:
    """Return the size of CONCAT_WS: that of its parts, with the separator between them."""
    separator, *parts = node.expressions
    return _of_sum([*parts, *[separator] * max(len(parts) - 1, 0)])


def _of_repeat(node: Any) -> Sizes:
    """Return the size of REPEAT. If it is a number, the second value is not used."""
    times = node.args.get("times")
    size = size_of(node.this)
    if isinstance(times, exp.Literal) and size is not None:
        return size * int(times.name), exp.Null
    return None, lambda: _product(_bytes_of(node.this), _number_of(times))


def _of_pad(node: Any) -> Sizes:
    """Return the size of LPAD and RPAD, which their second argument gives."""
    # The argument counts characters, and each has up to four bytes.
    count = node.expression
    return int(count.name) * 4 if isinstance(count, exp.Literal) else None, lambda: _number_of(count)


def _of_space(node: Any) -> Sizes:
    """Return the size of SPACE, which its argument gives."""
    return int(node.this.name) if isinstance(node.this, exp.Literal) else None, lambda: _number_of(node.this)


_SIZES: Final[dict[type, Callable[[Any], Sizes]]] = {
    exp.Replace: _of_replace,
    exp.RegexpReplace: _of_regexp_replace,
    exp.Concat: lambda node: _of_sum(node.expressions),
    exp.ConcatWs: _of_concat_ws,
    exp.DPipe: lambda node: _of_sum([node.left, node.right]),
    exp.Repeat: _of_repeat,
    exp.Pad: _of_pad,
    exp.Space: _of_space,
    exp.Hex: lambda node: _of_sum([node.this], 2),
    exp.LowerHex: lambda node: _of_sum([node.this], 2),
    exp.ToBase64: lambda node: _of_sum([node.this], 2),
    exp.JSONArray: lambda node: _of_sum(node.expressions, 6),
    exp.JSONObject: lambda node: _of_sum(
        [part for pair in node.expressions for part in (pair.this, pair.args.get("expression")) if part is not None], 6
    ),
}
"""By type of call: function that computes the maximum bytes of its result. JSON encodes one character as at most
six."""
