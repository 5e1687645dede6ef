"""`Session`: runs the statements of one client one after the other, and keeps its variables and its database."""

from __future__ import annotations

import datetime
from collections.abc import Awaitable, Callable, Hashable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, TypeVar

import anyio
import anyio.to_thread
from sqlglot import exp

from sandq.client import Client
from sandq.model.errors import SandqError
from sandq.sql import readers, row_tables
from sandq.sql.budget import VALUE_BYTES, Budget, Held
from sandq.sql.caller_view import AskAccess, CallerView, access_from_cluster
from sandq.sql.duck import Duck, Ducks, in_thread
from sandq.sql.errors import (
    INTERRUPTED,
    NO_DATABASE,
    READ_ONLY,
    SYNTAX,
    TIMED_OUT,
    UNKNOWN_DATABASE,
    UNKNOWN_FUNCTION,
    UNKNOWN_TABLE,
    WRONG_VALUE,
    SqlError,
    as_sql,
)
from sandq.sql.functions import Facts, duckdb_text, replace_functions
from sandq.sql.plan import Planned, plan
from sandq.sql.schema import DATABASES, SANDQ
from sandq.sql.show import LIKE_COLUMN, described, rows_of, shown
from sandq.sql.statement import not_supported, parse, whole_number
from sandq.sql.variables import MAX_TIME, VERSION, Variables

T = TypeVar("T")

_CAST: Final = {"TIME": "epoch_us(CAST({} AS TIMESTAMP))", "INT": "CAST({} AS BIGINT)", "BIGINT": "CAST({} AS BIGINT)"}
"""Conversion of a value that is compared with a column of this kind."""


@dataclass(frozen=True)
class Answer:
    """The result of a statement: its rows (pyarrow.Table), or None if it has none.

    `kill`: the id of a connection to kill, and whether only its query is killed.
    """

    table: Any = None
    kill: tuple[int, bool] | None = None


def _now() -> datetime.datetime:
    """Return the current time in UTC, without a time zone."""
    return datetime.datetime.now(datetime.UTC).replace(tzinfo=None)


