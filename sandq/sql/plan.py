"""Plans a SELECT: scans of its tables, and DuckDB's query over the rows of these scans."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final

from sqlglot import exp

from sandq.sql.bounds import Bounds, Evaluate, bounds_of
from sandq.sql.catalog import CATALOG, Catalog
from sandq.sql.errors import NO_DATABASE, SYNTAX, UNKNOWN_DATABASE, UNKNOWN_TABLE, SqlError
from sandq.sql.functions import duckdb_text
from sandq.sql.scan import Scan, is_exact
from sandq.sql.schema import DATABASES, INFORMATION_SCHEMA, TABLES, Column, Table, find_table
from sandq.sql.statement import not_supported, whole_number

_JOINS: Final = ("", "INNER", "CROSS", "OUTER", "STRAIGHT_JOIN")
TABLES_MAX: Final = 16
"""Maximum number of tables in a query."""
_ORDERED: Final = ("deliver_at", "offset")


@dataclass
class Planned:
    """The plan of a query.

    `scans`, `catalog`: the fetched and the fixed tables, by their names in DuckDB's query. `replaced`: for each table
    of the statement: its node, its name in DuckDB's query, and the needed columns (None: all).
    """

    query: exp.Expr
    scans: dict[str, Scan]
    catalog: dict[str, Any]
    replaced: list[tuple[exp.Expr, str, list[Column] | None]]

    def text(self) -> str:
        """Return DuckDB's SQL. Call it only once."""
        for node, name, columns in self.replaced:
            node.replace(_subquery(node, name, columns))
        return duckdb_text(self.query)

    def columns_alone(self) -> list[tuple[str, Column]] | None:
        """Return the names and columns of the result if DuckDB is not needed; None if DuckDB must evaluate the query.

        DuckDB is not needed if the only scan returns exactly the rows that match WHERE, and nothing is computed from
        these rows.
        """
        select = self.query
        if len(self.replaced) != 1 or not isinstance(select, exp.Select) or len(self.scans) != 1:
            return None
        (scan,) = self.scans.values()
        if scan.by_name != "id" or scan.table.name != "messages" or not is_exact(scan):
            return None
        if set(scan.bounds.columns) - {"topic", "id"} or any(select.args.get(name) for name in _CHANGING_ROWS):
            return None
        found: list[tuple[str, Column]] = []
        for part in select.expressions:
            if type(part) is exp.Star and not part.args.get("except_") and not part.args.get("replace"):
                found += [(column.name, column) for column in scan.table.columns]
                continue
            inner = part.this if isinstance(part, exp.Alias) else part
            column = scan.table.column(inner.name) if isinstance(inner, exp.Column) else None
            if column is None or inner.table:
                return None
            found.append((part.alias_or_name, column))
        return found


_CHANGING_ROWS: Final = (
    *("with_", "distinct", "group", "having", "order", "limit", "offset", "joins", "windows", "qualify", "laterals"),
    *("connect", "sample", "settings", "pivots", "into", "cluster", "sort", "distribute", "match", "kind", "hint"),
)
"""Parts of a SELECT that may change the rows of the scan or their order, so DuckDB must evaluate them."""


def plan(tree: exp.Expr, database: str | None, evaluate: Evaluate, catalog: Catalog = CATALOG) -> Planned:
    """Plan a query whose functions are already translated. Raises SqlError for unknown tables and columns."""
    tables = [table for table in tree.find_all(exp.Table) if not _is_cte(table)]
    if len(tables) > TABLES_MAX:
        raise SqlError(SYNTAX, f"the query names {len(tables)} tables; at most {TABLES_MAX} are joined")
    for kind in (exp.Lateral, exp.Unnest, exp.TableSample, exp.MatchRecognize, exp.Pivot):
        if tree.find(kind) is not None:
            raise not_supported(kind.__name__.upper())
    _check_joins(tree)
    is_star = _needs_all_columns(tree)
    planned = Planned(tree, {}, {}, [])
    names = {node.name.lower() for node in tree.find_all(exp.Identifier)}
    prefix = _unused_prefix(names)
    resolved = [(table, _resolve(table, database, catalog)) for table in tables]
    _strip_databases(tree)
    known = {id(node): table for node, table in resolved}
    for number, (node, table) in enumerate(resolved):
        name = f"{prefix}{number}"
        if isinstance(table, Table):
            scan = _scan(tree, node, table, names, is_star, evaluate, known)
            planned.scans[name] = scan
            columns = [one for one in table.columns if is_star or one.name in names] or [_cheapest(table)]
            planned.replaced.append((node, name, columns))
        else:
            planned.catalog[name] = catalog.table(table)
            planned.replaced.append((node, name, None))
        if node is tree:
            raise not_supported("a table instead of a SELECT")
    return planned


