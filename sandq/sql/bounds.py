"""Extracts bounds of a table's columns from the WHERE of a parsed statement.

Bounds come only from conditions that are joined by AND, and only from comparisons of a column with an expression that
does not depend on rows. Other conditions are ignored: DuckDB evaluates the whole WHERE again over the fetched rows. So
bounds may be wider than WHERE, but never narrower.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from sqlglot import exp

Evaluate = Callable[[exp.Expr, "str"], Any]
"""Evaluates an expression without columns as a value of the named column. Raises ValueError if that is impossible."""

_MIRRORED: Final = {exp.GT: exp.LT, exp.GTE: exp.LTE, exp.LT: exp.GT, exp.LTE: exp.GTE, exp.EQ: exp.EQ}
_RANGES: Final = (exp.GT, exp.GTE, exp.LT, exp.LTE)


@dataclass
class Bound:
    """Bounds of a column. `values`: the allowed values; None if all values are allowed. `prefix`: the beginning of each
    allowed value."""

    values: tuple[Any, ...] | None = None
    low: Any = None
    low_open: bool = False
    high: Any = None
    high_open: bool = False
    prefix: str | None = None

    @property
    def is_range(self) -> bool:
        """Whether there is a lower or an upper bound."""
        return self.low is not None or self.high is not None

    def among(self, values: Sequence[Any]) -> None:
        """Restrict the column to these values."""
        known = tuple(dict.fromkeys(values))
        self.values = known if self.values is None else tuple(value for value in self.values if value in known)

    def above(self, value: Any, is_open: bool) -> None:
        """Add a lower bound. `is_open`: the bound itself is not included."""
        if self.low is None or value > self.low or (value == self.low and is_open):
            self.low, self.low_open = value, is_open

    def below(self, value: Any, is_open: bool) -> None:
        """Add an upper bound. `is_open`: the bound itself is not included."""
        if self.high is None or value < self.high or (value == self.high and is_open):
            self.high, self.high_open = value, is_open

    def text(self) -> str:
        """Return the bounds as a text for EXPLAIN."""
        parts = []
        if self.values is not None:
            parts.append("= " + " or ".join(str(value) for value in self.values[:5]) if self.values else "= nothing")
            if len(self.values) > 5:
                parts[-1] += f" or {len(self.values) - 5} more"
        if self.low is not None:
            parts.append(f"{'>' if self.low_open else '>='} {self.low}")
        if self.high is not None:
            parts.append(f"{'<' if self.high_open else '<='} {self.high}")
        if self.prefix is not None:
            parts.append(f"begins with {self.prefix}")
        return ", ".join(parts)


@dataclass
class Bounds:
    """Bounds by column.

    `rest`: columns with further conditions in WHERE. "" stands for a condition without a column, or with a column of
    another table.
    """

    columns: dict[str, Bound] = field(default_factory=dict)
    rest: set[str] = field(default_factory=set)

    def of(self, column: str) -> Bound:
        """Return the bounds of a column; an empty Bound if it has none."""
        return self.columns.get(column, _NONE)

    def _at(self, column: str) -> Bound:
        """Return the bound of a column. Create it if there is none."""
        return self.columns.setdefault(column, Bound())


_NONE: Final = Bound()


def conjuncts(condition: exp.Expr | None) -> Iterator[exp.Expr]:
    """Return the parts of a condition that are joined by AND."""
    if condition is None:
        return
    if isinstance(condition, exp.Paren):
        yield from conjuncts(condition.this)
    elif isinstance(condition, exp.And):
        yield from conjuncts(condition.left)
        yield from conjuncts(condition.right)
    else:
        yield condition


def bounds_of(
    conditions: Sequence[exp.Expr], column_of: Callable[[exp.Expr], str | None], evaluate: Evaluate
) -> Bounds:
    """Return the bounds in conditions that are joined by AND.

    `column_of` returns the name of a column of the table in question, and None for any other expression.
    """
    found = Bounds()
    for condition in conditions:
        for part in conjuncts(condition):
            try:
                is_understood = _add_condition(found, part, column_of, evaluate)
            except (ValueError, TypeError):
                is_understood = False
            if not is_understood:
                # "" if the condition has no column, or columns of other tables.
                found.rest |= {column_of(column) or "" for column in part.find_all(exp.Column)} or {""}
    return found


def _add_condition(
    found: Bounds, part: exp.Expr, column_of: Callable[[exp.Expr], str | None], evaluate: Evaluate
) -> bool:
    """Add one condition to the bounds.

    Return False if a bound cannot express the condition: the caller notes its columns in `rest`.
    """
    part = _bare(part)
    if isinstance(part, (exp.EQ, *_RANGES)):
        kind: Any = type(part)
        left, right = _bare(part.left), _bare(part.right)
        column = column_of(left)
        if column is None:
            column, right, kind = column_of(right), left, _MIRRORED[kind]
        if column is None or not is_constant(right):
            return False
        return _add_comparison(found._at(column), kind, evaluate(right, column))
    if isinstance(part, exp.Between):
        column = column_of(_bare(part.this))
        low, high = part.args["low"], part.args["high"]
        if column is None or not (is_constant(low) and is_constant(high)):
            return False
        bound = found._at(column)
        return _add_comparison(bound, exp.GTE, evaluate(low, column)) & _add_comparison(
            bound, exp.LTE, evaluate(high, column)
        )
    if isinstance(part, (exp.In, exp.Or)):
        equal = _equal_values(part, column_of, evaluate)
        if equal is None:
            return False
        column, values = equal
        found._at(column).among([value for value in values if value is not None])
        return True
    if isinstance(part, exp.Escape) and part.expression.name == "\\":
        part = part.this
    if isinstance(part, exp.Like):
        column = column_of(_bare(part.this))
        if column is None or part.args.get("negate") or not isinstance(part.expression, exp.Literal):
            return False
        pattern = part.expression.name
        beginning = pattern.rstrip("%")
        if beginning and len(beginning) < len(pattern) and not set("%_\\") & set(beginning):
            found._at(column).prefix = beginning
            return True
    return False


def _equal_values(
    part: exp.Expr, column_of: Callable[[exp.Expr], str | None], evaluate: Evaluate
) -> tuple[str, list[Any]] | None:
    """Return the column and the values of conditions like `c IN (...)` and `c = 1 OR c = 2`."""
    part = _bare(part)
    if isinstance(part, exp.Or):
        left = _equal_values(part.left, column_of, evaluate)
        right = _equal_values(part.right, column_of, evaluate)
        if left is None or right is None or left[0] != right[0]:
            return None
        return left[0], left[1] + right[1]
    if isinstance(part, exp.In):
        column = column_of(_bare(part.this))
        values = part.expressions
        if column is None or part.args.get("query") or not values or not all(is_constant(value) for value in values):
            return None
        return column, [evaluate(value, column) for value in values]
    if isinstance(part, exp.EQ):
        column, constant = column_of(_bare(part.left)), _bare(part.right)
        if column is None:
            column, constant = column_of(_bare(part.right)), _bare(part.left)
        if column is not None and is_constant(constant):
            return column, [evaluate(constant, column)]
    return None


def _add_comparison(bound: Bound, kind: Any, value: Any) -> bool:
    """Restrict the bound of a column by one comparison with a constant.

    Always return True: the bound expresses the whole condition.
    """
    if value is None:  # no comparison with NULL is true
        bound.among([])
    elif kind is exp.EQ:
        bound.among([value])
    elif kind in (exp.GT, exp.GTE):
        bound.above(value, kind is exp.GT)
    else:
        bound.below(value, kind is exp.LT)
    return True


def _bare(part: exp.Expr) -> exp.Expr:
    """Remove the brackets around an expression."""
    while isinstance(part, exp.Paren):
        part = part.this
    return part


def is_constant(part: exp.Expr) -> bool:
    """Return whether an expression has the same value for every row."""
    return not any(
        isinstance(node, (exp.Column, exp.Query, exp.Placeholder, exp.AggFunc, exp.Window, exp.Rand, exp.Uuid))
        for node in part.walk()
    )