class Session:
    """Runs the statements of one client, one at a time."""

    def __init__(
        self,
        client: Client,
        ducks: Ducks,
        budget: Budget,
        *,
        database: str | None = SANDQ,
        user: str = "",
        connection: int = 0,
        status: Callable[[], Sequence[tuple[str, str]]] = tuple,
        processes: Callable[[], Sequence[Sequence[Any]]] = tuple,
        now: Callable[[], datetime.datetime] = _now,
        ask_access: AskAccess | None = None,
        owner: Hashable = None,
    ) -> None:
        """`status` and `processes` return the rows of SHOW STATUS and SHOW PROCESSLIST; `now` returns the time in UTC.
        `ask_access` returns the caller's rights; by default the cluster is asked for the rights of the client. `owner`
        identifies the caller for `StatementSlots`."""
        self._owner = owner
        self._client = client
        self._ask_access = ask_access or access_from_cluster(client)
        self._ducks = ducks
        self._budget = budget
        self._user = user
        self._connection = connection
        self._status = status
        self._processes = processes
        self._now = now
        self._scope: anyio.CancelScope | None = None
        self._is_killed = False
        self.variables = Variables()
        self.database: str | None = None
        if database:
            self.use(database)

    def use(self, database: str) -> None:
        """Set the database for names of tables. Raises SqlError (1049) if it does not exist."""
        if database.lower() not in DATABASES:
            raise SqlError(UNKNOWN_DATABASE, f"Unknown database '{database}': there are {', '.join(DATABASES)}")
        self.database = database.lower()

    def reset(self) -> None:
        """Reset all variables."""
        self.variables = Variables()

    def kill(self) -> None:
        """Cancel the running statement, if there is one."""
        if self._scope is not None:
            self._is_killed = True
            self._scope.cancel()

    async def run(self, text: str) -> Answer:
        """Run a statement. Raises SqlError if the statement fails, at its deadline, and after `kill`."""
        tree = await _parsed(text)
        if tree is None:
            return Answer()
        return await self._within(self._seconds(tree), lambda: self._answer(tree))

    async def _within(self, seconds: float, work: Callable[[], Awaitable[T]]) -> T:
        """Return the result of `work`. Raises SqlError if it takes longer than `seconds`, or after `kill`."""
        self._is_killed = False
        with anyio.CancelScope(deadline=anyio.current_time() + seconds) as scope:
            self._scope = scope
            try:
                return await work()
            except SandqError as error:
                raise as_sql(error) from None
            except RecursionError:
                raise SqlError(SYNTAX, "the statement nests too deep") from None
            finally:
                self._scope = None
        if self._is_killed:
            raise SqlError(INTERRUPTED, "Query execution was interrupted")
        raise SqlError(
            TIMED_OUT,
            f"Query execution was interrupted, maximum statement execution time exceeded ({seconds:g} s: "
            f"{MAX_TIME}, or the server's seconds)",
        )

    async def columns(self, text: str) -> Any:
        """Return the columns (pyarrow.Schema) of a statement; None if it has none, or if they depend on parameters.

        Raises SqlError if the statement is wrong for all values of its parameters, or takes too long.
        """
        tree = await _parsed(text)
        if not isinstance(tree, exp.Query):
            return None

        async def work() -> Any:
            """Plan the statement, and return the schema of its result."""
            async with self._ducks.one(self._owner) as duck:
                planned = await self._plan(tree, duck)
                tables = dict(planned.catalog)
                tables |= {name: row_tables.empty(scan.table, scan.needed) for name, scan in planned.scans.items()}
                return await in_thread(duck, lambda: duck.schema(planned.text(), tables))

        try:
            return await self._within(self._seconds(tree), work)
        except SqlError as error:
            if error.number in _INDEPENDENT_OF_PARAMETERS:
                raise
            return None

    def _seconds(self, tree: exp.Expr) -> float:
        """Return the time limit of a statement, in s. Remove the hints from the statement."""
        seconds = self.variables.seconds(self._budget)
        for hint in tree.find_all(exp.Anonymous):
            if (
                isinstance(hint.parent, exp.Hint)
                and str(hint.this).upper() == "MAX_EXECUTION_TIME"
                and hint.expressions
            ):
                milliseconds = whole_number(hint.expressions[0].name)
                if milliseconds:
                    seconds = min(seconds, milliseconds / 1000)
        for part in list(tree.find_all(exp.Hint)):
            part.pop()
        return seconds

    async def _answer(self, tree: exp.Expr) -> Answer:
        """Run a parsed statement and return its result."""
        if isinstance(tree, exp.Query):
            return Answer(await self._query(tree))
        if isinstance(tree, exp.Show):
            return Answer(await self._show(tree))
        if isinstance(tree, exp.Describe):
            return Answer(await self._describe(tree))
        if isinstance(tree, exp.Set):
            await self._set(tree)
            return Answer()
        if isinstance(tree, exp.Use):
            self.use(tree.this.name)
            return Answer()
        if isinstance(tree, exp.Kill):
            number = whole_number(tree.this.name)
            if number is None:
                raise SqlError(SYNTAX, "KILL: a connection's number is expected")
            return Answer(kill=(number, tree.text("kind").upper() == "QUERY"))
        if isinstance(tree, (exp.Transaction, exp.Commit, exp.Rollback)):
            return Answer()  # without effect: all statements only read
        if isinstance(tree, exp.Command):
            return Answer(await self._command(tree))
        raise SqlError(SYNTAX, "SELECT, SHOW, DESCRIBE, EXPLAIN, SET, USE or KILL is expected (docs/sql.md)")

    async def _command(self, tree: exp.Command) -> Any:
        """Run a statement for which the parser has no class."""
        word = str(tree.this).upper()
        rest = str(tree.args.get("expression") or "").strip().strip("'").upper()
        if word == "SHOW":
            if rest.startswith(("KEYS", "INDEXES")):
                return shown(exp.Show(this="INDEX"), self.database, self.variables, ())
            raise not_supported(f"SHOW {rest[:60]}")
        if word in ("SAVEPOINT", "RELEASE", "START", "BEGIN"):
            return None
        if word == "SET":
            return None if rest.startswith(("TRANSACTION", "SESSION TRANSACTION")) else _raise_set(rest)
        raise not_supported(word.split(" ")[0])

    # ---------------------------------------------------------------------------------------------- queries

    def _facts(self) -> Facts:
        """Return the facts that functions such as NOW() and DATABASE() need."""
        return Facts(self._now(), self.database, self._user, VERSION, self._connection)

    async def _query(self, tree: exp.Expr) -> Any:
        """Run a query: plan it, check its scans, read their rows with the caller's rights, and run DuckDB's query.

        If the rows of the only scan are already the result, DuckDB is not needed.
        """
        async with self._ducks.one(self._owner) as duck:
            planned = await self._plan(tree, duck)
            for scan in planned.scans.values():
                scan.check(allow_full=self.variables.allows_full_scan)
            held = Held(self._budget)
            tables = dict(planned.catalog)
            view = CallerView(self._client, await self._ask_access()) if planned.scans else None
            for name, scan in planned.scans.items():
                assert view is not None
                tables[name] = await readers.read(view, scan, held)
            alone = planned.columns_alone()
            if alone is not None:
                (table,) = tables.values()
                return readers.as_result(table, alone)
            return await in_thread(duck, lambda: duck.run(planned.text(), tables))

    async def _plan(self, tree: exp.Expr, duck: Duck) -> Planned:
        """Plan a query in a thread, because evaluating a bound may take long."""

        def work() -> Planned:
            """Plan the statement in a thread."""
            return self._planned(replace_functions(self._with_variables(_name_columns(tree)), self._facts()), duck)

        return await in_thread(duck, work)

    def _planned(self, tree: exp.Expr, duck: Duck) -> Planned:
        """Plan a query. Constants in its conditions are evaluated by DuckDB."""

        def evaluate(part: exp.Expr, kind: str) -> Any:
            """Return a constant as a value of a column of this kind: times as microseconds.

            Raise ValueError if it cannot be a bound.
            """
            text = duckdb_text(part)
            if isinstance(part, exp.Literal) and part.is_string and kind not in _CAST:
                return part.name
            try:
                value, is_null = duck.values([_CAST.get(kind, "{}").format(text), f"({text}) IS NULL"])
            except SqlError as error:
                raise ValueError(error.message) from None
            if is_null:
                return None
            if not isinstance(value, int if kind in _CAST else str):  # infinity cannot be converted to microseconds
                raise ValueError("it is compared with what bounds nothing")
            return value

        return plan(tree, self.database, evaluate)

    def _with_variables(self, tree: exp.Expr) -> exp.Expr:
        """Replace variables (`@@name`, `@name`) by their values."""
        if tree.find(exp.SessionParameter, exp.Parameter) is None:
            return tree

        def replaced(node: exp.Expr) -> exp.Expr:
            """Return the value of a variable instead of the variable."""
            if isinstance(node, exp.SessionParameter):
                return _literal(self.variables.get(node.name))
            if isinstance(node, exp.Parameter):
                return _literal(self.variables.own.get(node.name.lower()))
            return node

        return tree.transform(replaced)

    async def _describe(self, tree: exp.Describe) -> Any:
        """Return the columns of a table, or for a query the plan of its scans (EXPLAIN).

        `refused`: the error with which the query would be rejected, because a scan is not bounded.
        """
        target = tree.this
        if isinstance(target, exp.Table):
            return described(target, self.database)
        if not isinstance(target, exp.Query):
            raise SqlError(SYNTAX, "DESCRIBE: a table, or a SELECT is expected")
        async with self._ducks.one(self._owner) as duck:
            planned = await self._plan(target, duck)
        rows: list[tuple[Any, ...]] = []
        for number, (_, scan) in enumerate(planned.scans.items(), 1):
            pushed = "; ".join(f"{name} {text}" for name, text in scan.pushed().items())
            try:
                scan.check(allow_full=self.variables.allows_full_scan)
                refused = None
            except SqlError as error:
                refused = error.message
            limit = None if scan.limit is None else str(scan.limit)
            rows.append(
                (number, scan.table.name, scan.request(), pushed or None, limit, ", ".join(scan.needed), refused)
            )
        if not rows:
            rows.append((1, None, "none", None, None, None, None))
        return rows_of("id# table request pushed limit columns refused", rows)

    # ------------------------------------------------------------------------------------------------- SHOW

    async def _show(self, tree: exp.Show) -> Any:
        """Return the rows of a SHOW. DuckDB applies its LIKE and WHERE to the rows."""
        what = tree.name.upper()
        if what == "PROCESSLIST":
            return rows_of("Id# User Host db Command Time# State Info", self._processes())
        table = shown(tree, self.database, self.variables, self._status())
        conditions = []
        like = tree.args.get("like")
        if like is not None:
            column = LIKE_COLUMN.get(what) or table.schema.names[0]
            conditions.append(exp.Like(this=exp.func("LOWER", exp.column(column)), expression=_lowered(like)))
        where = tree.args.get("where")
        if where is not None:
            conditions.append(where.this if isinstance(where, exp.Where) else where)
        if not conditions:
            return table
        query = exp.select("*").from_(exp.to_identifier("shown", quoted=True))
        for condition in conditions:
            query = query.where(replace_functions(condition.copy(), self._facts()))
        if query.find(exp.Subquery, exp.Query) not in (None, query):
            raise not_supported("a query within SHOW")
        async with self._ducks.one(self._owner) as duck:
            text = duckdb_text(query)
            return await in_thread(duck, partial(duck.run, text, {"shown": table}))

    # -------------------------------------------------------------------------------------------------- SET

    async def _set(self, tree: exp.Set) -> None:
        """Set variables of the session. Character sets and transactions are accepted and ignored."""
        for item in tree.expressions:
            kind = item.text("kind").upper()
            if kind in ("NAMES", "CHARACTER SET", "TRANSACTION"):
                continue
            if kind in ("GLOBAL", "PERSIST", "PERSIST_ONLY"):
                raise SqlError(READ_ONLY, "only variables of the session are set: SET SESSION ...")
            assignment = item.this
            if not isinstance(assignment, exp.EQ):
                raise SqlError(SYNTAX, "SET: name = value is expected")
            left, right = assignment.left, assignment.expression
            value = await self._value(right)
            if isinstance(left, exp.Parameter):
                name = left.name.lower()[:64]
                if name not in self.variables.own and len(self.variables.own) >= _OWN_MOST:
                    raise SqlError(WRONG_VALUE, f"at most {_OWN_MOST} variables of one's own are kept")
                self.variables.own[name] = value
                continue
            if isinstance(left, exp.SessionParameter) and left.text("kind").lower() in ("global", "persist"):
                raise SqlError(READ_ONLY, "only variables of the session are set: SET SESSION ...")
            self.variables.set(left.name, value)

    async def _value(self, part: exp.Expr) -> Any:
        """Return the value on the right side of an assignment; run a query for an expression."""
        if isinstance(part, (exp.Column, exp.Var)):
            return part.name
        if isinstance(part, exp.Literal):
            if len(part.name) > VALUE_BYTES // 4:
                raise SqlError(WRONG_VALUE, f"a variable has at most {VALUE_BYTES:,} bytes")
            return part.name if part.is_string else _number(part.name)
        if isinstance(part, exp.Boolean):
            return int(part.this)
        if isinstance(part, exp.Null):
            return None
        query = exp.select(exp.alias_(part.copy(), "value"))
        table = await self._query(query)
        if table.nbytes > VALUE_BYTES:
            raise SqlError(WRONG_VALUE, f"a variable has at most {VALUE_BYTES:,} bytes")
        return table.column(0)[0].as_py()