def _check_joins(tree: exp.Expr) -> None:
    """Raise SqlError for kinds of joins that are not supported. Replace STRAIGHT_JOIN, a hint, by JOIN."""
    for join in tree.find_all(exp.Join):
        method = join.method.upper()
        if join.kind.upper() not in _JOINS or method not in ("", "NATURAL"):
            raise not_supported(f"{method or join.kind} JOIN")
        if join.kind.upper() == "STRAIGHT_JOIN":
            join.set("kind", None)


def _needs_all_columns(tree: exp.Expr) -> bool:
    """Return whether a query needs all columns of its tables: for `SELECT *`, but not for COUNT(*)."""
    if any(not isinstance(star.parent, exp.Count) for star in tree.find_all(exp.Star)):
        return True
    # NATURAL joins by all columns that both tables have.
    return any(join.method.upper() == "NATURAL" for join in tree.find_all(exp.Join))


def _unused_prefix(names: set[str]) -> str:
    """Return a prefix for the names of the fetched tables: no name of the query is this prefix with a number."""
    prefix = "t"
    while any(name.startswith(prefix) and name[len(prefix) :].isdigit() for name in names):
        prefix += "_"
    return prefix


def _is_cte(table: exp.Table) -> bool:
    """Return whether a table's name is a visible name of a WITH.

    Within a WITH, a query sees only the queries before it.
    """
    if table.db:
        return False
    child: Any = table
    ancestor: Any = table.parent
    while ancestor is not None:
        found: list[Any] = []
        if isinstance(ancestor, exp.With):
            place = next(place for place, part in enumerate(ancestor.expressions) if part is child)
            found = ancestor.expressions[: place + bool(ancestor.args.get("recursive"))]
        else:
            known = ancestor.args.get("with_")
            if known is not None and known is not child:
                found = known.expressions
        if any(part.alias.lower() == table.name.lower() for part in found):
            return True
        child, ancestor = ancestor, ancestor.parent
    return False


def _resolve(node: exp.Table, database: str | None, catalog: Catalog) -> Table | str:
    """Return the table that a node names. If the table belongs to information_schema, return its name."""
    if not isinstance(node.this, exp.Identifier):
        raise not_supported("a function instead of a table")
    of = (node.db or database or "").lower()
    name = node.name.lower()
    if not of:
        raise SqlError(NO_DATABASE, "No database selected: USE sandq, or write sandq.messages")
    if of == INFORMATION_SCHEMA:
        if name not in catalog.names:
            raise SqlError(UNKNOWN_TABLE, f"Table '{of}.{name}' doesn't exist")
        return name
    if of not in DATABASES:
        raise SqlError(UNKNOWN_DATABASE, f"Unknown database '{of}': there are {', '.join(DATABASES)}")
    table = TABLES.get((of, name)) if node.db else find_table(of, name)
    if table is None:
        known = ", ".join(known for database, known in TABLES if database == of)
        raise SqlError(UNKNOWN_TABLE, f"Table '{of}.{name}' doesn't exist: there are {known}")
    return table


def _strip_databases(tree: exp.Expr) -> None:
    """Shorten `sandq.messages.topic` to `messages.topic`, because a subquery with this alias replaces the table."""
    for column in tree.find_all(exp.Column):
        column.set("db", None)
        column.set("catalog", None)


def _select_of(node: exp.Table) -> exp.Select | None:
    """Return the SELECT that has a table in its FROM or JOIN."""
    found = node.find_ancestor(exp.Select)
    return found if isinstance(found, exp.Select) else None


