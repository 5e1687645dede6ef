"""Finds the expressions of a statement whose values are JSON by the rules of MySQL.

To compare JSON with a text, DuckDB parses the text as JSON, but MySQL converts the text to a JSON string. So the
translation of a comparison (`json_values`) must know which of its sides is JSON.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from sqlglot import exp

from sandq.sql.schema import SANDQ, Kind, find_table

JSON: Final = "json"
TEXT: Final = "text"
NUMBER: Final = "number"
_META: Final = "kind"
_DEPTH: Final = 40
"""Maximum number of nested queries through which a column is followed."""
_NUMBERS: Final = (Kind.INT, Kind.BIGINT, Kind.DOUBLE, Kind.BOOL)
_MAKES_JSON: Final = frozenset({"JSON_ARRAY", "JSON_KEYS", "JSON_QUERY"})
_MAKES_TEXT: Final = frozenset({"JSON_UNQUOTE"})


def kind_of(node: Any) -> str | None:
    """Return the kind that `mark_kinds` found: JSON, TEXT (extracted from JSON) or NUMBER; None for other kinds."""
    found: str | None = node.meta.get(_META) if isinstance(node, exp.Expr) else None
    return found


def set_kind(node: exp.Expr, kind: str | None) -> None:
    """Store the kind of an expression."""
    if kind is not None:
        node.meta[_META] = kind


def is_json(node: Any) -> bool:
    """Return whether the values of an expression are JSON."""
    return kind_of(node) == JSON


def mark_kinds(tree: exp.Expr, database: str | None) -> None:
    """Store the kind of each expression of a statement.

    The parser reads `json->'$.a'` as a lambda if it is an argument of a function. This function corrects that.
    """
    for arrow in list(tree.find_all(exp.Lambda)):
        if len(arrow.expressions) == 1 and isinstance(arrow.this, exp.Literal) and arrow.this.is_string:
            column = exp.column(arrow.expressions[0].copy())
            arrow.replace(exp.JSONExtract(this=column, expression=arrow.this.copy()))
    columns = _Columns(database)
    for node in reversed(list(tree.dfs())):  # children first
        set_kind(node, _kind(node, columns))


def results_of(node: exp.Expr) -> list[exp.Expr]:
    """Return the possible results of IF, CASE, COALESCE and similar functions."""
    if isinstance(node, exp.Case):
        found = [part.args.get("true") for part in node.args["ifs"]] + [node.args.get("default")]
    elif isinstance(node, exp.If):
        found = [node.args.get("true"), node.args.get("false")]
    else:
        found = [node.this, *node.expressions]
    return [part for part in found if part is not None and not isinstance(part, exp.Null)]


def _kind(node: exp.Expr, columns: _Columns) -> str | None:
    """Return the kind of an expression, from the stored kinds of its parts; None for other kinds.

    The kind of a query is the kind of its only column.
    """
    if isinstance(node, exp.Column):
        return columns.kind(node)
    if isinstance(node, (exp.JSONExtract, exp.ParseJSON, exp.JSONObject, exp.JSONArray, exp.JSONKeys)):
        return JSON
    if isinstance(node, exp.Cast):
        if node.to.this == exp.DataType.Type.JSON:
            return JSON
        return NUMBER if node.to.this in exp.DataType.NUMERIC_TYPES else None
    if isinstance(node, exp.JSONExtractScalar):
        return TEXT
    if isinstance(node, exp.Anonymous):
        name = str(node.this).upper()
        return JSON if name in _MAKES_JSON else TEXT if name in _MAKES_TEXT else None
    if isinstance(node, exp.Literal):
        return None if node.is_string else NUMBER
    if isinstance(node, exp.If) and isinstance(node.parent, exp.Case):
        return None
    if isinstance(node, (exp.If, exp.Case, exp.Coalesce)):
        kinds = {kind_of(part) for part in results_of(node)}
        return kinds.pop() if len(kinds) == 1 else None
    if isinstance(node, (exp.Paren, exp.Max, exp.Min, exp.Nullif, exp.AnyValue, exp.Window)):
        return kind_of(node.this)
    if isinstance(node, exp.Subquery):
        return kind_of(node.this)
    if isinstance(node, exp.Select):
        return kind_of(node.expressions[0]) if len(node.expressions) == 1 else None
    if isinstance(node, exp.Alias):
        return kind_of(node.this)
    if isinstance(node, (exp.Neg, exp.Add, exp.Sub, exp.Mul, exp.Div, exp.Mod, exp.Count, exp.Sum, exp.Avg)):
        return NUMBER
    return None


class _Columns:
    """Kinds of columns, by the queries in which they are visible."""

    def __init__(self, database: str | None) -> None:
        self._database = database
        self._known: dict[tuple[int, str, str], str | None] = {}

    def kind(self, column: exp.Column) -> str | None:
        """Return the kind of a column from any table or query."""
        select = column.find_ancestor(exp.Select)
        while isinstance(select, exp.Select):
            found = self._in_select(select, column.name.lower(), column.table.lower(), 0)
            if found is not None:
                return found or None
            # Outside WHERE, a name may also be the alias of a result, as in ORDER BY and HAVING.
            if not column.table and not column.find_ancestor(exp.Where):
                for part in select.expressions:
                    if isinstance(part, exp.Alias) and part.alias.lower() == column.name.lower():
                        return self._kind_of_result(part, 0)
            select = select.find_ancestor(exp.Select)
        return None

    def _in_select(self, select: exp.Select, name: str, table: str, depth: int) -> str | None:
        """Return the kind of a column of a query's tables; "" for other kinds; None if there is no such column."""
        key = id(select), name, table
        if key not in self._known:
            self._known[key] = None  # ends the search in a recursive WITH
            self._known[key] = self._search_sources(select, name, table, depth)
        return self._known[key]

    def _search_sources(self, select: exp.Select, name: str, table: str, depth: int) -> str | None:
        """Search the tables of a query for a column, as `_in_select`; "" if the queries are nested too deeply."""
        if depth > _DEPTH:
            return ""
        for source in _sources(select):
            if table and (source.alias or source.name).lower() != table:
                continue
            found = self._in_source(source, name, depth)
            if found is not None:
                return found
        return None

    def _in_source(self, source: exp.Expr, name: str, depth: int) -> str | None:
        """Return the kind of a column of one table or subquery of a FROM. See `_in_select` for the result.

        Columns of subqueries are followed to the expressions of their SELECT.
        """
        query: Any = source.this if isinstance(source, exp.Subquery) else None
        names = [one.name.lower() for one in source.args["alias"].columns] if source.args.get("alias") else []
        if isinstance(source, exp.Table):
            part = _query_of_with(source)
            if part is None:
                table = find_table(source.db or self._database or SANDQ, source.name)
                column = None if table is None else table.column(name)
                return None if column is None else _kind_of_table_column(column.kind)
            query = part.this
            names = names or [one.name.lower() for one in part.args["alias"].columns]
        while isinstance(query, (exp.SetOperation, exp.Subquery)):
            query = query.this
        if not isinstance(query, exp.Select):
            return None
        if names:  # names of the columns after the alias: `AS t (a, b)`
            index = names.index(name) if name in names else len(query.expressions)
            return (
                self._kind_of_result(query.expressions[index], depth) or "" if index < len(query.expressions) else None
            )
        for part in query.expressions:
            if isinstance(part, exp.Star) or (isinstance(part, exp.Column) and isinstance(part.this, exp.Star)):
                found = self._in_select(
                    query, name, part.table.lower() if isinstance(part, exp.Column) else "", depth + 1
                )
                if found is not None:
                    return found
            elif part.alias_or_name.lower() == name:
                return self._kind_of_result(part, depth) or ""
        return None

    def _kind_of_result(self, part: exp.Expr, depth: int) -> str | None:
        """Return the kind of an expression in the list of a SELECT; None for other kinds."""
        inner: Any = part.this if isinstance(part, exp.Alias) else part
        known = kind_of(inner)
        if known is not None or depth > _DEPTH:
            return known
        if isinstance(inner, exp.Column):
            select = inner.find_ancestor(exp.Select)
            if isinstance(select, exp.Select):
                return self._in_select(select, inner.name.lower(), inner.table.lower(), depth + 1) or None
            return None
        return _kind(inner, self)


def _kind_of_table_column(kind: Kind) -> str:
    """Return the JSON type of a table's column; empty: neither JSON nor a number."""
    return JSON if kind is Kind.JSON else NUMBER if kind in _NUMBERS else ""


def _sources(select: exp.Select) -> Iterator[exp.Expr]:
    """Return the tables and subqueries in FROM and JOIN."""
    found = select.args.get("from_") or select.args.get("from")
    if found is not None:
        yield found.this
        for join in found.this.args.get("joins") or ():
            yield join.this
    for join in select.args.get("joins") or ():
        yield join.this


def _query_of_with(table: exp.Table) -> exp.CTE | None:
    """Return the query of a WITH that a table name means; None if the name means a real table."""
    if table.db:
        return None
    node: Any = table.parent
    while node is not None:
        known = node.args.get("with_")
        for part in known.expressions if known is not None else ():
            if part.alias.lower() == table.name.lower():
                assert isinstance(part, exp.CTE)
                return part
        node = node.parent
    return None