async def _parsed(text: str) -> exp.Expr | None:
    """Parse a statement; a long one in a thread, so that other tasks can run."""
    return parse(text) if len(text) < _LONG else await anyio.to_thread.run_sync(parse, text)


_LONG: Final = 2000
"""Number of characters from which a statement is parsed in a thread."""
_INDEPENDENT_OF_PARAMETERS: Final = (
    *(UNKNOWN_TABLE, UNKNOWN_DATABASE, UNKNOWN_FUNCTION, NO_DATABASE, INTERRUPTED, TIMED_OUT),
)
"""Numbers of errors that do not depend on the parameters of a statement."""
_OWN_MOST: Final = 100
"""Maximum number of user variables (`@name`)."""


def _raise_set(rest: str) -> None:
    """Raise SqlError for a SET that is not supported."""
    raise not_supported(f"SET {rest[:60]}")


def _number(text: str) -> Any:
    """Return the number in a text."""
    try:
        return int(text)
    except ValueError:
        return float(text)


def _literal(value: Any) -> exp.Expr:
    """Return a value as a literal of SQL."""
    if value is None:
        return exp.Null()
    if isinstance(value, (int, float)):
        return exp.Literal.number(value)
    return exp.Literal.string(str(value))


def _lowered(like: Any) -> exp.Expr:
    """Return a LIKE pattern in lower case."""
    text = like.name if isinstance(like, exp.Expr) else str(like).strip("'")
    return exp.Literal.string(text.lower())


def _name_columns(tree: exp.Expr) -> exp.Expr:
    """Name the columns of a query's result as MySQL does: by the text of their expressions. Changes the query."""
    select: Any = tree
    while isinstance(select, exp.SetOperation):
        select = select.left
    while isinstance(select, (exp.Subquery, exp.Paren)):
        select = select.this
    if isinstance(select, exp.Select):
        for part in select.expressions:
            if not isinstance(part, (exp.Alias, exp.Column, exp.Star)):
                name = part.sql("mysql").replace("`", "")
                part.replace(exp.alias_(part.copy(), name[:64], quoted=True))
    return tree