def _scan(
    tree: exp.Expr,
    node: exp.Table,
    table: Table,
    names: set[str],
    is_star: bool,
    evaluate: Evaluate,
    known: dict[int, Table | str],
) -> Scan:
    """Return the scan of one table of the statement.

    The scan has the needed columns and the bounds from WHERE and ON. It has a LIMIT only if the bounds are equivalent
    to WHERE, because DuckDB would otherwise remove rows afterwards. `known`: the tables of the statement, by node.
    """
    needed: dict[str, None] = {}
    for column in table.columns:
        if is_star or column.name in names:
            needed |= dict.fromkeys(column.needs or (column.name,))
    fetched = tuple(needed) or (_cheapest(table).name,)
    select = _select_of(node)
    if select is None:
        return Scan(table, Bounds(), fetched)
    alias = (node.alias or node.name).lower()
    others = [one for one in _sources(select) if one is not node]

    def column_of(part: exp.Expr) -> str | None:
        """Return the name of the table's column that an expression is; None for any other expression."""
        if not isinstance(part, exp.Column):
            return None
        name = part.name.lower()
        if table.column(name) is None or (part.table and part.table.lower() != alias):
            return None
        return name if part.table or is_own(name) else None

    def is_own(name: str) -> bool:
        """Return whether a column belongs only to this table, or (USING) to both tables."""
        if _is_shared(select, name):
            return True
        tables = [known.get(id(one)) for one in others]
        return all(isinstance(table, Table) and table.column(name) is None for table in tables)

    def value(part: exp.Expr, column: str) -> Any:
        """Return the value of an expression, as the column has it."""
        found = table.column(column)
        assert found is not None
        return evaluate(part, found.kind.name)

    bounds = bounds_of(list(_conditions(select)), column_of, value)
    scan = Scan(table, bounds, fetched)
    limit = _limit(tree, select, len(known))
    if limit is None or not is_exact(scan):
        return scan
    order = select.args.get("order")
    if order is None:
        return Scan(table, bounds, fetched, limit)
    if _is_by_time(select, order, column_of) and (table.name == "messages" or table.is_of_tasks):
        return Scan(table, bounds, fetched, limit, is_ordered=True)
    return scan


def _cheapest(table: Table) -> Column:
    """Return the column to fetch if a query names no column (for example, COUNT(*))."""
    return table.column("partition") or table.columns[0]


def _sources(select: exp.Select) -> Iterator[exp.Expr]:
    """Return the tables and subqueries in FROM and JOIN."""
    found = select.args.get("from_") or select.args.get("from")
    if found is not None:
        yield found.this
    for join in select.args.get("joins") or ():
        yield join.this


def _is_shared(select: exp.Select, name: str) -> bool:
    """Return whether tables are joined with USING by this column; then the column has the same value in both tables."""
    return any(
        name in [using.name.lower() for using in join.args.get("using") or ()]
        for join in select.args.get("joins") or ()
    )


def _conditions(select: exp.Select) -> Iterator[exp.Expr]:
    """Return WHERE and the ON of inner joins. The ON of an outer join does not remove rows."""
    where = select.args.get("where")
    if where is not None:
        yield where.this
    for join in select.args.get("joins") or ():
        if not join.side and join.args.get("on") is not None:
            yield join.args["on"]


def _limit(tree: exp.Expr, select: exp.Select, tables: int) -> int | None:
    """Return how many rows of its only table are enough for a query (LIMIT and OFFSET); None if that is unknown."""
    if tree is not select or tables != 1 or select.args.get("limit") is None:
        return None
    if any(
        select.args.get(name) for name in ("joins", "group", "having", "distinct", "windows", "qualify", "laterals")
    ):
        return None
    if select.find(exp.AggFunc, exp.Window, exp.Subquery) is not None:
        return None
    rows = [select.args["limit"].expression]
    if select.args.get("offset") is not None:
        rows.append(select.args["offset"].expression)
    numbers = [whole_number(row.name) if isinstance(row, exp.Literal) else None for row in rows]
    known = [number for number in numbers if number is not None]
    return sum(known) if len(known) == len(numbers) else None


def _is_by_time(select: exp.Select, order: exp.Expr, column_of: Callable[[exp.Expr], str | None]) -> bool:
    """Return whether a query orders rows in the order of the log: by `deliver_at` or `offset`, ascending."""
    ordered = order.expressions
    name = column_of(ordered[0].this)
    if len(ordered) != 1 or ordered[0].args.get("desc") or name not in _ORDERED:
        return False
    # In ORDER BY, a column of the result takes precedence over a column of the table with the same name.
    return all(column_of(part.this) == name for part in select.expressions if part.alias.lower() == name)


def _subquery(node: exp.Expr, name: str, columns: list[Column] | None) -> exp.Expr:
    """Return the expression that replaces a table: these columns of the fetched rows, or all if None."""
    if columns is None:
        return _aliased(exp.select("*").from_(exp.to_identifier(name, quoted=True)), node)
    select = exp.select(
        *[
            exp.column(exp.to_identifier(column.name, quoted=True))
            if column.made_of is None
            else exp.alias_(exp.maybe_parse(column.made_of, dialect="duckdb"), column.name, quoted=True)
            for column in columns
        ]
    )
    return _aliased(select.from_(exp.to_identifier(name, quoted=True)), node)


def _aliased(select: exp.Select, node: exp.Expr) -> exp.Expr:
    """Return a subquery with the alias, the joins and the pivots of the table that it replaces."""
    alias = exp.TableAlias(this=exp.to_identifier(node.alias or node.name, quoted=True))
    subquery = exp.Subquery(this=select, alias=alias)
    for name in ("joins", "pivots"):
        if node.args.get(name):
            subquery.set(name, node.args[name])
    return subquery
